//! Text buffer with a maximum size.

use std::io::{Error, Result, Write};

/// Output of a template.
#[derive(Debug)]
pub(super) struct Capped {
    bytes: Vec<u8>,
    most: usize,
    full: bool,
}

impl Capped {
    /// Creates a buffer of at most `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), most, full: false }
    }

    /// Returns true if a write exceeded the maximum.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// Returns the text, or `None` if it is not UTF-8.
    pub(super) fn text(self) -> Option<String> {
        String::from_utf8(self.bytes).ok()
    }
}

impl Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        if bytes.len() > self.most - self.bytes.len() {
            self.full = true;
            return Err(Error::other("the text is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
