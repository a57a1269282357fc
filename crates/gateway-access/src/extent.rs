//! Size of a JSON text, measured before memory for its values is taken.

/// Size of a JSON text. It is an upper bound for text that is not valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Number of bytes.
    pub bytes: usize,
    /// Number of values, nested ones included.
    pub values: usize,
    /// Number of objects, nested ones included.
    objects: usize,
}

/// Bytes of memory for each byte of text: the body, its parsed form, its sealed form and the message
/// of the broker have it at the same time.
const COPIES: usize = 5;

/// Bytes of memory for each value.
const VALUE: usize = 32;

/// Bytes of memory for each object: `serde_json` allocates room for four members.
const OBJECT: usize = 512;

impl Extent {
    /// Measures a text.
    pub fn of(json: &[u8]) -> Self {
        let mut extent = Self { bytes: json.len(), values: 1, objects: 0 };
        let mut bytes = json.iter();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => skip_text(&mut bytes),
                b',' | b'[' => extent.values += 1,
                b'{' => {
                    extent.values += 1;
                    extent.objects += 1;
                }
                _ => {}
            }
        }
        extent
    }

    /// Returns the memory, in bytes, that a request of this size takes until it is submitted.
    pub fn memory(&self) -> usize {
        COPIES * self.bytes + VALUE * self.values + OBJECT * self.objects
    }
}

/// Skips the rest of a text in quotes.
fn skip_text(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Extent;

    #[track_caller]
    fn check(json: &str, values: usize, objects: usize) {
        let extent = Extent { bytes: json.len(), values, objects };
        assert_eq!(Extent::of(json.as_bytes()), extent, "{json}");
    }

    #[test]
    fn values_and_objects_are_counted_outside_texts() {
        check("7", 1, 0);
        check(r#""a,[{\",[\\""#, 1, 0);
        check(r#"[1,{"a,{":[]},"{"]"#, 6, 1);
        check(r#"{"a":{"":0},"b":{}}"#, 5, 3);
    }

    #[test]
    fn many_small_objects_take_more_memory_than_their_text() {
        let objects = r#"{"":0},"#.repeat(1000);
        let memory = Extent::of(objects.as_bytes()).memory();
        assert!(memory > 1000 * 460, "{memory}");
        let text = format!("\"{}\"", "x".repeat(1000));
        assert!(Extent::of(text.as_bytes()).memory() < 6000);
    }
}
