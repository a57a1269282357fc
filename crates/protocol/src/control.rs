//! Control frames: messages from a client to a worker about a running request.

use serde::{Deserialize, Serialize};

use crate::id::Fingerprint;
use crate::pieces::Pieces;

/// Kind of a control frame.
///
/// ```
/// use nsbridge_protocol::ControlKind;
///
/// assert_eq!(ControlKind::from_byte(1), Some(ControlKind::Resume));
/// assert_eq!(ControlKind::from_byte(9), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ControlKind {
    /// Request to stop the work.
    Cancel = 0,
    /// Request to continue after the pieces that the client already has.
    Resume = 1,
}

impl ControlKind {
    /// Returns the kind that this byte stands for, if there is one.
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Cancel),
            1 => Some(Self::Resume),
            _ => None,
        }
    }
}

/// Content of a `resume` frame: the pieces of the reply that the client already holds.
///
/// Wire format: `u32 header length, header JSON, piece list`. The pieces stay bytes this way.
///
/// ```
/// use nsbridge_protocol::{Pieces, Resume};
///
/// let pieces = Pieces { first: 0, pieces: vec![b"\"Once\"".to_vec()] };
/// let resume = Resume { fingerprint: None, pieces };
/// assert_eq!(Resume::decode(&resume.encode()), Some(resume));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Fingerprint of the attempt that made the pieces. A worker with another one starts at piece
    /// 0.
    pub fingerprint: Option<Fingerprint>,
    /// Pieces, from index 0.
    pub pieces: Pieces,
}

#[derive(Serialize, Deserialize)]
struct Header {
    fingerprint: Option<Fingerprint>,
    n: usize,
}

impl Resume {
    /// Encodes the content of the control frame.
    pub fn encode(&self) -> Vec<u8> {
        let header = Header { fingerprint: self.fingerprint, n: self.pieces.len() };
        let header = serde_json::to_vec(&header).expect("a flat struct is always JSON");
        let mut body = (header.len() as u32).to_be_bytes().to_vec();
        body.extend(header);
        body.extend(self.pieces.encode());
        body
    }

    /// Decodes the content of a control frame; returns `None` if it is not a resume from piece 0.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let (length, rest) = body.split_first_chunk::<4>()?;
        let (header, pieces) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        let header: Header = serde_json::from_slice(header).ok()?;
        let pieces = Pieces::decode(pieces).ok()?;
        (pieces.first == 0 && pieces.len() == header.n)
            .then_some(Self { fingerprint: header.fingerprint, pieces })
    }
}

#[cfg(test)]
mod tests {
    use super::{Fingerprint, Pieces, Resume};

    #[test]
    fn a_resume_survives_the_wire_and_a_cut_one_is_refused() {
        let resume = Resume {
            fingerprint: Some(Fingerprint([7; 16])),
            pieces: Pieces { first: 0, pieces: vec![b"a".to_vec(), b"bc".to_vec()] },
        };
        let body = resume.encode();
        assert_eq!(Resume::decode(&body), Some(resume));
        for end in 0..body.len() {
            assert_eq!(Resume::decode(&body[..end]), None, "cut at {end}");
        }
    }
}
