//! Destination of the bytes of a chunk, in the order in which they arrive.

use std::io;

use bytes::Bytes;
use nsbridge_handler::buffer::Segment;

use super::digest::{ChunkHasher, Digest};

/// Number of bytes hashed at once: 256 KiB. It is enough for BLAKE3 to hash many leaves in parallel
/// and small enough to stay in the core's own cache.
const STEP: usize = 256 << 10;

/// Consecutive bytes of a chunk with one destination.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Buffer segment that the bytes are written to.
    Into(Segment),
    /// Number of bytes that are read only because the digest covers them.
    Skip(u64),
}

/// Writes the bytes of a chunk straight to their destinations and hashes them on the way.
#[derive(Debug)]
pub(crate) struct Sink {
    pieces: Vec<Piece>,
    /// Index of the piece that is being filled.
    at: usize,
    /// Number of bytes of that piece that are filled.
    within: usize,
    /// Number of the latest bytes of this piece that are not hashed yet.
    fresh: usize,
    /// Scratch buffer for the latest bytes of a skipped piece.
    skipped: Vec<u8>,
    received: u64,
    expected: u64,
    hasher: Option<ChunkHasher>,
    /// Copy of the bytes, for the cache.
    kept: Option<Vec<Bytes>>,
}

impl Sink {
    pub(crate) fn new(pieces: Vec<Piece>, hasher: Option<ChunkHasher>) -> Self {
        let expected = pieces.iter().map(Piece::len).sum();
        let (at, within, fresh, received) = (0, 0, 0, 0);
        let skipped = Vec::new();
        Self { pieces, at, within, fresh, skipped, received, expected, hasher, kept: None }
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

    /// Returns the buffer for the next bytes; empty if the sink is full.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        while self.pieces.get(self.at).is_some_and(|piece| piece.len() == self.within as u64) {
            (self.at, self.within) = (self.at + 1, 0);
        }
        let (fresh, within) = (self.fresh, self.within);
        match self.pieces.get_mut(self.at) {
            None => &mut [],
            Some(Piece::Into(segment)) => {
                let end = segment.len().min(within - fresh + STEP);
                if fresh == 0 && end - within == STEP {
                    segment.populate(within..end);
                }
                &mut segment[within..end]
            }
            Some(Piece::Skip(len)) => {
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
        let Some(piece) = self.pieces.get(self.at) else { return };
        if self.fresh < STEP && piece.len() > self.within as u64 {
            return;
        }
        let bytes = match piece {
            Piece::Into(segment) => &segment[self.within - self.fresh..self.within],
            Piece::Skip(_) => &self.skipped[..self.fresh],
        };
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        if let Some(kept) = &mut self.kept {
            kept.push(Bytes::copy_from_slice(bytes));
        }
        self.fresh = 0;
    }

    /// Fills the rest of the sink from a reader.
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

    /// Returns the digest of the received bytes if the sink hashes.
    pub(crate) fn digest(&self) -> Option<Digest> {
        self.hasher.as_ref().map(ChunkHasher::finish)
    }

    /// Takes the copy of the received bytes if it was kept.
    pub(crate) fn take_kept(&mut self) -> Option<Vec<Bytes>> {
        self.kept.take()
    }
}

impl Piece {
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

    use super::{ChunkHasher, Piece, STEP, Sink};

    /// Reader that returns at most this many bytes a call.
    struct Slow<'a>(&'a [u8], usize);

    impl std::io::Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let most = into.len().min(self.1);
            self.0.read(&mut into[..most])
        }
    }

    fn sink(unit: usize) -> (nsbridge_handler::buffer::Filling, Sink) {
        let (filling, segments) = Buffer::filled_by(6 * unit, 1, &[2 * unit]).unwrap();
        let mut segments = segments.into_iter().map(Piece::Into);
        let (first, second) = (segments.next().unwrap(), segments.next().unwrap());
        let skip = |units: usize| Piece::Skip((units * unit) as u64);
        let pieces = vec![skip(3), first, skip(1), second, skip(2)];
        (filling, Sink::new(pieces, Some(ChunkHasher::new(0, true))))
    }

    fn content(unit: usize) -> Vec<u8> {
        b"...AB.CDEF..".iter().flat_map(|byte| vec![*byte; unit]).collect()
    }

    /// Fills a sink `at_once` bytes a call, after a failed first try, and compares the result.
    fn check(unit: usize, at_once: usize) {
        let (filling, mut sink) = sink(unit);
        let bytes = content(unit);
        sink.keep();
        assert!(sink.fill(&mut &b"torn"[..]).is_err());
        sink.rewind();
        // Interrupted and resumed.
        assert!(sink.fill(&mut Slow(&bytes[..bytes.len() / 2], at_once)).is_err());
        let came = sink.received() as usize;
        assert_eq!(came, bytes.len() / 2);
        sink.fill(&mut Slow(&bytes[came..], at_once)).unwrap();
        assert!(sink.is_full() && sink.room().is_empty());
        assert_eq!(sink.digest(), Some(blake3::hash(&bytes).into()));
        assert_eq!(sink.take_kept().unwrap().concat(), bytes);
        drop(sink);
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
