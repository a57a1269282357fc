//! Sealed reply frame `NSBR`: one frame of a reply stream.
//!
//! ```text
//!  offset, size and field:
//!   0  4 "NSBR"        4  1 version       5 1 suite    6 1 kind    7 1 flags = 0
//!   8 16 request id   24 16 stream id    40 8 sequence number
//!     in an open only:   48 32 stream salt   80 4 attempt number   84 32 commitment
//!  ..    ciphertext, then the tag (16); the header above is the additional data
//! ```
//!
//! Every stream has its own key, derived with a fresh salt. One request may be answered by several
//! streams, of later attempts or after a lost connection. Two streams under one key would use each
//! nonce twice, which breaks AES-GCM.

use nsbridge_protocol::{AttemptNo, MAX_PIECE_BYTES, RequestId, StreamId};

use crate::aead::Cipher;
use crate::derive::ReplyRoot;
use crate::error::{Error, Result};
use crate::key::Salt;
use crate::layout::{Cursor, SUITE, VERSION};
use crate::pad::ContentType;
use crate::{derive, pad};

const MAGIC: [u8; 4] = *b"NSBR";
const HEADER: usize = 48;
const OPEN_HEADER: usize = 116;

/// End of the sequence numbers of a stream, exclusive, as the protocol sets it.
const SEQ_END: u64 = u32::MAX as u64;

/// Maximum size of a frame's content in bytes.
///
/// It leaves 64 KiB beyond the largest piece for a final frame's JSON or the lengths in a piece
/// list.
const MAX_CONTENT_BYTES: usize = MAX_PIECE_BYTES + (64 << 10);

/// Kind of a reply frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReplyKind {
    /// First frame of a stream: identifies the worker.
    Open = 0,
    /// Pieces of the reply.
    Data = 1,
    /// Sign of life while no pieces are ready.
    Heartbeat = 2,
    /// Last frame of a successful reply.
    FinalOk = 3,
    /// Last frame of a failed reply.
    FinalError = 4,
    /// Last frame of a stream whose worker hands the job over. Another attempt follows.
    Moved = 5,
}

impl ReplyKind {
    pub(crate) fn from_byte(byte: u8) -> Result<Self> {
        Ok(match byte {
            0 => Self::Open,
            1 => Self::Data,
            2 => Self::Heartbeat,
            3 => Self::FinalOk,
            4 => Self::FinalError,
            5 => Self::Moved,
            _ => return Err(Error::Unsupported { what: "kind of reply" }),
        })
    }
}

/// Header fields of a frame that is not opened yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    /// Kind of the frame.
    pub kind: ReplyKind,
    /// Request that the frame answers.
    pub request: RequestId,
    /// Stream that the frame belongs to.
    pub stream: StreamId,
    /// Sequence number within the stream.
    pub seq: u64,
}

impl ReplyHead {
    /// Parses the header of a frame.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Malformed`] if the bytes are no reply frame, or [`Error::Unsupported`] if a
    /// header field has an unknown value.
    pub fn parse(frame: &[u8]) -> Result<Self> {
        Self::read(&mut Cursor::after_magic(frame, MAGIC)?)
    }

    fn read(fields: &mut Cursor<'_>) -> Result<Self> {
        let kind = ReplyKind::from_byte(fields.byte("kind")?)?;
        fields.no_flags()?;
        let request = RequestId::from_bytes(fields.take("request id")?);
        let stream = StreamId(fields.take("stream id")?);
        let seq = fields.u64("sequence number")?;
        Ok(Self { kind, request, stream, seq })
    }
}

/// Sealer of one stream.
///
/// It owns the counter and cannot be copied, so no nonce is used twice. Sealing a final or `moved`
/// frame consumes it, so nothing can follow the last frame.
///
/// ```
/// # use nsbridge_crypto::{Key, RequestHead, seal_request};
/// # fn head() -> RequestHead {
/// #     RequestHead {
/// #         id: "0193a3a0-7b5e-7d4e-8c6f-0123456789ab".parse().unwrap(),
/// #         created_at_ms: 1_800_000_000_000,
/// #         expires_at_ms: 1_800_000_300_000,
/// #         model: "tale-7m".parse().unwrap(),
/// #         tenant: "acme".parse().unwrap(),
/// #         key_id: "2026-11".parse().unwrap(),
/// #     }
/// # }
/// use nsbridge_crypto::{ReplyHead, ReplyKind, ReplySealer};
/// use nsbridge_protocol::AttemptNo;
///
/// let root = seal_request(&Key::generate()?, &head(), b"{}")?.reply_root;
/// let (mut sealer, open) = ReplySealer::start(&root, head().id, AttemptNo(1), b"{}")?;
/// let beat = sealer.seal_heartbeat()?;
/// let last = sealer.seal_moved()?;
/// let kind = |frame: &[u8]| ReplyHead::parse(frame).map(|head| head.kind);
/// assert_eq!(kind(&open)?, ReplyKind::Open);
/// assert_eq!(kind(&beat)?, ReplyKind::Heartbeat);
/// assert_eq!(kind(&last)?, ReplyKind::Moved);
/// # Ok::<(), nsbridge_crypto::Error>(())
/// ```
pub struct ReplySealer {
    cipher: Cipher,
    request: RequestId,
    stream: StreamId,
    seq: u64,
}

