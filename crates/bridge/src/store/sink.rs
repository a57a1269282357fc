//! Where the bytes of a chunk go, in the order in which they come.

use std::io;

use bytes::Bytes;
use nsbridge_handler::buffer::Segment;

use super::digest::{ChunkHasher, Digest};

/// What is skipped is read into a buffer of this size where it cannot be left out.
const SKIPPED_AT_ONCE: usize = 256 << 10;

/// A stretch of a chunk.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Wanted: it goes here.
    Into(Segment),
    /// Read only because the digest covers it.
    Skip(u64),
}

/// Takes the bytes of a chunk straight to their places, and hashes them as they pass.
#[derive(Debug)]
pub(crate) struct Sink {
    pieces: Vec<Piece>,
    /// The piece that is being filled, and how far.
    at: usize,
    within: u64,
    received: u64,
    expected: u64,
    hasher: Option<ChunkHasher>,
    /// The frames as they came, for the cache.
    kept: Option<Vec<Bytes>>,
}

/// More bytes came than were asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

impl Sink {
    pub(crate) fn new(pieces: Vec<Piece>, hasher: Option<ChunkHasher>) -> Self {
        let expected = pieces.iter().map(Piece::len).sum();
        Self { pieces, at: 0, within: 0, received: 0, expected, hasher, kept: None }
    }

    /// Keeps the frames too.
    pub(crate) fn keep(&mut self) {
        self.kept = Some(Vec::new());
    }

    /// How many bytes have come.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    pub(crate) fn is_full(&self) -> bool {
        self.received == self.expected
    }

    /// Takes the next bytes.
    pub(crate) fn push(&mut self, frame: Bytes) -> Result<(), TooMany> {
        if frame.len() as u64 > self.expected - self.received {
            return Err(TooMany);
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&frame);
        }
        let mut rest = &frame[..];
        while !rest.is_empty() {
            let count = match self.current() {
                Some(Place::Into(into)) => {
                    let count = into.len().min(rest.len());
                    into[..count].copy_from_slice(&rest[..count]);
                    count
                }
                Some(Place::Skip(left)) => left.min(rest.len() as u64) as usize,
                None => return Err(TooMany),
            };
            self.within += count as u64;
            rest = &rest[count..];
        }
        self.received += frame.len() as u64;
        if let Some(kept) = &mut self.kept {
            kept.push(frame);
        }
        Ok(())
    }

    /// Fills what is left from a reader, without a buffer between.
    pub(crate) fn fill(&mut self, reader: &mut impl io::Read) -> io::Result<()> {
        let mut skipped = Vec::new();
        while !self.is_full() {
            let hasher = &mut self.hasher;
            let place = match self.pieces.get_mut(self.at) {
                Some(piece) if piece.len() == self.within => {
                    (self.at, self.within) = (self.at + 1, 0);
                    continue;
                }
                Some(Piece::Into(segment)) => &mut segment[self.within as usize..],
                Some(Piece::Skip(len)) => {
                    skipped.resize(SKIPPED_AT_ONCE.min((*len - self.within) as usize), 0);
                    &mut skipped[..]
                }
                None => return Ok(()),
            };
            // Hashed while it is still in the core's own cache.
            let most = place.len().min(SKIPPED_AT_ONCE);
            let count = match reader.read(&mut place[..most]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(hasher) = hasher {
                hasher.update(&place[..count]);
            }
            self.within += count as u64;
            self.received += count as u64;
        }
        Ok(())
    }

    /// Forgets what has come.
    pub(crate) fn rewind(&mut self) {
        (self.at, self.within, self.received) = (0, 0, 0);
        if let Some(hasher) = &mut self.hasher {
            hasher.restart();
        }
        if let Some(kept) = &mut self.kept {
            kept.clear();
        }
    }

    /// The digest of what has come, if one was to be made.
    pub(crate) fn digest(&self) -> Option<Digest> {
        self.hasher.as_ref().map(ChunkHasher::finish)
    }

    /// The frames, if they were kept.
    pub(crate) fn take_kept(&mut self) -> Option<Vec<Bytes>> {
        self.kept.take()
    }

    fn current(&mut self) -> Option<Place<'_>> {
        while self.pieces.get(self.at)?.len() == self.within {
            (self.at, self.within) = (self.at + 1, 0);
        }
        Some(match &mut self.pieces[self.at] {
            Piece::Into(segment) => Place::Into(&mut segment[self.within as usize..]),
            Piece::Skip(len) => Place::Skip(*len - self.within),
        })
    }
}

enum Place<'a> {
    Into(&'a mut [u8]),
    Skip(u64),
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
    use bytes::Bytes;
    use nsbridge_handler::Buffer;

    use super::{ChunkHasher, Piece, Sink, TooMany};

    fn sink() -> (nsbridge_handler::buffer::Filling, Sink) {
        let (filling, segments) = Buffer::filled_by(6, 1, &[2]).unwrap();
        let mut segments = segments.into_iter().map(Piece::Into);
        let (first, second) = (segments.next().unwrap(), segments.next().unwrap());
        let pieces = vec![Piece::Skip(3), first, Piece::Skip(1), second, Piece::Skip(2)];
        (filling, Sink::new(pieces, Some(ChunkHasher::new(0, true))))
    }

    const BYTES: &[u8] = b"...AB.CDEF..";

    #[test]
    fn frames_of_any_size_reach_their_places_and_the_digest_covers_all() {
        for size in 1..=BYTES.len() {
            let (filling, mut sink) = sink();
            sink.push(Bytes::from_static(b"torn")).unwrap();
            sink.rewind();
            for frame in BYTES.chunks(size) {
                sink.push(Bytes::from_static(frame)).unwrap();
            }
            assert!(sink.is_full());
            assert_eq!(sink.digest(), Some(blake3::hash(BYTES).into()));
            assert_eq!(sink.push(Bytes::from_static(b"x")), Err(TooMany));
            drop(sink);
            assert_eq!(&*filling.finish().unwrap(), b"ABCDEF");
        }
    }

    #[test]
    fn a_reader_fills_the_same_places() {
        let (filling, mut sink) = sink();
        sink.push(Bytes::from_static(&BYTES[..4])).unwrap();
        sink.fill(&mut &BYTES[4..]).unwrap();
        assert_eq!(sink.digest(), Some(blake3::hash(BYTES).into()));
        drop(sink);
        assert_eq!(&*filling.finish().unwrap(), b"ABCDEF");
        let (_filling, mut short) = self::sink();
        assert!(short.fill(&mut &BYTES[..5]).is_err());
    }
}
