//! Parser for the name that an AMQP client gives its connection.

/// `connection_name` as a field of an AMQP table: length, text, and the type tag `S` of a long
/// string.
const FIELD: &[u8] = b"\x0fconnection_nameS";

/// Maximum number of bytes searched from the start of a connection. The name is in the client's
/// first method.
const MAX_SEARCHED_BYTES: usize = 16 << 10;

/// Searches the first bytes of a connection for its name.
#[derive(Debug, Default)]
pub(super) struct Sniffer {
    seen: Vec<u8>,
    over: bool,
}

impl Sniffer {
    /// Takes the next bytes from the client. Returns the name once, when it is complete.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Option<String> {
        if self.over {
            return None;
        }
        self.seen.extend_from_slice(bytes);
        let found = name(&self.seen);
        if found.is_some() || self.seen.len() > MAX_SEARCHED_BYTES {
            *self = Self { seen: Vec::new(), over: true };
        }
        found
    }
}

fn name(bytes: &[u8]) -> Option<String> {
    let start = bytes.windows(FIELD.len()).position(|window| window == FIELD)?;
    let (length, rest) = bytes[start + FIELD.len()..].split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    Some(String::from_utf8_lossy(rest.get(..length)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::Sniffer;

    const SENT: &[u8] =
        b"AMQP\x00\x00\x09\x01..\x0fconnection_nameS\x00\x00\x00\x0aw1 publish\x05...";

    #[test]
    fn a_name_is_found_however_the_bytes_come() {
        assert_eq!(Sniffer::default().take(SENT).as_deref(), Some("w1 publish"));
        let mut slow = Sniffer::default();
        let found: Vec<_> = SENT.chunks(1).filter_map(|byte| slow.take(byte)).collect();
        assert_eq!(found, ["w1 publish"]);
    }

    #[test]
    fn a_name_that_comes_late_is_content_and_no_name() {
        let mut sniffer = Sniffer::default();
        assert_eq!(sniffer.take(&[0; 20 << 10]), None);
        assert_eq!(sniffer.take(SENT), None);
    }
}
