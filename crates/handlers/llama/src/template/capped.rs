//! A text that refuses to grow beyond its bound.

use std::io::{Error, Result, Write};

/// What a template has written.
#[derive(Debug)]
pub(super) struct Capped {
    bytes: Vec<u8>,
    most: usize,
    full: bool,
}

impl Capped {
    /// A text of at most so many bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), most, full: false }
    }

    /// Whether more was to be written than it may have.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// The text, if it is one.
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
