//! Metadata values of another GGUF file, in the encoding of the format.

use nsbridge_checkpoint::GgufValue;

/// Returns the number of the narrowest common type that holds all values and that llama.cpp writes.
pub(super) fn kind(values: &[GgufValue]) -> u32 {
    let all = |fits: fn(&GgufValue) -> bool| values.iter().all(fits);
    match values.first() {
        Some(GgufValue::Unsigned(_)) => {
            let narrow =
                all(|value| matches!(value, GgufValue::Unsigned(n) if u32::try_from(*n).is_ok()));
            if narrow { 4 } else { 10 }
        }
        Some(GgufValue::Signed(_)) => {
            let narrow =
                all(|value| matches!(value, GgufValue::Signed(n) if i32::try_from(*n).is_ok()));
            if narrow { 5 } else { 11 }
        }
        Some(GgufValue::Float(_)) => {
            let same = |x: f64| f64::from(x as f32).to_bits() == x.to_bits();
            let narrow =
                values.iter().all(|value| matches!(value, GgufValue::Float(x) if same(*x)));
            if narrow { 6 } else { 12 }
        }
        Some(GgufValue::Bool(_)) => 7,
        Some(GgufValue::Array(_)) => 9,
        // A text, or nothing.
        _ => 8,
    }
}

/// Writes a value as one of this type, without the type.
pub(super) fn write(bytes: &mut Vec<u8>, value: &GgufValue, kind: u32) {
    match value {
        GgufValue::Unsigned(n) if kind == 4 => bytes.extend((*n as u32).to_le_bytes()),
        GgufValue::Unsigned(n) => bytes.extend(n.to_le_bytes()),
        GgufValue::Signed(n) if kind == 5 => bytes.extend((*n as i32).to_le_bytes()),
        GgufValue::Signed(n) => bytes.extend(n.to_le_bytes()),
        GgufValue::Float(x) if kind == 6 => bytes.extend((*x as f32).to_le_bytes()),
        GgufValue::Float(x) => bytes.extend(x.to_le_bytes()),
        GgufValue::Bool(flag) => bytes.push(u8::from(*flag)),
        GgufValue::Text(text) => string(bytes, text.as_bytes()),
        GgufValue::Bytes(text) => string(bytes, text),
        GgufValue::Array(values) => {
            let kind = self::kind(values);
            bytes.extend(kind.to_le_bytes());
            bytes.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| write(bytes, value, kind));
        }
        // The reader has no other type.
        _ => {}
    }
}

fn string(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text);
}
