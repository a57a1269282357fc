//! Key schedule: HKDF-SHA-512 (RFC 5869) from a key to all material that a frame needs.

use std::fmt;

use hkdf::Hkdf;
use sha2::{Digest, Sha512};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::aead::Cipher;
use crate::error::{Error, Result};
use crate::key::Salt;

/// Key commitment of a frame, so that no ciphertext opens under two keys.
///
/// Without it, partitioning oracles are possible (Len, Grubbs, Ristenpart, USENIX Security 2021).
pub(crate) type Commitment = [u8; 32];

/// Secret from which the keys of all reply streams and control frames of one copy of a request are
/// derived. Each process that can open the copy knows it.
#[derive(Clone)]
pub struct ReplyRoot(pub(crate) Zeroizing<[u8; 32]>);

impl ReplyRoot {
    /// Returns the number in the name of the run record, for a copy whose replies go to `reply_to`.
    pub fn run_record(&self, reply_to: &str) -> u128 {
        run_record(self, reply_to)
    }
}

impl fmt::Debug for ReplyRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyRoot(..)")
    }
}

/// Cipher and key commitment of one frame or of one reply stream.
pub(crate) struct FrameKey {
    pub(crate) cipher: Cipher,
    pub(crate) commitment: Commitment,
}

impl FrameKey {
    /// Compares the commitment in constant time and returns the cipher, before anything is
    /// decrypted.
    pub(crate) fn verify(self, commitment: &Commitment) -> Result<Cipher> {
        if bool::from(self.commitment.ct_eq(commitment)) {
            Ok(self.cipher)
        } else {
            Err(Error::WrongKey)
        }
    }
}

/// Derives the keys of a request from its header up to the commitment.
pub(crate) fn request(key: &[u8; 32], salt: &Salt, header: &[u8]) -> (FrameKey, ReplyRoot) {
    let hash = Sha512::digest(header);
    let prk = extract(salt, key);
    let frame = frame_key(&*expand::<76>(&prk, &[b"nsbridge/1 request\0", &hash]));
    let root = expand::<32>(&prk, &[b"nsbridge/1 reply-root\0", &hash]);
    (frame, ReplyRoot(root))
}

/// Derives the key and the id of one reply stream. An attempt may open several streams, each with a
/// salt of its own.
pub(crate) fn reply(
    root: &ReplyRoot,
    salt: &Salt,
    request: &[u8; 16],
    attempt: u32,
) -> (FrameKey, [u8; 16]) {
    let prk = extract(salt, &root.0);
    let info: [&[u8]; 3] = [b"nsbridge/1 reply\0", request, &attempt.to_be_bytes()];
    let material = expand::<92>(&prk, &info);
    let mut stream = [0; 16];
    stream.copy_from_slice(&material[76..]);
    (frame_key(&material[..76]), stream)
}

/// Derives the key of one control frame.
pub(crate) fn control(root: &ReplyRoot, salt: &Salt, request: &[u8; 16], kind: u8) -> FrameKey {
    let prk = extract(salt, &root.0);
    frame_key(&*expand::<76>(&prk, &[b"nsbridge/1 control\0", request, &[kind]]))
}

/// Derives the number of the run record of a request whose replies go to `reply_to`.
///
/// It depends on the reply root, so only parties that can open the request know the record's name.
pub(crate) fn run_record(root: &ReplyRoot, reply_to: &str) -> u128 {
    let prk = extract(&Salt([0; 32]), &root.0);
    u128::from_be_bytes(*expand::<16>(&prk, &[b"nsbridge/1 runs\0", reply_to.as_bytes()]))
}

/// Derives a tenant's key for one model from a master key, which the tenant never receives.
pub(crate) fn tenant(master: &[u8; 32], tenant: &str, model: &str) -> Zeroizing<[u8; 32]> {
    let prk = extract(&Salt([0; 32]), master);
    let (t, m) = (tenant.as_bytes(), model.as_bytes());
    let length = |bytes: &[u8]| (bytes.len() as u32).to_be_bytes();
    expand(&prk, &[b"nsbridge/1 tenant\0", &length(t), t, &length(m), m])
}

/// Derives the eight-byte public check value of a key, which detects a wrongly pasted key in a
/// keyring.
pub(crate) fn check_value(key: &[u8; 32]) -> [u8; 8] {
    let prk = extract(&Salt([0; 32]), key);
    let mut value = [0; 8];
    value.copy_from_slice(&*expand::<8>(&prk, &[b"nsbridge/1 check value\0"]));
    value
}

fn extract(salt: &Salt, key: &[u8; 32]) -> Hkdf<Sha512> {
    Hkdf::new(Some(&salt.0), key)
}

fn expand<const N: usize>(prk: &Hkdf<Sha512>, info: &[&[u8]]) -> Zeroizing<[u8; N]> {
    let mut material = Zeroizing::new([0; N]);
    prk.expand_multi_info(info, &mut *material).expect("N is far below 255 hashes");
    material
}

/// Splits `key 32, base nonce 12, commitment 32`.
fn frame_key(material: &[u8]) -> FrameKey {
    let (key, rest) = material.split_first_chunk::<32>().expect("76 bytes of material");
    let (nonce, rest) = rest.split_first_chunk::<12>().expect("76 bytes of material");
    let commitment = *rest.first_chunk::<32>().expect("76 bytes of material");
    FrameKey { cipher: Cipher::new(key, *nonce), commitment }
}
