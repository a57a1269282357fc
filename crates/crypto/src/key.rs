//! Key bytes, which are wiped on drop and never printed.

use std::fmt;

use nsbridge_base::random::bytes;
use nsbridge_protocol::KeyId;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::error::{Error, Result};

/// 256-bit key from a keyring or a key service.
///
/// ```
/// use nsbridge_crypto::Key;
///
/// let key = Key::generate()?;
/// assert_eq!(format!("{key:?}"), "Key(..)");
/// assert!(key != Key::generate()?);
/// # Ok::<(), nsbridge_crypto::Error>(())
/// ```
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

/// 256 random bits that make a derived key unique.
///
/// A salt is public. It is drawn at the moment of use, because a prepared pool would repeat in a
/// forked or snapshotted process.
///
/// ```
/// use nsbridge_crypto::Salt;
///
/// assert_ne!(Salt::fresh()?, Salt::fresh()?);
/// # Ok::<(), nsbridge_crypto::Error>(())
/// ```
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

/// Origin of a request's key, as named in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Provider {
    /// Keyring that client and worker both hold.
    Keyring = 0,
    /// AWS KMS: the frame carries a wrapped data key.
    Kms = 1,
}

impl Provider {
    pub(crate) fn from_byte(byte: u8) -> Result<Self> {
        match byte {
            0 => Ok(Self::Keyring),
            1 => Ok(Self::Kms),
            _ => Err(Error::Unsupported { what: "key provider" }),
        }
    }
}

/// Key for sealing a request.
#[derive(Clone, Debug)]
pub struct DataKey {
    /// Id of the key, which goes into the header.
    pub id: KeyId,
    /// Key bytes.
    pub key: Key,
    /// Provider from which a worker obtains the key.
    pub provider: Provider,
    /// Key as wrapped by its provider, for the header; empty for a keyring key.
    pub wrapped: Vec<u8>,
}

impl DataKey {
    /// Creates a data key from a keyring key.
    pub fn of_keyring(id: KeyId, key: Key) -> Self {
        Self { id, key, provider: Provider::Keyring, wrapped: Vec::new() }
    }
}

fn random() -> Result<[u8; 32]> {
    bytes().map_err(|_| Error::NoRandomness)
}
