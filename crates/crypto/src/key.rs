//! Key bytes: wiped when dropped, never shown.

use std::fmt;

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::{Error, Result, derive};

/// A 256-bit key of a keyring or a key service.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; 32]>);

impl Key {
    /// The key with these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// A new key from the operating system's randomness.
    ///
    /// # Errors
    ///
    /// [`Error::NoRandomness`].
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

/// What all replies to one request are sealed under: shared by its client and its worker.
#[derive(Clone)]
pub struct ReplyRoot(pub(crate) Zeroizing<[u8; 32]>);

impl ReplyRoot {
    /// The number in the name of the queue that records the request's runs, for a copy whose
    /// replies go to `reply_to`.
    pub fn run_record(&self, reply_to: &str) -> u128 {
        derive::run_record(self, reply_to)
    }
}

impl fmt::Debug for ReplyRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyRoot(..)")
    }
}

/// 256 random bits that make a derived key unique. Public, and drawn when used: a pool that is
/// filled beforehand would repeat in a forked or snapshotted process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Salt(pub [u8; 32]);

impl Salt {
    /// Draws a salt.
    ///
    /// # Errors
    ///
    /// [`Error::NoRandomness`].
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
