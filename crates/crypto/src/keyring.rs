//! Keyring file that clients and workers share.
//!
//! ```json
//! {"schema": 1, "keys": [{"id": "2026-11", "state": "primary", "key": "<base64, 32 bytes>",
//!   "check": "<16 hex digits>", "models": ["tale-7m"], "tenants": ["acme"], "derived": false}]}
//! ```
//!
//! `models` and `tenants` restrict the use of a key; absent means any. With `derived`, the key is a
//! master: each tenant holds only its own key for a model, derived from the master.

mod watched;

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nsbridge_protocol::{KeyId, ModelName, Tenant};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub use watched::{Reread, WatchedKeyring};

use crate::derive;
use crate::key::{DataKey, Key, Provider};
use crate::provider::{KeyError, KeyProvider, Scope};
use crate::request::RequestFrame;

/// Set of keys by id. Exactly one of them is primary and seals.
///
/// ```
/// use nsbridge_crypto::{Entry, Key, Keyring, State};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // During a rotation the old key still opens what it has sealed.
/// let new = Entry::new("2026-12".parse()?, Key::generate()?, State::Primary);
/// let old = Entry::new("2026-11".parse()?, Key::generate()?, State::Decrypt);
/// let keyring = Keyring::of(vec![new, old])?;
/// let again = Keyring::from_json(&keyring.to_json())?;
/// assert_eq!(again.entries().len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Keyring {
    entries: Vec<Entry>,
}

/// Key with its state and scope.
///
/// ```
/// use nsbridge_crypto::{Entry, Key, Scope, State};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut master = Entry::new("2026-11".parse()?, Key::generate()?, State::Primary);
/// master.is_master = true;
/// let scope = Scope { model: "tale-7m".parse()?, tenant: "acme".parse()? };
/// let acme = master.derive(&scope);
/// assert_eq!(acme.tenants, Some(vec![scope.tenant]));
/// assert_ne!(acme.check_value(), master.check_value());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Entry {
    /// Id of the key.
    pub id: KeyId,
    /// State of the key.
    pub state: State,
    /// Models that the key serves; `None` means any.
    pub models: Option<Vec<ModelName>>,
    /// Tenants that the key serves; `None` means any.
    pub tenants: Option<Vec<Tenant>>,
    /// True for a master key: each tenant holds only a key derived from it.
    pub is_master: bool,
    key: Key,
}

/// Permitted use of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// Seals and opens. Exactly one key of a keyring is primary.
    Primary,
    /// Opens only: before the key becomes primary everywhere, and afterwards.
    Decrypt,
    /// Neither seals nor opens.
    Disabled,
}

