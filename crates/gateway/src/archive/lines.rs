//! Lines of a file, read chunk by chunk.

use std::fmt;

use nsbridge_gateway_replies::{DiskStore, Unstored};
use nsbridge_protocol::Uuid;

/// Line of a file that is not empty.
pub(crate) struct Line {
    /// Number of the line in its file, from 1.
    pub(crate) number: u64,
    /// Text without its end; `None` if it is longer than a line may be.
    pub(crate) text: Option<Vec<u8>>,
}

impl fmt::Debug for Line {
    /// Omits the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Reader of lines. It blocks.
pub(crate) struct Lines {
    store: DiskStore,
    file: Uuid,
    chunks: u64,
    longest: usize,
    /// Next chunk.
    chunk: u64,
    /// Bytes that were read, and the place in them.
    buffer: Vec<u8>,
    at: usize,
    number: u64,
}

impl fmt::Debug for Lines {
    /// Omits the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Lines {
    pub(super) fn new(store: DiskStore, file: Uuid, chunks: u64, longest: usize) -> Self {
        let (chunk, buffer, at, number) = (0, Vec::new(), 0, 0);
        Self { store, file, chunks, longest, chunk, buffer, at, number }
    }

    /// Returns the next line that is not empty.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    pub(crate) fn next(&mut self) -> Result<Option<Line>, Unstored> {
        loop {
            let text = match self.raw()? {
                Raw::End => return Ok(None),
                Raw::Long => None,
                Raw::Text(text) => Some(text),
            };
            self.number += 1;
            if text.as_ref().is_none_or(|text| !text.trim_ascii().is_empty()) {
                return Ok(Some(Line { number: self.number, text }));
            }
        }
    }

    fn raw(&mut self) -> Result<Raw, Unstored> {
        let (mut line, mut fits) = (Vec::new(), true);
        let ended = |line: Vec<u8>, fits: bool| if fits { Raw::Text(line) } else { Raw::Long };
        loop {
            let rest = self.buffer.get(self.at..).unwrap_or_default();
            if rest.is_empty() {
                if self.chunk >= self.chunks {
                    let is_end = line.is_empty() && fits;
                    return Ok(if is_end { Raw::End } else { ended(line, fits) });
                }
                self.buffer = self.store.chunk(self.file, self.chunk)?;
                (self.at, self.chunk) = (0, self.chunk + 1);
                continue;
            }
            let end = rest.iter().position(|byte| *byte == b'\n');
            let part = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
            fits = fits && line.len() + part.len() <= self.longest;
            if fits {
                line.extend_from_slice(part);
            } else {
                line.clear();
            }
            self.at += part.len() + usize::from(end.is_some());
            if end.is_some() {
                return Ok(ended(line, fits));
            }
        }
    }
}

/// Line as it is in the file.
enum Raw {
    End,
    /// Line that is longer than a line may be.
    Long,
    Text(Vec<u8>),
}
