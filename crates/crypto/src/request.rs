//! Sealed request frame `NSBQ`.
//!
//! ```text
//!  0  4  "NSBQ"     4 1 version   5 1 suite   6 1 provider   7 1 flags = 0
//!  8 16  request id             24 32 salt
//! 56  8  created, unix ms       64  8 finish by, unix ms
//! 72     model, tenant, key id: each u8 length + UTF-8
//!  ..    wrapped key: u16 length + bytes
//!  .. 32 commitment             all above is authenticated
//!  ..    ciphertext, tag
//! ```

use nsbridge_protocol::topology::REQUEST_BODY;
use nsbridge_protocol::{KeyId, MAX_REQUEST_BYTES, ModelName, RequestId, Tenant};

use crate::derive::ReplyRoot;
use crate::error::{Error, Result};
use crate::key::{DataKey, Key, Provider, Salt};
use crate::layout::{Cursor, SUITE, VERSION, push_text};
use crate::pad::ContentType;
use crate::{derive, pad};

const MAGIC: [u8; 4] = *b"NSBQ";
const MAX_WRAPPED: usize = 4 << 10;

/// Authenticated header fields of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Request id, the same for every copy of the request.
    pub id: RequestId,
    /// Time of sealing, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Finish-by time, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
    /// Model that the request is for.
    pub model: ModelName,
    /// Tenant that the request belongs to.
    pub tenant: Tenant,
    /// Key that seals the request.
    pub key_id: KeyId,
}

/// Identity of one copy of a request: request id and salt.
///
/// A request may be sealed and enqueued more than once. Each copy is separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobKey {
    /// Request id.
    pub id: RequestId,
    /// Salt of the sealing.
    pub salt: Salt,
}

/// Sealed request, ready to be published.
#[derive(Debug)]
#[non_exhaustive]
pub struct Sealed {
    /// Sealed frame. A publish retry sends these same bytes; the request is not sealed again.
    pub frame: Vec<u8>,
    /// Secret that opens the replies.
    pub reply_root: ReplyRoot,
    /// Identity of this copy.
    pub job_key: JobKey,
}

/// Seals a request under a keyring key, with a fresh salt.
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
/// use nsbridge_crypto::RequestFrame;
///
/// let key = Key::generate()?;
/// let sealed = seal_request(&key, &head(), b"{}")?;
/// let frame = RequestFrame::parse(&sealed.frame)?;
/// assert_eq!(frame.open(&key)?.content, b"{}");
/// assert!(frame.open(&Key::generate()?).is_err());
/// # Ok::<(), nsbridge_crypto::Error>(())
/// ```
///
/// # Errors
///
/// Returns [`Error::Oversized`] if the content exceeds [`MAX_REQUEST_BYTES`], or
/// [`Error::NoRandomness`].
pub fn seal_request(key: &Key, head: &RequestHead, content: &[u8]) -> Result<Sealed> {
    let key = DataKey::of_keyring(head.key_id.clone(), key.clone());
    seal_with_salt(&key, Salt::fresh()?, head, content)
}

impl DataKey {
    /// Seals a request under this key, with a fresh salt. The head must name this key.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Oversized`] if the content exceeds [`MAX_REQUEST_BYTES`],
    /// [`Error::Malformed`] if the wrapped key is longer than a header allows, or
    /// [`Error::NoRandomness`].
    pub fn seal(&self, head: &RequestHead, content: &[u8]) -> Result<Sealed> {
        seal_with_salt(self, Salt::fresh()?, head, content)
    }
}

fn seal_with_salt(
    data: &DataKey,
    salt: Salt,
    head: &RequestHead,
    content: &[u8],
) -> Result<Sealed> {
    let length = u16::try_from(data.wrapped.len()).ok();
    let length = length.filter(|length| usize::from(*length) <= MAX_WRAPPED);
    let length = length.ok_or(Error::Malformed { what: "wrapped key" })?;
    let mut frame = MAGIC.to_vec();
    frame.extend([VERSION, SUITE, data.provider as u8, 0]);
    frame.extend(head.id.as_bytes());
    frame.extend(salt.0);
    frame.extend(head.created_at_ms.to_be_bytes());
    frame.extend(head.expires_at_ms.to_be_bytes());
    push_text(&mut frame, head.model.as_str());
    push_text(&mut frame, head.tenant.as_str());
    push_text(&mut frame, head.key_id.as_str());
    frame.extend(length.to_be_bytes());
    frame.extend(&data.wrapped);
    let (keys, reply_root) = derive::request(data.key.bytes(), &salt, &frame);
    frame.extend(keys.commitment);
    let header = frame.len();
    pad::write(&mut frame, ContentType::Plain, MAX_REQUEST_BYTES, |out| out.extend(content))?;
    keys.cipher.seal(0, header, &mut frame)?;
    Ok(Sealed { frame, reply_root, job_key: JobKey { id: head.id, salt } })
}

