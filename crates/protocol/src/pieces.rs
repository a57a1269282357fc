//! Piece list: the content of a data frame.

/// Run of consecutive pieces with the index of the first one (content type 2).
///
/// Wire format: `u32 first`, then `u32 length, bytes` for each piece, all big-endian.
///
/// ```
/// use nsbridge_protocol::Pieces;
///
/// let frame = Pieces { first: 2, pieces: vec![b"\"c\"".to_vec(), b"\"d\"".to_vec()] };
/// let content = frame.encode();
/// assert_eq!(&content[..4], [0, 0, 0, 2]);
/// assert_eq!(Pieces::decode(&content), Ok(frame));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// Index of the first piece within the reply, from 0.
    pub first: u32,
    /// Pieces, each serialized by the handler's output type.
    pub pieces: Vec<Vec<u8>>,
}

/// Error of a piece list whose lengths do not add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a piece list ends in the middle of a piece")]
pub struct MalformedPieces;

impl Pieces {
    /// Returns the number of pieces.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Returns true if the list holds no piece.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Encodes the list.
    pub fn encode(&self) -> Vec<u8> {
        let mut content = Vec::new();
        Self::write(&mut content, self.first, self.pieces.iter().map(Vec::as_slice));
        content
    }

    /// Appends a piece list to `content` without allocating a copy of the pieces.
    pub fn write<'a>(content: &mut Vec<u8>, first: u32, pieces: impl Iterator<Item = &'a [u8]>) {
        content.extend(first.to_be_bytes());
        for piece in pieces {
            content.extend((piece.len() as u32).to_be_bytes());
            content.extend(piece);
        }
    }

    /// Decodes a list.
    ///
    /// # Errors
    ///
    /// Returns [`MalformedPieces`] if the content does not end at the end of a piece.
    pub fn decode(content: &[u8]) -> Result<Self, MalformedPieces> {
        let (first, mut rest) = content.split_first_chunk::<4>().ok_or(MalformedPieces)?;
        let mut pieces = Vec::new();
        while !rest.is_empty() {
            let (length, tail) = rest.split_first_chunk::<4>().ok_or(MalformedPieces)?;
            let length = u32::from_be_bytes(*length) as usize;
            let (piece, tail) = tail.split_at_checked(length).ok_or(MalformedPieces)?;
            pieces.push(piece.to_vec());
            rest = tail;
        }
        Ok(Self { first: u32::from_be_bytes(*first), pieces })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::{MalformedPieces, Pieces};

    #[test]
    fn the_layout_is_what_the_protocol_says() {
        let frame = Pieces { first: 258, pieces: vec![b"ab".to_vec(), vec![]] };
        assert_eq!(frame.encode(), b"\0\0\x01\x02\0\0\0\x02ab\0\0\0\0");
        assert_eq!(Pieces::decode(b"\0\0\0\0\0\0\0\x09ab"), Err(MalformedPieces));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(
            first in any::<u32>(),
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20),
        ) {
            let frame = Pieces { first, pieces };
            assert_eq!(Pieces::decode(&frame.encode()), Ok(frame));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            drop(Pieces::decode(&bytes));
        }
    }
}
