//! `NSBQ`: a sealed request.
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

use crate::key::Provider;
use crate::layout::{Cursor, SUITE, VERSION, push_text};
use crate::{ContentType, DataKey, Error, Key, ReplyRoot, Result, Salt, derive, pad};

const MAGIC: [u8; 4] = *b"NSBQ";
const MAX_WRAPPED: usize = 4 << 10;

/// The authenticated head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// The request's identifier, the same for every copy of it.
    pub id: RequestId,
    /// When it was sealed, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// When it must be finished, in milliseconds since 1970.
    pub expires_at_ms: u64,
    /// The model it is for.
    pub model: ModelName,
    /// Who it is for.
    pub tenant: Tenant,
    /// The key it is sealed with.
    pub key_id: KeyId,
}

/// A copy of a request: its identifier and the salt of its sealing.
///
/// One request may be sealed and enqueued twice; each copy is a job of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobKey {
    /// The request.
    pub id: RequestId,
    /// The sealing.
    pub salt: Salt,
}

/// A request ready to be published, and what opens its replies.
#[derive(Debug)]
pub struct Sealed {
    /// The frame. On a publish retry these same bytes are sent again; nothing is sealed twice.
    pub frame: Vec<u8>,
    /// What opens its replies.
    pub reply_root: ReplyRoot,
    /// The copy this is.
    pub job_key: JobKey,
}

/// Seals a request under a keyring key, with a fresh salt.
///
/// # Errors
///
/// [`Error::Oversized`] beyond [`MAX_REQUEST_BYTES`], or [`Error::NoRandomness`].
pub fn seal_request(key: &Key, head: &RequestHead, content: &[u8]) -> Result<Sealed> {
    let key = DataKey::of_keyring(head.key_id.clone(), key.clone());
    seal_with_salt(&key, Salt::fresh()?, head, content)
}

impl DataKey {
    /// Seals a request under this key, with a fresh salt. The head must name this key.
    ///
    /// # Errors
    ///
    /// [`Error::Oversized`] beyond [`MAX_REQUEST_BYTES`], [`Error::Malformed`] if the wrapped key
    /// is longer than a header holds, or [`Error::NoRandomness`].
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

/// A request as it came: parsed, nothing in it to be believed before it is opened.
#[derive(Debug)]
pub struct RequestFrame<'a> {
    head: RequestHead,
    salt: Salt,
    provider: Provider,
    wrapped: &'a [u8],
    /// Where the commitment starts.
    unkeyed: usize,
    commitment: derive::Commitment,
    frame: &'a [u8],
}

impl<'a> RequestFrame<'a> {
    /// Reads the header of a frame.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`], [`Error::Unsupported`] or [`Error::Oversized`].
    pub fn parse(frame: &'a [u8]) -> Result<Self> {
        // The longest header, the padding and the tag fit beside the content.
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

    /// The head, as claimed by whoever sent the frame.
    pub fn head(&self) -> &RequestHead {
        &self.head
    }

    /// Which copy this claims to be.
    pub fn job_key(&self) -> JobKey {
        JobKey { id: self.head.id, salt: self.salt }
    }

    /// The commitment: it binds identifier, salt and the rest of the header to the key, once the
    /// frame was opened.
    pub fn commitment(&self) -> [u8; 32] {
        self.commitment
    }

    /// Where the key is to come from.
    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// The key as its provider wrapped it; empty for a keyring.
    pub fn wrapped_key(&self) -> &'a [u8] {
        self.wrapped
    }

    /// Opens the frame: from here on its head can be believed.
    ///
    /// # Errors
    ///
    /// [`Error::WrongKey`] or [`Error::Tampered`].
    pub fn open(&self, key: &Key) -> Result<OpenedRequest> {
        let (keys, reply_root) =
            derive::request(key.bytes(), &self.salt, &self.frame[..self.unkeyed]);
        let cipher = keys.verify(&self.commitment)?;
        let text = cipher.open(0, self.unkeyed + self.commitment.len(), self.frame)?;
        let content = pad::strip_plain(text)?;
        let job_key = self.job_key();
        Ok(OpenedRequest { head: self.head.clone(), job_key, reply_root, content })
    }

    /// What can be told to a client of a frame that did not open, if it was this key's: the reply
    /// keys depend on the header alone, so a changed ciphertext still has them.
    pub fn reply_root(&self, key: &Key) -> Option<ReplyRoot> {
        let (keys, root) = derive::request(key.bytes(), &self.salt, &self.frame[..self.unkeyed]);
        keys.verify(&self.commitment).ok().map(|_| root)
    }
}

fn name<T: std::str::FromStr>(fields: &mut Cursor<'_>, what: &'static str) -> Result<T> {
    fields.text(what)?.parse().map_err(|_| Error::Malformed { what })
}

/// A request that was opened.
pub struct OpenedRequest {
    /// Its head, authenticated.
    pub head: RequestHead,
    /// Which copy it is.
    pub job_key: JobKey,
    /// What its replies are sealed under.
    pub reply_root: ReplyRoot,
    /// What it carries.
    pub content: Vec<u8>,
}

impl std::fmt::Debug for OpenedRequest {
    /// Tells the content's size only.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenedRequest")
            .field("head", &self.head)
            .field("bytes", &self.content.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