/// Parsed request frame. Its fields are claims until the frame is opened.
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
/// use nsbridge_crypto::{Error, RequestFrame};
///
/// let key = Key::generate()?;
/// let mut frame = seal_request(&key, &head(), b"{}")?.frame;
/// assert_eq!(RequestFrame::parse(&frame)?.head().model.as_str(), "tale-7m");
/// *frame.last_mut().unwrap() ^= 1;
/// assert_eq!(RequestFrame::parse(&frame)?.open(&key).unwrap_err(), Error::Tampered);
/// # Ok::<(), nsbridge_crypto::Error>(())
/// ```
#[derive(Debug)]
pub struct RequestFrame<'a> {
    head: RequestHead,
    salt: Salt,
    provider: Provider,
    wrapped: &'a [u8],
    /// Offset of the commitment, which is the length of the unkeyed header.
    unkeyed: usize,
    commitment: derive::Commitment,
    frame: &'a [u8],
}

impl<'a> RequestFrame<'a> {
    /// Parses the header of a frame.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Malformed`] if the bytes are no request frame, [`Error::Unsupported`] if a
    /// header field has an unknown value, and [`Error::Oversized`] if the frame is too large.
    pub fn parse(frame: &'a [u8]) -> Result<Self> {
        // This leaves space beside the content for the longest header, the padding and the tag.
        let limit = REQUEST_BODY;
        if frame.len() > limit {
            return Err(Error::Oversized { bytes: frame.len(), limit });
        }
        let mut fields = Cursor::after_magic(frame, MAGIC)?;
        let provider = Provider::from_byte(fields.byte("provider")?)?;
        fields.no_flags()?;
        let id = RequestId::from_bytes(fields.take("request id")?);
        let salt = Salt(fields.take("salt")?);
        let created_at_ms = fields.u64("created")?;
        let expires_at_ms = fields.u64("finish by")?;
        let model = name(&mut fields, "model name")?;
        let tenant = name(&mut fields, "tenant")?;
        let key_id = name(&mut fields, "key id")?;
        let length = usize::from(u16::from_be_bytes(fields.take("wrapped key")?));
        if length > MAX_WRAPPED || (provider == Provider::Keyring) != (length == 0) {
            return Err(Error::Malformed { what: "wrapped key" });
        }
        let wrapped = fields.slice(length, "wrapped key")?;
        let unkeyed = fields.position();
        let commitment = fields.take("commitment")?;
        let head = RequestHead { id, created_at_ms, expires_at_ms, model, tenant, key_id };
        Ok(Self { head, salt, provider, wrapped, unkeyed, commitment, frame })
    }

    /// Returns the header fields as claimed by the sender.
    pub fn head(&self) -> &RequestHead {
        &self.head
    }

    /// Returns the identity of the copy, as claimed by the sender.
    pub fn job_key(&self) -> JobKey {
        JobKey { id: self.head.id, salt: self.salt }
    }

    /// Returns the commitment.
    ///
    /// Once the frame is opened, it binds request id, salt and the rest of the header to the key.
    pub fn commitment(&self) -> [u8; 32] {
        self.commitment
    }

    /// Returns the provider that the key must come from.
    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// Returns the key as wrapped by its provider; empty for a keyring key.
    pub fn wrapped_key(&self) -> &'a [u8] {
        self.wrapped
    }

    /// Opens the frame, which authenticates its header.
    ///
    /// # Errors
    ///
    /// Returns [`Error::WrongKey`] if another key sealed the frame, [`Error::Tampered`] if it was
    /// changed, and [`Error::Malformed`] or [`Error::Unsupported`] if padding or content type is
    /// invalid.
    pub fn open(&self, key: &Key) -> Result<OpenedRequest> {
        let (keys, reply_root) =
            derive::request(key.bytes(), &self.salt, &self.frame[..self.unkeyed]);
        let cipher = keys.verify(&self.commitment)?;
        let text = cipher.open(0, self.unkeyed + self.commitment.len(), self.frame)?;
        let content = pad::strip_plain(text)?;
        let job_key = self.job_key();
        Ok(OpenedRequest { head: self.head.clone(), job_key, reply_root, content })
    }

    /// Derives the reply root of a frame; returns `None` if the frame was sealed with another key.
    ///
    /// This works for a frame that does not open, so that its client can receive an error: the
    /// reply keys depend on the header alone, so a changed ciphertext does not affect them.
    pub fn reply_root(&self, key: &Key) -> Option<ReplyRoot> {
        let (keys, root) = derive::request(key.bytes(), &self.salt, &self.frame[..self.unkeyed]);
        keys.verify(&self.commitment).ok().map(|_| root)
    }
}

fn name<T: std::str::FromStr>(fields: &mut Cursor<'_>, what: &'static str) -> Result<T> {
    fields.text(what)?.parse().map_err(|_| Error::Malformed { what })
}

/// Opened request.
#[non_exhaustive]
pub struct OpenedRequest {
    /// Authenticated header fields.
    pub head: RequestHead,
    /// Identity of the copy.
    pub job_key: JobKey,
    /// Secret that seals the replies.
    pub reply_root: ReplyRoot,
    /// Plaintext of the request.
    pub content: Vec<u8>,
}

impl std::fmt::Debug for OpenedRequest {
    /// Shows only the size of the content.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenedRequest")
            .field("head", &self.head)
            .field("bytes", &self.content.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
