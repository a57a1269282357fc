//! Fuzzing entry point: arbitrary bytes as frames from a broker.

use std::sync::Arc;

use nsbridge_protocol::topology::LARGEST_BODY;

use crate::amqp::frame_filter::{Bodies, DEEPEST, Reader};

/// Parses the bytes as if read from a socket, and checks the output that lapin would see.
///
/// # Panics
///
/// Panics if the output has a table nested too deeply or a body that is too large, or if it depends
/// on the boundaries of the reads.
pub fn read_frames(bytes: &[u8]) {
    let passed = read(bytes, bytes.len().max(1));
    for by in [1, 3, 64] {
        assert_eq!(read(bytes, by), passed, "cut by {by}");
    }
    let Some(passed) = passed else { return };
    assert!(passed.len() <= bytes.len(), "{} of {}", passed.len(), bytes.len());
    assert_eq!(read(&passed, 7).as_ref(), Some(&passed), "there is nothing left to change");
    each_frame(&passed, |kind, payload| match (kind, payload) {
        (2, [_, _, _, _, size @ ..]) => {
            let Some((size, flags)) = size.split_first_chunk() else { return };
            assert!(u64::from_be_bytes(*size) <= LARGEST_BODY as u64);
            let Some(headers) = headers(flags) else { return };
            assert!(depth(headers, true, 1) <= DEEPEST, "the headers are too deep");
        }
        (1, [0, 10, 0, 10, _, _, properties @ ..]) => {
            let Some(table) = sized(properties) else { return };
            assert!(depth(table, true, 1) <= DEEPEST, "the broker's first words are too deep");
        }
        _ => {}
    });
}

fn read(bytes: &[u8], by: usize) -> Option<Vec<u8>> {
    let (mut reader, mut passed) = (Reader::new(Arc::new(Bodies::default())), Vec::new());
    for chunk in bytes.chunks(by) {
        reader.read(chunk, &mut passed).ok()?;
    }
    Some(passed)
}

fn each_frame(mut bytes: &[u8], mut look: impl FnMut(u8, &[u8])) {
    while let Some(([kind, _, _, size @ ..], rest)) = bytes.split_first_chunk::<7>() {
        let Some((payload, after)) = rest.split_at_checked(u32::from_be_bytes(*size) as usize)
        else {
            return;
        };
        look(*kind, payload);
        bytes = after.get(1..).unwrap_or_default();
    }
}

/// Returns the header table after the flags and the properties before it.
fn headers(flags: &[u8]) -> Option<&[u8]> {
    let (flags, mut rest) = flags.split_first_chunk()?;
    let flags = u16::from_be_bytes(*flags);
    for _ in 0..(flags >> 14).count_ones() {
        let (length, text) = rest.split_first()?;
        rest = text.get(usize::from(*length)..)?;
    }
    if flags & (1 << 13) == 0 { None } else { sized(rest) }
}

/// Returns the bytes after a four-byte length, if all of them are present.
fn sized(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.get(..u32::from_be_bytes(*length) as usize)
}

/// Returns the nesting depth of tables and arrays, as far as they can be parsed.
fn depth(mut bytes: &[u8], is_table: bool, so_far: usize) -> usize {
    let mut deepest = so_far;
    // A depth slightly above the limit is enough to prove a violation.
    while so_far <= DEEPEST + 2 && !bytes.is_empty() {
        if is_table {
            let Some(after) = bytes.get(1 + usize::from(bytes[0])..) else { break };
            bytes = after;
        }
        let Some((letter, rest)) = bytes.split_first() else { break };
        let taken = match letter {
            b'A' | b'F' | b'S' | b'x' => {
                let Some(inner) = sized(rest) else { break };
                if matches!(letter, b'A' | b'F') {
                    deepest = deepest.max(depth(inner, *letter == b'F', so_far + 1));
                }
                4 + inner.len()
            }
            b'V' => 0,
            b't' | b'b' | b'B' => 1,
            b's' | b'U' | b'u' => 2,
            b'I' | b'i' | b'f' => 4,
            b'D' => 5,
            b'L' | b'l' | b'd' | b'T' => 8,
            _ => break,
        };
        let Some(after) = rest.get(taken..) else { break };
        bytes = after;
    }
    deepest
}
