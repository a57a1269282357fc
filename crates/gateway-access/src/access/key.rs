//! API key `nsk_<id>_<secret>`, its id, and the hash that is kept of it.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroizing;

const PREFIX: &str = "nsk_";
const ID_CHARACTERS: usize = 8;
const SECRET_CHARACTERS: usize = 43;
const KEY_CHARACTERS: usize = PREFIX.len() + ID_CHARACTERS + 1 + SECRET_CHARACTERS;
/// Base 32 of Crockford in lowercase, without letters that are mistaken for others.
const ID_ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const HASH_CONTEXT: &str = "nsbridge/1 api key";

/// API key in plain text. It is wiped on drop and never printed by `Debug`.
///
/// ```
/// use nsbridge_gateway_access::{ApiKey, Entry};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = ApiKey::generate()?;
/// let entry = Entry::new(&key, "acme".parse()?);
/// assert!(key.reveal().starts_with(&format!("nsk_{}_", entry.id)));
/// assert!(!format!("{key:?} {entry:?}").contains(key.reveal()));
/// # Ok(())
/// # }
/// ```
pub struct ApiKey {
    id: ApiKeyId,
    text: Zeroizing<String>,
}

impl ApiKey {
    /// Generates a key. Its [`Entry`](super::Entry) for the API key file holds a hash, so this is the
    /// only time that the plain text is known.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system provides no random bytes.
    pub fn generate() -> Result<Self, NoRandomness> {
        let mut secret = Zeroizing::new([0; 32]);
        let mut id = [0; ID_CHARACTERS];
        getrandom::fill(secret.as_mut_slice()).map_err(|_| NoRandomness)?;
        getrandom::fill(&mut id).map_err(|_| NoRandomness)?;
        let id = ApiKeyId(id.map(|byte| ID_ALPHABET[usize::from(byte & 31)]));
        // Reserved at once, because growth would leave copies of the secret in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(KEY_CHARACTERS));
        let _ = write!(text, "{PREFIX}{id}_");
        URL_SAFE_NO_PAD.encode_string(secret.as_slice(), &mut text);
        Ok(Self { id, text })
    }

    /// Parses the text of a key; `None` if it has another form.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let id = ApiKeyId::from_str(id).ok()?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (secret.len() == SECRET_CHARACTERS && secret.bytes().all(plain))
            .then(|| Self { id, text: Zeroizing::new(text.to_owned()) })
    }

    /// Returns the id of the key, which is not secret.
    pub fn id(&self) -> ApiKeyId {
        self.id
    }

    /// Returns the plain text, to be shown once to the holder of the key.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    pub(super) fn hash(&self) -> KeyHash {
        KeyHash(blake3::derive_key(HASH_CONTEXT, self.text.as_bytes()))
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({PREFIX}{}_..)", self.id)
    }
}

/// Error of an operating system that provides no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system provides no random bytes for an API key")]
pub struct NoRandomness;

/// Id of an API key: 8 characters that name the key in the file, in logs and in metrics.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiKeyId([u8; ID_CHARACTERS]);

impl ApiKeyId {
    /// Id of the caller where no key is asked for. No key has it: its letters are not in the
    /// alphabet of ids.
    pub(super) const OPEN: Self = Self(*b"loopback");
}

impl FromStr for ApiKeyId {
    type Err = InvalidApiKeyId;

    fn from_str(text: &str) -> Result<Self, InvalidApiKeyId> {
        let bytes =
            <[u8; ID_CHARACTERS]>::try_from(text.as_bytes()).map_err(|_| InvalidApiKeyId)?;
        let known = bytes.iter().all(|byte| ID_ALPHABET.contains(byte));
        if known { Ok(Self(bytes)) } else { Err(InvalidApiKeyId) }
    }
}

impl fmt::Display for ApiKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| f.write_char(char::from(*byte)))
    }
}

impl fmt::Debug for ApiKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeyId({self})")
    }
}

/// Error of a text that is not the id of an API key. It does not quote the text, which may be a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of an API key has 8 digits or lowercase letters without i, l, o and u")]
pub struct InvalidApiKeyId;

/// Hash of an API key. It is compared in constant time only.
#[derive(Clone)]
pub(super) struct KeyHash([u8; 32]);

