//! Padded plaintext of a frame: `u8 content type, u32 length, content, zeros` to a multiple of 64.
//!
//! The padding hides the length of single tokens, which otherwise reveals much of a text (Weiss et
//! al., "What Was Your Prompt?", 2024). It does not hide the total length.

use crate::error::{Error, Result};

/// Granularity of plaintext lengths in bytes.
const BUCKET: usize = 64;

/// Number of bytes before the content.
const PREFIX: usize = 5;

/// Format of a frame's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ContentType {
    /// Content as it is: JSON, the body of a resume, or nothing.
    Plain = 1,
    /// Piece list.
    Pieces = 2,
}

/// Appends a padded plaintext to `frame`; `write` appends the content.
pub(crate) fn write(
    frame: &mut Vec<u8>,
    content_type: ContentType,
    limit: usize,
    write: impl FnOnce(&mut Vec<u8>),
) -> Result<()> {
    let start = frame.len();
    frame.extend([content_type as u8, 0, 0, 0, 0]);
    write(frame);
    let bytes = frame.len() - start - PREFIX;
    if bytes > limit {
        return Err(Error::Oversized { bytes, limit });
    }
    frame[start + 1..start + PREFIX].copy_from_slice(&(bytes as u32).to_be_bytes());
    let padded = (PREFIX + bytes).next_multiple_of(BUCKET);
    frame.resize(start + padded, 0);
    Ok(())
}

/// Extracts content type and content from an opened plaintext.
pub(crate) fn strip(mut text: Vec<u8>) -> Result<(ContentType, Vec<u8>)> {
    const MALFORMED: Error = Error::Malformed { what: "the padding does not fit the content" };
    let prefix = *text.first_chunk::<PREFIX>().ok_or(MALFORMED)?;
    let content_type = match prefix[0] {
        1 => ContentType::Plain,
        2 => ContentType::Pieces,
        _ => return Err(Error::Unsupported { what: "content type" }),
    };
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    let padding = text.get(PREFIX + length..).ok_or(MALFORMED)?;
    if !text.len().is_multiple_of(BUCKET) || padding.iter().any(|byte| *byte != 0) {
        return Err(MALFORMED);
    }
    text.truncate(PREFIX + length);
    text.drain(..PREFIX);
    Ok((content_type, text))
}

/// Extracts the content of a plaintext whose content type must be plain.
pub(crate) fn strip_plain(text: Vec<u8>) -> Result<Vec<u8>> {
    match strip(text)? {
        (ContentType::Plain, content) => Ok(content),
        (ContentType::Pieces, _) => Err(Error::Unsupported { what: "content type" }),
    }
}