/// Error of a keyring that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyringError {
    /// File that does not exist.
    #[error("there is no keyring {0}: a client gets its file from the operator of the workers (`nsbridge keys \
         derive`), and `nsbridge keys generate --out {0}` makes a new one for workers", path.display())]
    Missing {
        /// Path of the file.
        path: PathBuf,
    },
    /// File that cannot be read.
    #[error("cannot read the keyring {}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// File that other users of this machine can access.
    #[error("the keyring {} can be read by others (mode {mode:o}): chmod 600 it", path.display())]
    Readable {
        /// Path of the file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// File that belongs to another user.
    #[error("the keyring {} belongs to user {owner}: change its owner to the user of this process", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        /// User id of the owner.
        owner: u32,
    },
    /// Text that is not a valid keyring.
    #[error("the keyring is not valid: {what}")]
    Invalid {
        /// Description of the error, without key bytes.
        what: String,
    },
}

impl Keyring {
    /// Loads a keyring file.
    ///
    /// # Errors
    ///
    /// Returns a [`KeyringError`] if the file is missing, unreadable or invalid, if other users can
    /// access it, or if it belongs to another user. All variants but [`KeyringError::Invalid`] name
    /// the file.
    pub fn load(path: &Path) -> Result<Self, KeyringError> {
        let io = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => KeyringError::Missing { path: path.to_owned() },
            _ => KeyringError::Io { path: path.to_owned(), source },
        };
        // The file is opened only once, so that the file that was checked is also the one that is
        // read.
        let mut file = fs::File::open(path).map_err(io)?;
        let status = file.metadata().map_err(io)?;
        let mode = status.permissions().mode() & 0o777;
        // Orchestrators mount a secret as a file of root that a group may read.
        let of_root = status.uid() == 0;
        if mode & if of_root { 0o037 } else { 0o077 } != 0 {
            return Err(KeyringError::Readable { path: path.to_owned(), mode });
        }
        // Root may read every user's file. For root, too, a keyring of another user is a mistake.
        let me = fs::metadata("/proc/self").map_or(status.uid(), |process| process.uid());
        if !of_root && status.uid() != me {
            return Err(KeyringError::Foreign { path: path.to_owned(), owner: status.uid() });
        }
        let mut text = Zeroizing::new(String::new());
        file.read_to_string(&mut text).map_err(io)?;
        Self::from_json(&text)
    }

    /// Parses the text of a keyring, for example from an ECS secret.
    ///
    /// # Errors
    ///
    /// Returns [`KeyringError::Invalid`], which never quotes the text.
    pub fn from_json(text: &str) -> Result<Self, KeyringError> {
        // Editors of Windows write a byte order mark.
        let text = text.trim_start_matches('\u{feff}');
        let file: File = serde_json::from_str(text).map_err(|error| {
            // serde's own message may quote a value, and a value may be a key.
            invalid(format!("line {}, column {} does not fit", error.line(), error.column()))
        })?;
        if file.schema != 1 {
            return Err(invalid(format!("schema {} is not known, only 1 is", file.schema)));
        }
        let entries = file.keys.into_iter().map(Entry::read).collect::<Result<Vec<_>, _>>()?;
        Self::of(entries)
    }

    /// Creates a keyring from these entries.
    ///
    /// # Errors
    ///
    /// Returns [`KeyringError::Invalid`] unless ids are unique and exactly one key is primary.
    pub fn of(entries: Vec<Entry>) -> Result<Self, KeyringError> {
        for (i, entry) in entries.iter().enumerate() {
            if entries[..i].iter().any(|other| other.id == entry.id) {
                return Err(invalid(format!("the key id `{}` occurs twice", entry.id)));
            }
        }
        match entries.iter().filter(|entry| entry.state == State::Primary).count() {
            1 => Ok(Self { entries }),
            n => Err(invalid(format!("{n} keys are primary, exactly one must be"))),
        }
    }

    /// Creates a keyring of one key, which seals and opens.
    ///
    /// ```
    /// use nsbridge_crypto::{Key, Keyring};
    ///
    /// let keyring = Keyring::of_key("2026-11".parse().unwrap(), Key::generate().unwrap());
    /// assert_eq!(keyring.entries().len(), 1);
    /// ```
    pub fn of_key(id: KeyId, key: Key) -> Self {
        Self { entries: vec![Entry::new(id, key, State::Primary)] }
    }

    /// Creates a keyring without keys, which opens nothing and seals nothing.
    pub(crate) fn empty() -> Self {
        Self { entries: Vec::new() }
    }

    /// Returns the text of the keyring. It contains the keys, so only its owner may be able to read
    /// it.
    pub fn to_json(&self) -> Zeroizing<String> {
        let keys = self.entries.iter().map(Entry::write).collect();
        let text = serde_json::to_string_pretty(&File { schema: 1, keys });
        Zeroizing::new(text.expect("plain structs are always JSON"))
    }

    /// Returns the keys in the order of the file.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn find(&self, id: &KeyId, scope: &Scope) -> Result<Key, KeyError> {
        let entry = self.entries.iter().find(|entry| entry.id == *id);
        let entry = entry.ok_or_else(|| KeyError::Unknown { id: id.clone() })?;
        if entry.state == State::Disabled {
            return Err(KeyError::Disabled { id: id.clone() });
        }
        entry.key_for(scope)
    }
}