impl KeyHash {
    /// Hash that stands in for the hash of an unknown key.
    pub(super) const DUMMY: Self = Self([0x5a; 32]);

    /// Reads 64 hex digits; `None` for any other text.
    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let hash = blake3::Hash::from_hex(text).ok()?;
        Some(Self(*hash.as_bytes()))
    }

    pub(super) fn to_hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    pub(super) fn matches(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::super::file::Entry;
    use super::{ApiKey, ApiKeyId, KeyHash};

    fn generate() -> (ApiKey, Entry) {
        let key = ApiKey::generate().unwrap();
        let entry = Entry::new(&key, "acme".parse().unwrap());
        (key, entry)
    }

    #[test]
    fn a_generated_key_has_the_form_that_is_parsed_and_its_entry_knows_it() {
        let (key, entry) = generate();
        let text = key.reveal();
        assert_eq!(text.len(), 56, "{text}");
        let again = ApiKey::parse(text).unwrap();
        assert_eq!((again.id(), again.id()), (key.id(), entry.id));
        assert!(bool::from(again.hash().matches(&entry.hash)));
        let (other, _) = generate();
        assert!(other.id() != key.id() && other.reveal() != text);
        assert!(!bool::from(other.hash().matches(&entry.hash)));
    }

    #[test]
    fn the_hash_of_a_key_is_the_derived_key_of_its_whole_text() {
        let text = format!("nsk_0123abcd_{}", "A".repeat(43));
        let hash = ApiKey::parse(&text).unwrap().hash();
        let mut hasher = blake3::Hasher::new_derive_key("nsbridge/1 api key");
        hasher.update(text.as_bytes());
        assert_eq!(hash.to_hex(), hasher.finalize().to_hex().as_str());
        let again = KeyHash::from_hex(&hash.to_hex()).unwrap();
        assert!(bool::from(again.matches(&hash)));
    }

    #[test]
    fn debug_shows_neither_key_nor_hash() {
        let (key, entry) = generate();
        let secret = key.reveal().get(13..).unwrap();
        let shown = format!("{key:?} {entry:?} {:?}", key.hash());
        assert!(!shown.contains(secret) && !shown.contains(&entry.hash.to_hex()), "{shown}");
        assert!(shown.contains(&key.id().to_string()), "{shown}");
    }

    #[track_caller]
    fn check_malformed(text: &str) {
        assert!(ApiKey::parse(text).is_none(), "{text}");
    }

    #[test]
    fn a_text_of_another_form_is_no_key() {
        let secret = "A".repeat(43);
        check_malformed("");
        check_malformed("nsk_");
        check_malformed("nsk_0123abcd");
        check_malformed("nsk_0123abcd_");
        check_malformed(&format!("sk-0123abcd_{secret}"));
        check_malformed(&format!("nsk_0123abc_{secret}"));
        check_malformed(&format!("nsk_0123abcde_{secret}"));
        check_malformed(&format!("nsk_0123ABCD_{secret}"));
        check_malformed(&format!("nsk_0123abci_{secret}"));
        check_malformed(&format!("nsk_0123abcd_{secret}A"));
        check_malformed(&format!("nsk_0123abcd_{}=", "A".repeat(42)));
        check_malformed(&format!("nsk_0123abcd_{}é", "A".repeat(41)));
        assert!(ApiKey::parse(&format!("nsk_0123abcd_{}_-", "A".repeat(41))).is_some());
    }

    #[test]
    fn no_key_has_the_id_of_a_gateway_without_keys() {
        assert!(ApiKeyId::OPEN.to_string().parse::<ApiKeyId>().is_err());
    }

    #[test]
    fn a_hash_of_another_length_or_alphabet_is_refused() {
        assert!(KeyHash::from_hex(&"0".repeat(64)).is_some());
        for bad in ["", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64)] {
            assert!(KeyHash::from_hex(bad).is_none(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in any::<String>(), tail in "nsk_[0-9a-z_]{0,60}") {
            let _ = ApiKey::parse(&text);
            if let Some(key) = ApiKey::parse(&tail) {
                assert_eq!(key.reveal(), tail);
            }
        }
    }
}