impl ReplySealer {
    /// Starts a stream under a fresh salt. Returns the sealer and the encrypted first frame, the
    /// `open`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Oversized`] if the content is too large, or [`Error::NoRandomness`].
    pub fn start(
        root: &ReplyRoot,
        request: RequestId,
        attempt: AttemptNo,
        content: &[u8],
    ) -> Result<(Self, Vec<u8>)> {
        Self::start_with_salt(root, request, attempt, content, Salt::fresh()?)
    }

    pub(crate) fn start_with_salt(
        root: &ReplyRoot,
        request: RequestId,
        attempt: AttemptNo,
        content: &[u8],
        salt: Salt,
    ) -> Result<(Self, Vec<u8>)> {
        let (keys, stream) = derive::reply(root, &salt, request.as_bytes(), attempt.0);
        let stream = StreamId(stream);
        let mut sealer = Self { cipher: keys.cipher, request, stream, seq: 0 };
        let mut open_fields = salt.0.to_vec();
        open_fields.extend(attempt.0.to_be_bytes());
        open_fields.extend(keys.commitment);
        let write = |out: &mut Vec<u8>| out.extend(content);
        let frame = sealer.seal(ReplyKind::Open, &open_fields, ContentType::Plain, write)?;
        Ok((sealer, frame))
    }

    /// Returns the stream's identifier.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Seals a data frame. `write` appends its content, a piece list; padding is added after it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Oversized`] if the content is too large, or [`Error::Exhausted`] if no
    /// sequence number is left.
    pub fn seal_pieces(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<Vec<u8>> {
        self.seal(ReplyKind::Data, &[], ContentType::Pieces, write)
    }

    /// Seals a heartbeat.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Exhausted`] if no sequence number is left.
    pub fn seal_heartbeat(&mut self) -> Result<Vec<u8>> {
        self.seal(ReplyKind::Heartbeat, &[], ContentType::Plain, |_| ())
    }

    /// Seals the last frame of a successful reply.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Oversized`] if the content is too large, or [`Error::Exhausted`] if no
    /// sequence number is left.
    pub fn seal_final_ok(mut self, content: &[u8]) -> Result<Vec<u8>> {
        self.seal(ReplyKind::FinalOk, &[], ContentType::Plain, |out| out.extend(content))
    }

    /// Seals the last frame of a failed reply.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Oversized`] if the content is too large, or [`Error::Exhausted`] if no
    /// sequence number is left.
    pub fn seal_final_error(mut self, content: &[u8]) -> Result<Vec<u8>> {
        self.seal(ReplyKind::FinalError, &[], ContentType::Plain, |out| out.extend(content))
    }

    /// Seals the last frame of a stream that another attempt continues.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Exhausted`] if no sequence number is left.
    pub fn seal_moved(mut self) -> Result<Vec<u8>> {
        self.seal(ReplyKind::Moved, &[], ContentType::Plain, |_| ())
    }

    /// Seals the next frame: writes the header, appends the padded content, encrypts it in place
    /// under the next sequence number, and appends the tag. `open_fields` are the header fields that
    /// only an open frame has.
    pub(crate) fn seal(
        &mut self,
        kind: ReplyKind,
        open_fields: &[u8],
        content_type: ContentType,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Vec<u8>> {
        if self.seq >= SEQ_END {
            return Err(Error::Exhausted);
        }
        let mut frame = Vec::with_capacity(256);
        frame.extend(MAGIC);
        frame.extend([VERSION, SUITE, kind as u8, 0]);
        frame.extend(self.request.as_bytes());
        frame.extend(self.stream.0);
        frame.extend(self.seq.to_be_bytes());
        frame.extend(open_fields);
        let header_len = frame.len();
        pad::write(&mut frame, content_type, MAX_CONTENT_BYTES, write)?;
        self.cipher.seal(self.seq, header_len, &mut frame)?;
        self.seq += 1;
        Ok(frame)
    }
}

impl std::fmt::Debug for ReplySealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplySealer")
            .field("stream", &self.stream)
            .field("seq", &self.seq)
            .finish_non_exhaustive()
    }
}

