//! Key bytes, which are wiped on drop and never printed.

use std::fmt;

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::{Error, Result, derive};

/// 256-bit key from a keyring or a key service.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; 32]>);

impl Key {
    /// Creates a key from its bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Generates a key from the operating system's randomness.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoRandomness`] if the system provides no random bytes.
    pub fn generate() -> Result<Self> {
        random().map(Self::from_bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_slice().ct_eq(other.0.as_slice()).into()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Secret that seals all replies to one copy of a request, shared by its client and its worker.
#[derive(Clone)]
pub struct ReplyRoot(pub(crate) Zeroizing<[u8; 32]>);

impl ReplyRoot {
    /// Returns the number in the name of the run record, for a copy whose replies go to `reply_to`.
    pub fn run_record(&self, reply_to: &str) -> u128 {
        derive::run_record(self, reply_to)
    }
}

impl fmt::Debug for ReplyRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyRoot(..)")
    }
}

/// 256 random bits that make a derived key unique.
///
/// A salt is public. It is drawn at the moment of use, because a prepared pool would repeat in a
/// forked or snapshotted process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Salt(pub [u8; 32]);

impl Salt {
    /// Draws a salt.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoRandomness`] if the system provides no random bytes.
    pub fn fresh() -> Result<Self> {
        random().map(Self)
    }
}

impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "Salt({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|_| Error::NoRandomness)?;
    Ok(bytes)
}