#[async_trait]
impl KeyProvider for Keyring {
    async fn data_key(&self, scope: &Scope) -> Result<DataKey, KeyError> {
        let primary = self.entries.iter().find(|entry| entry.state == State::Primary);
        let primary = primary.expect("a keyring has one primary key");
        Ok(DataKey::of_keyring(primary.id.clone(), primary.key_for(scope)?))
    }

    async fn open_key(&self, frame: &RequestFrame<'_>) -> Result<Key, KeyError> {
        if frame.provider() != Provider::Keyring {
            return Err(KeyError::OtherProvider);
        }
        let head = frame.head();
        let scope = Scope { model: head.model.clone(), tenant: head.tenant.clone() };
        self.find(&head.key_id, &scope)
    }

    /// Returns true for a key derived from a master, and for a key that serves a single tenant.
    fn proves_tenant(&self, frame: &RequestFrame<'_>) -> bool {
        let entry = self.entries.iter().find(|entry| entry.id == frame.head().key_id);
        let single =
            |tenants: &Option<Vec<Tenant>>| tenants.as_ref().is_some_and(|all| all.len() == 1);
        entry.is_some_and(|entry| entry.is_master || single(&entry.tenants))
    }
}

impl Entry {
    /// Creates an entry that serves every model and tenant.
    pub fn new(id: KeyId, key: Key, state: State) -> Self {
        Self { id, state, models: None, tenants: None, is_master: false, key }
    }

    /// Returns the check value of the key: eight public bytes in hex that distinguish it from
    /// others.
    pub fn check_value(&self) -> String {
        derive::check_value(self.key.bytes()).iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }

    /// Derives the entry of a tenant for a model from this master key.
    pub fn derive(&self, scope: &Scope) -> Self {
        let key = derive::tenant(self.key.bytes(), scope.tenant.as_str(), scope.model.as_str());
        Self {
            id: self.id.clone(),
            state: self.state,
            models: Some(vec![scope.model.clone()]),
            tenants: Some(vec![scope.tenant.clone()]),
            is_master: false,
            key: Key::from_bytes(*key),
        }
    }

    fn key_for(&self, scope: &Scope) -> Result<Key, KeyError> {
        let serves = |allowed: bool| {
            if allowed { Ok(()) } else { Err(KeyError::OutOfScope { id: self.id.clone() }) }
        };
        serves(self.models.as_ref().is_none_or(|models| models.contains(&scope.model)))?;
        serves(self.tenants.as_ref().is_none_or(|tenants| tenants.contains(&scope.tenant)))?;
        Ok(if self.is_master { self.derive(scope).key } else { self.key.clone() })
    }

    fn read(line: Line) -> Result<Self, KeyringError> {
        let Line { id, state, key, check, models, tenants, derived: is_master } = line;
        let broken = |what: &str| invalid(format!("the key `{id}` {what}"));
        let bytes = STANDARD.decode(key.as_bytes()).map(Zeroizing::new);
        let bytes = bytes.map_err(|_| broken("is not base64"))?;
        let bytes = <[u8; 32]>::try_from(bytes.as_slice())
            .map_err(|_| broken(&format!("has {} bytes, it must have 32", bytes.len())))?;
        let entry =
            Self { id: id.clone(), state, models, tenants, is_master, key: Key::from_bytes(bytes) };
        match check {
            Some(check) if check != entry.check_value() => {
                Err(broken("does not match its check value: it was cut or pasted wrong"))
            }
            _ => Ok(entry),
        }
    }

    fn write(&self) -> Line {
        Line {
            id: self.id.clone(),
            state: self.state,
            key: Zeroizing::new(STANDARD.encode(self.key.bytes())),
            check: Some(self.check_value()),
            models: self.models.clone(),
            tenants: self.tenants.clone(),
            derived: self.is_master,
        }
    }
}

fn invalid(what: String) -> KeyringError {
    KeyringError::Invalid { what }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    keys: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: KeyId,
    state: State,
    key: Zeroizing<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    check: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    models: Option<Vec<ModelName>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenants: Option<Vec<Tenant>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    derived: bool,
}

#[cfg(test)]
mod tests;