/// Opener of one stream, frame by frame in order.
///
/// ```
/// # use nsbridge_crypto::{Key, RequestHead, seal_request};
/// # fn head() -> RequestHead {
/// #     RequestHead {
/// #         id: "0193a3a0-7b5e-7d4e-8c6f-0123456789ab".parse().unwrap(),
/// #         created_at_ms: 1_800_000_000_000,
/// #         expires_at_ms: 1_800_000_300_000,
/// #         model: "tale-7m".parse().unwrap(),
/// #         tenant: "acme".parse().unwrap(),
/// #         key_id: "2026-11".parse().unwrap(),
/// #     }
/// # }
/// use nsbridge_crypto::{Read, ReplyOpener, ReplySealer};
/// use nsbridge_protocol::AttemptNo;
///
/// let root = seal_request(&Key::generate()?, &head(), b"{}")?.reply_root;
/// let (mut sealer, open) = ReplySealer::start(&root, head().id, AttemptNo(1), b"{}")?;
/// let (first, second) = (sealer.seal_heartbeat()?, sealer.seal_heartbeat()?);
/// let (mut opener, _) = ReplyOpener::accept(&root, &open)?;
/// assert_eq!(opener.read(&second)?, Read::Gap);
/// assert!(matches!(opener.read(&first)?, Read::Frame(_)));
/// assert_eq!(opener.read(&first)?, Read::Duplicate);
/// # Ok::<(), nsbridge_crypto::Error>(())
/// ```
pub struct ReplyOpener {
    cipher: Cipher,
    request: RequestId,
    stream: StreamId,
    attempt: AttemptNo,
    next: u64,
    /// True after the last frame. No frame may follow.
    over: bool,
}

/// Opened frame.
#[derive(Clone, PartialEq, Eq)]
pub struct Opened {
    /// Kind of the frame.
    pub kind: ReplyKind,
    /// Format of the content.
    pub content_type: ContentType,
    /// Content.
    pub content: Vec<u8>,
}

impl std::fmt::Debug for Opened {
    /// Shows only the size of the content.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened")
            .field("kind", &self.kind)
            .field("bytes", &self.content.len())
            .finish_non_exhaustive()
    }
}

/// Outcome of reading a frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// Next frame of the stream.
    Frame(Opened),
    /// Frame whose sequence number was read before. It is not verified: the transport or a forger may
    /// have sent it.
    Duplicate,
    /// Authentic frame from further ahead. The frames in between are missing and may be sent again.
    Gap,
}

impl ReplyOpener {
    /// Verifies an open frame. Returns the opener and the frame's content.
    ///
    /// # Errors
    ///
    /// Returns [`Error::WrongKey`] if the stream answers another copy of the request,
    /// [`Error::Malformed`] if the bytes are no open frame, [`Error::Unsupported`] if a field has
    /// an unknown value, and [`Error::Tampered`] if the frame was changed.
    pub fn accept(root: &ReplyRoot, frame: &[u8]) -> Result<(Self, Vec<u8>)> {
        let mut fields = Cursor::after_magic(frame, MAGIC)?;
        let head = ReplyHead::read(&mut fields)?;
        if head.kind != ReplyKind::Open || head.seq != 0 {
            return Err(Error::Malformed { what: "the first frame of a stream must be an open" });
        }
        let salt = Salt(fields.take("stream salt")?);
        let attempt = u32::from_be_bytes(fields.take("attempt number")?);
        let commitment = fields.take("commitment")?;
        let (keys, stream) = derive::reply(root, &salt, head.request.as_bytes(), attempt);
        let cipher = keys.verify(&commitment)?;
        if stream != head.stream.0 {
            return Err(Error::Tampered);
        }
        let content = pad::strip_plain(cipher.open(0, OPEN_HEADER, frame)?)?;
        let ReplyHead { request, stream, .. } = head;
        let attempt = AttemptNo(attempt);
        Ok((Self { cipher, request, stream, attempt, next: 1, over: false }, content))
    }

    /// Returns the stream's identifier.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Returns the sequence number of the next frame to read.
    pub fn next_seq(&self) -> u64 {
        self.next
    }

    /// Returns the attempt that opened the stream.
    pub fn attempt(&self) -> AttemptNo {
        self.attempt
    }

    /// Opens a frame, if it is the next one of the stream. A frame with an earlier sequence number is
    /// not verified.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Malformed`] if the frame belongs to another stream, comes after the last
    /// frame or is a second open, [`Error::Unsupported`] if a field has an unknown value, and
    /// [`Error::Tampered`] if the frame was changed. The opener does not advance, so the authentic
    /// frame can still follow.
    pub fn read(&mut self, frame: &[u8]) -> Result<Read> {
        let head = ReplyHead::parse(frame)?;
        if head.request != self.request || head.stream != self.stream {
            return Err(Error::Malformed { what: "it belongs to another stream" });
        }
        if head.seq < self.next {
            return Ok(Read::Duplicate);
        }
        if self.over {
            return Err(Error::Malformed { what: "it comes after the last frame" });
        }
        if head.kind == ReplyKind::Open {
            return Err(Error::Malformed { what: "it is a second open" });
        }
        let (content_type, content) = pad::strip(self.cipher.open(head.seq, HEADER, frame)?)?;
        if head.seq > self.next {
            return Ok(Read::Gap);
        }
        self.next += 1;
        self.over = match head.kind {
            ReplyKind::FinalOk | ReplyKind::FinalError | ReplyKind::Moved => true,
            ReplyKind::Open | ReplyKind::Data | ReplyKind::Heartbeat => false,
        };
        Ok(Read::Frame(Opened { kind: head.kind, content_type, content }))
    }
}

impl std::fmt::Debug for ReplyOpener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplyOpener")
            .field("stream", &self.stream)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
