//! Values at rest, sealed under a key of the process that stores them.

use std::fmt;

use hkdf::Hkdf;
use nsbridge_base::random::bytes;
use sha2::Sha512;

use crate::aead::Cipher;
use crate::error::{Error, Result};
use crate::key::Key;

/// Size of a value's salt, in bytes.
const SALT: usize = 32;

/// Sealer of stored values.
///
/// Each value has a random salt, from which its key and nonce are derived, so that any number of
/// values can be sealed. A value opens only at its place: an attacker who can write to the storage
/// cannot exchange values.
///
/// ```
/// use nsbridge_crypto::{AtRest, Key};
///
/// # fn main() -> nsbridge_crypto::Result<()> {
/// let storage = AtRest::new(Key::generate()?);
/// let sealed = storage.seal(b"row 1", b"text")?;
/// assert_eq!(storage.open(b"row 1", &sealed)?, b"text");
/// assert!(storage.open(b"row 2", &sealed).is_err());
/// # Ok(())
/// # }
/// ```
pub struct AtRest(Key);

impl AtRest {
    /// Creates the sealer of a key.
    pub fn new(key: Key) -> Self {
        Self(key)
    }

    /// Seals a value of the place `place`. The result is 48 bytes longer than the value.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system provides no randomness.
    pub fn seal(&self, place: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        let salt = bytes::<SALT>().map_err(|_| Error::NoRandomness)?;
        let mut sealed = [salt.as_slice(), value].concat();
        self.cipher(&salt, place)?.seal(0, SALT, &mut sealed)?;
        Ok(sealed)
    }

    /// Opens a value of the place `place`.
    ///
    /// # Errors
    ///
    /// Returns an error if the value was sealed under another key, for another place, or was
    /// changed.
    pub fn open(&self, place: &[u8], sealed: &[u8]) -> Result<Vec<u8>> {
        let cut = Error::Malformed { what: "a stored value without its salt" };
        let (salt, _) = sealed.split_first_chunk::<SALT>().ok_or(cut)?;
        self.cipher(salt, place)?.open(0, SALT, sealed)
    }

    fn cipher(&self, salt: &[u8; SALT], place: &[u8]) -> Result<Cipher> {
        let mut out = zeroize::Zeroizing::new([0; 44]);
        let info = [b"nsbridge/1 at rest\0".as_slice(), place];
        let derived = Hkdf::<Sha512>::new(Some(salt), self.0.bytes());
        derived
            .expand_multi_info(&info, out.as_mut_slice())
            .map_err(|_| Error::Malformed { what: "a key of this length" })?;
        let (key, base) = out.split_first_chunk::<32>().ok_or(Error::Tampered)?;
        let base = base.first_chunk::<12>().ok_or(Error::Tampered)?;
        Ok(Cipher::new(key, *base))
    }
}

impl fmt::Debug for AtRest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtRest(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::{AtRest, Key};

    #[test]
    fn a_value_opens_under_its_key_at_its_place_unchanged_and_nowhere_else() {
        let storage = AtRest::new(Key::from_bytes([1; 32]));
        let sealed = storage.seal(b"a", b"text").unwrap();
        assert_eq!(storage.open(b"a", &sealed).unwrap(), b"text");
        assert_ne!(storage.seal(b"a", b"text").unwrap(), sealed);
        assert!(storage.open(b"b", &sealed).is_err());
        assert!(AtRest::new(Key::from_bytes([2; 32])).open(b"a", &sealed).is_err());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(storage.open(b"a", &changed).is_err(), "byte {at}");
            assert!(storage.open(b"a", &sealed[..at]).is_err(), "cut at {at}");
        }
    }
}
