//! A file of keys that clients and workers share.
//!
//! ```json
//! {"schema": 1, "keys": [{"id": "2026-11", "state": "primary", "key": "<base64, 32 bytes>",
//!   "check": "<16 hex digits>", "models": ["tale-7m"], "tenants": ["acme"], "derived": false}]}
//! ```
//!
//! `models` and `tenants` narrow what a key may be used for; absent means any. With `derived`, the
//! key is a master: each tenant holds only its own key for a model, made from it.

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

use crate::key::Provider;
use crate::{DataKey, Key, KeyError, KeyProvider, RequestFrame, Scope, derive};

/// Keys by name, one of them for sealing.
#[derive(Clone, Debug)]
pub struct Keyring {
    entries: Vec<Entry>,
}

/// One key and what it is for.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub id: KeyId,
    /// What it may do.
    pub state: State,
    /// The models it serves; `None` is any.
    pub models: Option<Vec<ModelName>>,
    /// The tenants it serves; `None` is any.
    pub tenants: Option<Vec<Tenant>>,
    /// Whether tenants hold keys made from it instead of itself.
    pub derived: bool,
    key: Key,
}

/// What a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Seals and opens. Exactly one key of a ring is primary.
    Primary,
    /// Opens only: before it becomes primary everywhere, and after.
    Decrypt,
    /// Neither.
    Disabled,
}

/// Why a keyring cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyringError {
    /// There is no such file.
    #[error("there is no keyring {0}: make one with `nsbridge keys generate --out {0}`", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read the keyring {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Others on this machine can read the file.
    #[error("the keyring {} can be read by others (mode {mode:o}): chmod 600 it", path.display())]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file belongs to another user.
    #[error("the keyring {} belongs to user {owner}: it must be this process's own", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
    },
    /// The text is not a keyring.
    #[error("the keyring is not valid: {what}")]
    Invalid {
        /// What is wrong, without a key in it.
        what: String,
    },
}

impl Keyring {
    /// Reads a keyring file; refuses one that others can read.
    ///
    /// # Errors
    ///
    /// A [`KeyringError`] that names the file and what to do.
    pub fn load(path: &Path) -> Result<Self, KeyringError> {
        let io = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => KeyringError::Missing { path: path.to_owned() },
            _ => KeyringError::Io { path: path.to_owned(), source },
        };
        // One open file from here on: what was checked is what is read.
        let mut file = fs::File::open(path).map_err(io)?;
        let status = file.metadata().map_err(io)?;
        let mode = status.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyringError::Readable { path: path.to_owned(), mode });
        }
        // Root may read anybody's file; for it, too, a foreign keyring is a mistake.
        let me = fs::metadata("/proc/self").map_or(status.uid(), |process| process.uid());
        if status.uid() != me {
            return Err(KeyringError::Foreign { path: path.to_owned(), owner: status.uid() });
        }
        let mut text = Zeroizing::new(String::new());
        file.read_to_string(&mut text).map_err(io)?;
        Self::from_json(&text)
    }

    /// Reads a keyring's text, as an ECS secret carries it.
    ///
    /// # Errors
    ///
    /// [`KeyringError::Invalid`], which never quotes the text.
    pub fn from_json(text: &str) -> Result<Self, KeyringError> {
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

    /// A keyring of these entries.
    ///
    /// # Errors
    ///
    /// [`KeyringError::Invalid`] unless names are unique and exactly one key is primary.
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

    /// A keyring without keys, which opens nothing and seals nothing.
    pub(crate) fn empty() -> Self {
        Self { entries: Vec::new() }
    }

    /// The keyring's text. It holds the keys: write it where only its owner can read.
    pub fn to_json(&self) -> Zeroizing<String> {
        let keys = self.entries.iter().map(Entry::write).collect();
        let text = serde_json::to_string_pretty(&File { schema: 1, keys });
        Zeroizing::new(text.expect("plain structs are always JSON"))
    }

    /// The keys, in the file's order.
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

    /// A derived key is its tenant's alone, and so is one that serves a single tenant.
    fn proves_tenant(&self, frame: &RequestFrame<'_>) -> bool {
        let entry = self.entries.iter().find(|entry| entry.id == frame.head().key_id);
        let single =
            |tenants: &Option<Vec<Tenant>>| tenants.as_ref().is_some_and(|all| all.len() == 1);
        entry.is_some_and(|entry| entry.derived || single(&entry.tenants))
    }
}

impl Entry {
    /// An entry that serves every model and tenant.
    pub fn new(id: KeyId, key: Key, state: State) -> Self {
        Self { id, state, models: None, tenants: None, derived: false, key }
    }

    /// Eight public bytes that tell this key from another.
    pub fn check_value(&self) -> String {
        derive::check_value(self.key.bytes()).iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }

    /// The entry a tenant is to hold for a model, made from this master.
    pub fn derive(&self, scope: &Scope) -> Self {
        let key = derive::tenant(self.key.bytes(), scope.tenant.as_str(), scope.model.as_str());
        Self {
            id: self.id.clone(),
            state: self.state,
            models: Some(vec![scope.model.clone()]),
            tenants: Some(vec![scope.tenant.clone()]),
            derived: false,
            key: Key::from_bytes(*key),
        }
    }

    fn key_for(&self, scope: &Scope) -> Result<Key, KeyError> {
        let serves = |allowed: bool| {
            if allowed { Ok(()) } else { Err(KeyError::OutOfScope { id: self.id.clone() }) }
        };
        serves(self.models.as_ref().is_none_or(|models| models.contains(&scope.model)))?;
        serves(self.tenants.as_ref().is_none_or(|tenants| tenants.contains(&scope.tenant)))?;
        Ok(if self.derived { self.derive(scope).key } else { self.key.clone() })
    }

    fn read(line: Line) -> Result<Self, KeyringError> {
        let Line { id, state, key, check, models, tenants, derived } = line;
        let broken = |what: &str| invalid(format!("the key `{id}` {what}"));
        let bytes = STANDARD.decode(key.as_bytes()).map(Zeroizing::new);
        let bytes = bytes.map_err(|_| broken("is not base64"))?;
        let bytes = <[u8; 32]>::try_from(bytes.as_slice())
            .map_err(|_| broken(&format!("has {} bytes, it must have 32", bytes.len())))?;
        let entry =
            Self { id: id.clone(), state, models, tenants, derived, key: Key::from_bytes(bytes) };
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
            derived: self.derived,
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
