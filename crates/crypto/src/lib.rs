//! Sealing and opening of version 1 frames, their key schedule and their key providers.
//!
//! This is the only crate that handles key bytes. A frame opens completely or not at all: no
//! plaintext is returned before its tag is verified. `docs/protocol.md` specifies the layout for
//! other languages, and `vectors/wire-v1.json` holds known answers to check an implementation
//! against.

#[cfg(test)]
mod additions;
mod aead;
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

pub use control::{ControlFrame, seal_control};
pub use error::{Error, Result};
pub use hint::{ErrorHint, seal_nothing};
pub use key::{Key, ReplyRoot, Salt};
pub use keyring::{Entry, Keyring, KeyringError, Reread, State, WatchedKeyring};
#[cfg(feature = "kms")]
pub use kms::KmsProvider;
pub use pad::ContentType;
pub use provider::{ByProvider, DataKey, KeyError, KeyProvider, Provider, Scope};
pub use reply::{Opened, Read, ReplyHead, ReplyKind, ReplyOpener, ReplySealer};
pub use request::{JobKey, OpenedRequest, RequestFrame, RequestHead, Sealed, seal_request};
