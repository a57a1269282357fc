//! Pieces of a reply, one after another in one buffer.

use nsbridge_protocol::{ErrorCode, Failure, MAX_TRANSCRIPT_BYTES};

/// Bytes that the protocol counts for the length of a piece, in addition to the piece.
const LENGTH_BYTES: usize = 4;

/// Pieces of a reply, at most as many as the protocol allows.
///
/// The merge compares later attempts with them, and the caller reads them from the position that it
/// has reached. A piece takes its own bytes and four more, however small it is.
#[derive(Default)]
pub(crate) struct PieceLog {
    bytes: Vec<u8>,
    /// End of each piece in `bytes`.
    ends: Vec<u32>,
}

impl PieceLog {
    /// Creates the log of these pieces. Returns `None` if no reply can have as many.
    pub(crate) fn of(pieces: &[Vec<u8>]) -> Option<Self> {
        let mut log = Self::default();
        pieces.iter().all(|piece| log.push(piece)).then_some(log)
    }

    /// Returns the number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the size of the first `pieces` pieces in bytes.
    pub(crate) fn bytes(&self, pieces: usize) -> usize {
        pieces.checked_sub(1).and_then(|last| self.ends.get(last)).map_or(0, |end| *end as usize)
    }

    /// Returns a piece by its index.
    pub(crate) fn get(&self, index: usize) -> Option<&[u8]> {
        (index < self.len()).then(|| &self.bytes[self.bytes(index)..self.bytes(index + 1)])
    }

    /// Appends a piece. Returns false if the reply would be larger than any reply is.
    pub(crate) fn push(&mut self, piece: &[u8]) -> bool {
        let end = self.bytes.len() + piece.len();
        let counted = end + LENGTH_BYTES * (self.len() + 1);
        let Some(end) = u32::try_from(end).ok().filter(|_| counted <= MAX_TRANSCRIPT_BYTES) else {
            return false;
        };
        self.bytes.extend_from_slice(piece);
        self.ends.push(end);
        true
    }

    /// Drops the pieces after the first `kept`.
    pub(crate) fn truncate(&mut self, kept: usize) {
        self.bytes.truncate(self.bytes(kept.min(self.len())));
        self.ends.truncate(kept);
    }

    /// Returns a copy of all pieces.
    pub(crate) fn to_vec(&self) -> Vec<Vec<u8>> {
        (0..self.len()).filter_map(|index| self.get(index).map(<[u8]>::to_vec)).collect()
    }

    /// Returns the memory that the log takes, in bytes.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity() + size_of::<u32>() * self.ends.capacity()
    }
}

/// Failure of a reply that is larger than any reply may be. Its worker breaks the protocol.
pub(crate) fn too_large() -> Failure {
    let message = format!("the reply has more than {MAX_TRANSCRIPT_BYTES} bytes");
    Failure::new(ErrorCode::ReplyTooLarge, message)
}

#[cfg(test)]
mod tests {
    use nsbridge_protocol::MAX_TRANSCRIPT_BYTES;
    use proptest::prelude::{any, prop, proptest};

    use super::PieceLog;

    proptest! {
        #[test]
        fn a_log_is_a_list_of_pieces(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..20),
            kept in 0..25_usize,
            more in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..5),
        ) {
            let mut log = PieceLog::of(&pieces).unwrap();
            assert_eq!((log.len(), log.to_vec()), (pieces.len(), pieces.clone()));
            let mut list = pieces;
            list.truncate(kept);
            list.extend(more.clone());
            log.truncate(kept);
            assert!(more.iter().all(|piece| log.push(piece)));
            assert_eq!(log.to_vec(), list);
            for count in 0..=list.len() {
                assert_eq!(log.bytes(count), list[..count].concat().len());
            }
            assert_eq!(log.get(list.len()), None);
        }
    }

    #[test]
    fn a_log_ends_where_the_protocol_ends_a_reply_and_takes_little_more_memory() {
        for size in [0, 1, 27, 1 << 16] {
            let (mut log, piece) = (PieceLog::default(), vec![b'x'; size]);
            while log.push(&piece) {}
            assert_eq!(log.len(), MAX_TRANSCRIPT_BYTES / (size + 4), "pieces of {size} bytes");
            // A buffer that grows has at most twice its content.
            assert!(log.memory() <= 2 * MAX_TRANSCRIPT_BYTES, "{}", log.memory());
            log.truncate(1);
            assert!(log.push(&piece), "there is room again");
        }
    }
}
