//! Sealing and opening of version 1 frames, their key schedule and their key providers.
//!
//! This is the only crate that handles key bytes. A frame opens completely or not at all: no
//! plaintext is returned before its tag is verified. `docs/protocol.md` specifies the layout for
//! other languages, and `vectors/wire-v1.json` holds known answers to check an implementation
//! against.
//!
//! | frame | sealed by | opened by |
//! |---|---|---|
//! | request `NSBQ` | [`seal_request`], [`DataKey::seal`] | [`RequestFrame`] |
//! | reply `NSBR` | [`ReplySealer`] | [`ReplyOpener`] |
//! | control `NSBC` | [`seal_control`] | [`ControlFrame`] |
//! | hint `NSBE`, unsealed | [`ErrorHint::encode`] | [`ErrorHint::parse`] |
//!
//! A [`KeyProvider`] gives the keys: a [`Keyring`] from a file, a [`WatchedKeyring`] that follows its
//! file, `KmsProvider` with the feature `kms`, or [`ByProvider`], which selects by the request's header.
//!
//! A client seals a request and keeps its reply root. A worker opens the request and seals the reply
//! under the same root. Any process that can open the request can open its reply:
//!
//! ```
//! use nsbridge_crypto::{Key, Read, ReplyOpener, ReplySealer, RequestFrame, RequestHead, seal_request};
//! use nsbridge_protocol::AttemptNo;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let key = Key::generate()?;
//! let head = RequestHead {
//!     id: "0193a3a0-7b5e-7d4e-8c6f-0123456789ab".parse()?,
//!     created_at_ms: 1_800_000_000_000,
//!     expires_at_ms: 1_800_000_300_000,
//!     model: "tale-7m".parse()?,
//!     tenant: "acme".parse()?,
//!     key_id: "2026-11".parse()?,
//! };
//! let sealed = seal_request(&key, &head, b"{}")?;
//!
//! // The worker.
//! let request = RequestFrame::parse(&sealed.frame)?.open(&key)?;
//! assert_eq!(request.content, b"{}");
//! let (reply, open) = ReplySealer::start(&request.reply_root, head.id, AttemptNo(1), b"hello")?;
//! let last = reply.seal_final_ok(b"the end")?;
//!
//! // The client.
//! let (mut opener, content) = ReplyOpener::accept(&sealed.reply_root, &open)?;
//! assert_eq!(content, b"hello");
//! let Read::Frame(last) = opener.read(&last)? else { panic!("it is the next frame") };
//! assert_eq!(last.content, b"the end");
//! # Ok(())
//! # }
//! ```

#[cfg(test)]
mod additions;
mod aead;
mod at_rest;
mod control;
mod derive;
mod error;
mod hint;
mod key;
mod keyring;
#[cfg(feature = "kms")]
mod kms;
mod layout;
mod pad;
mod provider;
mod reply;
mod request;

pub use at_rest::AtRest;
pub use control::{ControlFrame, seal_control};
pub use derive::ReplyRoot;
pub use error::{Error, Result};
pub use hint::ErrorHint;
pub use key::{DataKey, Key, Provider, Salt};
pub use keyring::{Entry, Keyring, KeyringError, Reread, State, WatchedKeyring};
#[cfg(feature = "kms")]
pub use kms::{KmsError, KmsProvider, KmsProviderBuilder};
#[cfg(feature = "kms")]
pub use nsbridge_aws::Credentials as AwsCredentials;
pub use pad::ContentType;
pub use provider::{ByProvider, KeyError, KeyProvider, Scope};
pub use reply::{Opened, Read, ReplyHead, ReplyKind, ReplyOpener, ReplySealer};
pub use request::{JobKey, OpenedRequest, RequestFrame, RequestHead, Sealed, seal_request};
