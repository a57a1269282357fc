//! Sealed control frame `NSBC`: a message from a client to the worker of its own request.
//!
//! ```text
//!  0  4  "NSBC"     4 1 version   5 1 suite   6 1 kind   7 1 flags = 0
//!  8 16  request id             24 32 salt              56 32 commitment
//! 88     ciphertext, tag        all above is authenticated
//! ```

use nsbridge_protocol::{ControlKind, MAX_TRANSCRIPT_BYTES, RequestId};

use crate::derive::ReplyRoot;
use crate::error::{Error, Result};
use crate::key::Salt;
use crate::layout::{Cursor, SUITE, VERSION};
use crate::pad::ContentType;
use crate::{derive, pad};

const MAGIC: [u8; 4] = *b"NSBC";
const HEADER: usize = 88;

/// Maximum size of the content in bytes: the transcript in a resume, and its JSON header.
const MAX_CONTENT_BYTES: usize = MAX_TRANSCRIPT_BYTES + (64 << 10);

/// Seals a control frame with a fresh salt.
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
/// use nsbridge_crypto::{ControlFrame, seal_control};
/// use nsbridge_protocol::ControlKind;
///
/// let sealed = seal_request(&Key::generate()?, &head(), b"{}")?;
/// let cancel = seal_control(&sealed.reply_root, head().id, ControlKind::Cancel, b"")?;
/// let frame = ControlFrame::parse(&cancel)?;
/// assert_eq!(frame.kind, ControlKind::Cancel);
/// assert_eq!(frame.open(&sealed.reply_root)?, b"");
/// # Ok::<(), nsbridge_crypto::Error>(())
/// ```
///
/// # Errors
///
/// Returns [`Error::Oversized`] if the content is too large, or [`Error::NoRandomness`].
pub fn seal_control(
    root: &ReplyRoot,
    request: RequestId,
    kind: ControlKind,
    content: &[u8],
) -> Result<Vec<u8>> {
    seal_with_salt(root, request, kind, content, Salt::fresh()?)
}

pub(crate) fn seal_with_salt(
    root: &ReplyRoot,
    request: RequestId,
    kind: ControlKind,
    content: &[u8],
    salt: Salt,
) -> Result<Vec<u8>> {
    let keys = derive::control(root, &salt, request.as_bytes(), kind as u8);
    let mut frame = MAGIC.to_vec();
    frame.extend([VERSION, SUITE, kind as u8, 0]);
    frame.extend(request.as_bytes());
    frame.extend(salt.0);
    frame.extend(keys.commitment);
    pad::write(&mut frame, ContentType::Plain, MAX_CONTENT_BYTES, |out| out.extend(content))?;
    keys.cipher.seal(0, HEADER, &mut frame)?;
    Ok(frame)
}

/// Control frame as received, with an unverified header.
#[derive(Debug)]
pub struct ControlFrame<'a> {
    /// Request that the frame claims to concern.
    pub request: RequestId,
    /// Kind of the frame.
    pub kind: ControlKind,
    salt: Salt,
    commitment: derive::Commitment,
    frame: &'a [u8],
}

impl<'a> ControlFrame<'a> {
    /// Parses the header of a frame.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Malformed`] if the bytes are no control frame, or [`Error::Unsupported`] if
    /// a header field has an unknown value.
    pub fn parse(frame: &'a [u8]) -> Result<Self> {
        let mut fields = Cursor::after_magic(frame, MAGIC)?;
        let kind = ControlKind::from_byte(fields.byte("kind")?)
            .ok_or(Error::Unsupported { what: "kind of control frame" })?;
        fields.no_flags()?;
        let request = RequestId::from_bytes(fields.take("request id")?);
        let salt = Salt(fields.take("salt")?);
        let commitment = fields.take("commitment")?;
        Ok(Self { request, kind, salt, commitment, frame })
    }

    /// Opens the frame and returns its content. Only a holder of the reply root can have sealed it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::WrongKey`] if another key sealed the frame, [`Error::Tampered`] if it was
    /// changed, and [`Error::Malformed`] or [`Error::Unsupported`] if padding or content type is
    /// invalid.
    pub fn open(&self, root: &ReplyRoot) -> Result<Vec<u8>> {
        let keys = derive::control(root, &self.salt, self.request.as_bytes(), self.kind as u8);
        let cipher = keys.verify(&self.commitment)?;
        pad::strip_plain(cipher.open(0, HEADER, self.frame)?)
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_protocol::{ControlKind, RequestId, topology};

    use super::{ControlFrame, seal_control};
    use crate::derive::ReplyRoot;
    use crate::error::Error;

    const ID: RequestId = RequestId(uuid(1));

    const fn uuid(byte: u8) -> nsbridge_protocol::Uuid {
        nsbridge_protocol::Uuid::from_bytes([byte; 16])
    }

    #[test]
    fn only_the_requests_own_root_opens_a_control_frame() {
        let (mine, other) = (ReplyRoot([1; 32].into()), ReplyRoot([2; 32].into()));
        let frame = seal_control(&mine, ID, ControlKind::Cancel, b"body").unwrap();
        let control = ControlFrame::parse(&frame).unwrap();
        assert_eq!((control.request, control.kind), (ID, ControlKind::Cancel));
        assert_eq!(control.open(&mine).unwrap(), b"body");
        assert_eq!(control.open(&other), Err(Error::WrongKey));
    }

    #[test]
    fn the_longest_control_frame_is_let_through_by_the_queue() {
        let root = ReplyRoot([1; 32].into());
        let seal = |bytes| seal_control(&root, ID, ControlKind::Resume, &vec![7; bytes]);
        assert!(seal(super::MAX_CONTENT_BYTES).unwrap().len() <= topology::CONTROL_BODY);
        assert!(seal(super::MAX_CONTENT_BYTES + 1).is_err());
    }

    #[test]
    fn a_changed_or_cut_control_frame_is_refused() {
        let root = ReplyRoot([1; 32].into());
        let frame = seal_control(&root, ID, ControlKind::Cancel, b"body").unwrap();
        for bit in 0..frame.len() * 8 {
            let mut changed = frame.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let opened = ControlFrame::parse(&changed).and_then(|frame| frame.open(&root));
            assert!(opened.is_err(), "bit {bit}");
        }
        for end in 0..frame.len() {
            let opened = ControlFrame::parse(&frame[..end]).and_then(|frame| frame.open(&root));
            assert!(opened.is_err(), "cut at {end}");
        }
    }
}
