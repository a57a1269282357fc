//! Reading and writing of header fields.

use crate::error::{Error, Result};

/// Protocol version in every frame.
pub(crate) const VERSION: u8 = 1;

/// Cipher suite HKDF-SHA-512, AES-256-GCM with key commitment: the only one of version 1.
pub(crate) const SUITE: u8 = 1;

/// Reader of header fields from the front of a frame, which tracks its position.
pub(crate) struct Cursor<'a> {
    frame: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Checks `magic, version, suite` and returns a cursor after them.
    pub(crate) fn after_magic(frame: &'a [u8], magic: [u8; 4]) -> Result<Self> {
        let mut cursor = Self { frame, at: 0 };
        if cursor.take("magic")? != magic {
            return Err(Error::Malformed { what: "the magic is another" });
        }
        if cursor.byte("version")? != VERSION {
            return Err(Error::Unsupported { what: "version" });
        }
        if cursor.byte("suite")? != SUITE {
            return Err(Error::Unsupported { what: "suite" });
        }
        Ok(cursor)
    }

    /// Returns the number of bytes read so far.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let bytes = self.slice(N, what)?;
        Ok(*bytes.first_chunk().expect("slice() gave N bytes"))
    }

    pub(crate) fn byte(&mut self, what: &'static str) -> Result<u8> {
        self.take::<1>(what).map(|[byte]| byte)
    }

    pub(crate) fn no_flags(&mut self) -> Result<()> {
        if self.byte("flags")? == 0 { Ok(()) } else { Err(Error::Unsupported { what: "flags" }) }
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64> {
        self.take(what).map(u64::from_be_bytes)
    }

    pub(crate) fn text(&mut self, what: &'static str) -> Result<&'a str> {
        let length = usize::from(self.byte(what)?);
        std::str::from_utf8(self.slice(length, what)?).map_err(|_| Error::Malformed { what })
    }

    pub(crate) fn slice(&mut self, length: usize, what: &'static str) -> Result<&'a [u8]> {
        let end = self.at.checked_add(length).ok_or(Error::Malformed { what })?;
        let bytes = self.frame.get(self.at..end).ok_or(Error::Malformed { what })?;
        self.at = end;
        Ok(bytes)
    }
}

/// Appends `u8 length, text`. The callers' types limit a text to 255 bytes.
pub(crate) fn push_text(frame: &mut Vec<u8>, text: &str) {
    frame.push(u8::try_from(text.len()).expect("names are at most 255 bytes"));
    frame.extend(text.as_bytes());
}
