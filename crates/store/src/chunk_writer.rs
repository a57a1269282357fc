//! Destination of the bytes of a chunk, in the order in which they arrive.

use std::io;

use bytes::Bytes;
use nsbridge_handler::buffer::Segment;

use crate::digest::{ChunkHasher, Digest};

/// Number of bytes hashed at once: 256 KiB. It is enough for BLAKE3 to hash many leaves in parallel
/// and small enough to stay in the core's own cache.
const STEP: usize = 256 << 10;

/// Consecutive bytes of a chunk with one destination.
#[derive(Debug)]
pub(crate) enum Destination {
    /// Buffer segment that the bytes are written to.
    Into(Segment),
    /// Number of bytes that are read only because the digest covers them.
    Skip(u64),
}

/// Writes the bytes of a chunk straight to their destinations and hashes them on the way.
#[derive(Debug)]
pub(crate) struct ChunkWriter {
    destinations: Vec<Destination>,
    /// Index of the destination that is being filled.
    at: usize,
    /// Number of bytes of that destination that are filled.
    within: usize,
    /// Number of the latest bytes of this destination that are not hashed yet.
    fresh: usize,
    /// Scratch buffer for the latest bytes of a skipped destination.
    skipped: Vec<u8>,
    received: u64,
    expected: u64,
    hasher: Option<ChunkHasher>,
    /// Copy of the bytes, for the cache.
    kept: Option<Vec<Bytes>>,
}

impl ChunkWriter {
    pub(crate) fn new(destinations: Vec<Destination>, hasher: Option<ChunkHasher>) -> Self {
        let expected = destinations.iter().map(Destination::len).sum();
        let (at, within, fresh, received) = (0, 0, 0, 0);
        let skipped = Vec::new();
        Self { destinations, at, within, fresh, skipped, received, expected, hasher, kept: None }
    }

    /// Keeps a copy of the bytes that arrive.
    pub(crate) fn keep(&mut self) {
        self.kept = Some(Vec::new());
    }

    /// Returns the number of bytes received.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    pub(crate) fn is_full(&self) -> bool {
        self.received == self.expected
    }

    /// Returns the buffer for the next bytes; empty if the writer is full.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        while self
            .destinations
            .get(self.at)
            .is_some_and(|destination| destination.len() == self.within as u64)
        {
            (self.at, self.within) = (self.at + 1, 0);
        }
        let (fresh, within) = (self.fresh, self.within);
        match self.destinations.get_mut(self.at) {
            None => &mut [],
            Some(Destination::Into(segment)) => {
                let end = segment.len().min(within - fresh + STEP);
                if fresh == 0 && end - within == STEP {
                    segment.populate(within..end);
                }
                &mut segment[within..end]
            }
            Some(Destination::Skip(len)) => {
                let count = STEP.min((*len - (within - fresh) as u64) as usize);
                self.skipped.resize(count, 0);
                &mut self.skipped[fresh..]
            }
        }
    }

    /// Records that `count` bytes were written to the buffer of [`room`](Self::room).
    pub(crate) fn advance(&mut self, count: usize) {
        self.within += count;
        self.fresh += count;
        self.received += count as u64;
        let Some(destination) = self.destinations.get(self.at) else { return };
        if self.fresh < STEP && destination.len() > self.within as u64 {
            return;
        }
        let bytes = match destination {
            Destination::Into(segment) => &segment[self.within - self.fresh..self.within],
            Destination::Skip(_) => &self.skipped[..self.fresh],
        };
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        if let Some(kept) = &mut self.kept {
            kept.push(Bytes::copy_from_slice(bytes));
        }
        self.fresh = 0;
    }

    /// Writes bytes. Those for which there is no room are left out.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.is_full() {
            let room = self.room();
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            self.advance(count);
            bytes = &bytes[count..];
        }
    }

    /// Fills the rest of the writer from a reader.
    pub(crate) fn fill(&mut self, reader: &mut impl io::Read) -> io::Result<()> {
        while !self.is_full() {
            match reader.read(self.room()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Discards all received bytes and starts again.
    pub(crate) fn rewind(&mut self) {
        (self.at, self.within, self.fresh, self.received) = (0, 0, 0, 0);
        if let Some(hasher) = &mut self.hasher {
            hasher.restart();
        }
        if let Some(kept) = &mut self.kept {
            kept.clear();
        }
    }

    /// Returns the digest of the received bytes if the writer hashes.
    pub(crate) fn digest(&self) -> Option<Digest> {
        self.hasher.as_ref().map(ChunkHasher::finish)
    }

    /// Takes the copy of the received bytes if it was kept.
    pub(crate) fn take_kept(&mut self) -> Option<Vec<Bytes>> {
        self.kept.take()
    }
}

impl Destination {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Into(segment) => segment.len() as u64,
            Self::Skip(len) => *len,
        }
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::Buffer;

    use super::{ChunkHasher, ChunkWriter, Destination, STEP};

    /// Reader that returns at most this many bytes a call.
    struct Slow<'a>(&'a [u8], usize);

    impl std::io::Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let most = into.len().min(self.1);
            self.0.read(&mut into[..most])
        }
    }

    fn writer(unit: usize) -> (nsbridge_handler::buffer::Filling, ChunkWriter) {
        let (filling, segments) = Buffer::filled_by(6 * unit, 1, &[2 * unit]).unwrap();
        let mut segments = segments.into_iter().map(Destination::Into);
        let (first, second) = (segments.next().unwrap(), segments.next().unwrap());
        let skip = |units: usize| Destination::Skip((units * unit) as u64);
        let destinations = vec![skip(3), first, skip(1), second, skip(2)];
        (filling, ChunkWriter::new(destinations, Some(ChunkHasher::new(0, true))))
    }

    fn content(unit: usize) -> Vec<u8> {
        b"...AB.CDEF..".iter().flat_map(|byte| vec![*byte; unit]).collect()
    }

    /// Fills a writer `at_once` bytes a call, after a failed first try, and compares the result.
    fn check(unit: usize, at_once: usize) {
        let (filling, mut writer) = writer(unit);
        let bytes = content(unit);
        writer.keep();
        assert!(writer.fill(&mut &b"torn"[..]).is_err());
        writer.rewind();
        // Interrupted and resumed.
        assert!(writer.fill(&mut Slow(&bytes[..bytes.len() / 2], at_once)).is_err());
        let came = writer.received() as usize;
        assert_eq!(came, bytes.len() / 2);
        writer.fill(&mut Slow(&bytes[came..], at_once)).unwrap();
        assert!(writer.is_full() && writer.room().is_empty());
        assert_eq!(writer.digest(), Some(blake3::hash(&bytes).into()));
        assert_eq!(writer.take_kept().unwrap().concat(), bytes);
        drop(writer);
        let wanted: Vec<u8> = bytes.into_iter().filter(|byte| *byte != b'.').collect();
        assert!(*filling.finish().unwrap() == *wanted);
    }

    #[test]
    fn bytes_that_come_in_any_way_reach_their_places_and_the_digest_covers_all() {
        (1..=12).for_each(|at_once| check(1, at_once));
        for unit in [STEP / 2, STEP - 1, STEP, STEP + 1] {
            [STEP / 3, STEP, usize::MAX].into_iter().for_each(|at_once| check(unit, at_once));
        }
    }
}
