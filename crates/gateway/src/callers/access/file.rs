//! API key file: the entries of the keys, without the keys themselves.
//!
//! ```json
//! {"schema": 1, "keys": [{"id": "0123abcd", "hash": "<64 hex digits>", "tenant": "acme",
//!   "models": ["tale-7m"], "disabled": false, "admin": false, "expires": "2027-01-01T00:00:00Z",
//!   "limits": {"requests_per_minute": 60, "tokens_per_minute": 100000, "concurrent": 8},
//!   "priority": "bulk", "obfuscation": true}]}
//! ```
//!
//! Only `id`, `hash` and `tenant` must be there. `models` has names of queues; without it, a key may
//! use all models. Without a limit, a key has none; without `expires`, it is valid until it is
//! disabled or removed. `admin` and `obfuscation` are reserved and have no effect.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nsbridge_base::private_file::{PrivateFile, PrivateFileError};
use nsbridge_protocol::{ModelName, Tenant};
use serde::{Deserialize, Serialize};

use super::key::{ApiKey, ApiKeyId, KeyHash};
use super::limits::Limits;

const KIND: PrivateFile = PrivateFile { what: "API key file", most: 16 << 20, of_root: false };

/// API key as the file keeps it: a hash, the tenant, and the rights of its holder.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// Id of the key.
    pub id: ApiKeyId,
    /// Tenant in whose name requests are submitted.
    pub tenant: Tenant,
    /// Models that the key may use, by the names of their queues; `None` means all.
    pub models: Option<Vec<ModelName>>,
    /// True for a key that is refused.
    pub disabled: bool,
    /// Reserved: true for a key that may use administrative pages, of which the gateway has none.
    pub admin: bool,
    /// Time from which the key is refused.
    pub expires: Option<Timestamp>,
    /// Limits of the use of the key.
    pub limits: Limits,
    /// Class of the requests of the key in the queue.
    pub priority: Priority,
    /// Reserved, without effect: padding of streamed pieces to a uniform length.
    pub obfuscation: Option<bool>,
    pub(super) hash: KeyHash,
}

/// Class of requests in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Priority {
    /// Requests that a person waits for.
    #[default]
    Interactive,
    /// Requests that run in slots that no interactive request needs.
    Bulk,
}

/// Error of an API key file that cannot be read, used or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// File that cannot be read or that others can access.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// Text that is not a valid API key file.
    #[error("the API key file {} is not valid: {what}", path.display())]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// Description of the error, without keys and hashes.
        what: String,
    },
    /// File that cannot be written.
    #[error("cannot write the API key file {}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// File that another command changes now.
    #[error("another command changes the API keys: wait, or remove {} if none replies", path.display())]
    Busy {
        /// Path of the other command's temporary file.
        path: PathBuf,
    },
    /// Id that the file does not contain.
    #[error("there is no API key {id} in {}: list the keys to see their ids", path.display())]
    Unknown {
        /// Id of the key.
        id: ApiKeyId,
        /// Path of the file.
        path: PathBuf,
    },
    /// Id that the file already contains.
    #[error("there is an API key {id} in {} already: generate another key", path.display())]
    Taken {
        /// Id of the key.
        id: ApiKeyId,
        /// Path of the file.
        path: PathBuf,
    },
}

/// Reads the entries of an API key file, in the order of the file.
///
/// # Errors
///
/// Returns an [`AccessError`] if the file is missing, unreadable or invalid, if other users can
/// access it, or if it belongs to another user.
pub(super) fn load(path: &Path) -> Result<Vec<Entry>, AccessError> {
    let content = KIND.read(path)?;
    parse(&content).map_err(|what| AccessError::Invalid { path: path.to_owned(), what })
}

/// Returns the text of a file with these entries.
pub(super) fn to_json(entries: &[Entry]) -> Result<String, serde_json::Error> {
    let keys = entries.iter().map(Entry::write).collect();
    let mut text = serde_json::to_string_pretty(&File { schema: 1, keys })?;
    text.push('\n');
    Ok(text)
}

/// Parses the text of a file. The error quotes no value, because a value may be a key.
pub(super) fn parse(content: &[u8]) -> Result<Vec<Entry>, String> {
    let mut json = serde_json::Deserializer::from_slice(content);
    let file: File = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (line, column) = (error.inner().line(), error.inner().column());
        let path = error.path();
        if error.inner().is_data() {
            format!("line {line}, column {column}: correct or remove what is at `{path}`")
        } else {
            format!("line {line}, column {column}: correct the JSON at `{path}`")
        }
    })?;
    json.end().map_err(|error| {
        format!("line {}, column {}: remove what follows the JSON", error.line(), error.column())
    })?;
    if file.schema != 1 {
        return Err(format!("`schema` must be 1, not {}", file.schema));
    }
    let mut entries = Vec::with_capacity(file.keys.len());
    let mut ids = HashSet::new();
    for (i, line) in file.keys.into_iter().enumerate() {
        let entry = Entry::read(line).map_err(|what| format!("`keys[{i}]`: {what}"))?;
        if !ids.insert(entry.id) {
            return Err(format!("`keys[{i}]`: the id {} occurs twice, remove one", entry.id));
        }
        entries.push(entry);
    }
    Ok(entries)
}

impl Entry {
    /// Creates the entry of a key: with all models and without limits.
    pub fn new(key: &ApiKey, tenant: Tenant) -> Self {
        Self::of(key.id(), key.hash(), tenant)
    }

    fn of(id: ApiKeyId, hash: KeyHash, tenant: Tenant) -> Self {
        Self {
            id,
            tenant,
            models: None,
            disabled: false,
            admin: false,
            expires: None,
            limits: Limits::default(),
            priority: Priority::default(),
            obfuscation: None,
            hash,
        }
    }

    /// Returns an error for values that the file cannot hold.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut models = HashSet::new();
        if let Some(twice) = self.models.iter().flatten().find(|model| !models.insert(*model)) {
            return Err(format!("`models` has {twice} twice, remove one"));
        }
        self.limits.check()
    }

    fn read(line: Line) -> Result<Self, String> {
        let id: ApiKeyId = line.id.parse().map_err(|_| {
            "`id` must be 8 digits or lowercase letters without i, l, o and u".to_owned()
        })?;
        let hash = KeyHash::from_hex(&line.hash)
            .ok_or_else(|| "`hash` must be 64 hex digits: add the key again".to_owned())?;
        let expires = line.expires.map(|text| text.parse::<Timestamp>()).transpose();
        let expires = expires
            .map_err(|_| "`expires` must be a time such as 2027-01-01T00:00:00Z".to_owned())?;
        let entry = Self {
            models: line.models,
            disabled: line.disabled,
            admin: line.admin,
            expires,
            limits: line.limits,
            priority: line.priority,
            obfuscation: line.obfuscation,
            ..Self::of(id, hash, line.tenant)
        };
        entry.check()?;
        Ok(entry)
    }

    fn write(&self) -> Line {
        Line {
            id: self.id.to_string(),
            hash: self.hash.to_hex(),
            tenant: self.tenant.clone(),
            models: self.models.clone(),
            disabled: self.disabled,
            admin: self.admin,
            expires: self.expires.map(|time| time.to_string()),
            limits: self.limits,
            priority: self.priority,
            obfuscation: self.obfuscation,
        }
    }
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
    id: String,
    hash: String,
    tenant: Tenant,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    models: Option<Vec<ModelName>>,
    #[serde(default)]
    disabled: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    admin: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(default, skip_serializing_if = "Limits::are_none")]
    limits: Limits,
    #[serde(default, skip_serializing_if = "Priority::is_default")]
    priority: Priority,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    obfuscation: Option<bool>,
}

impl Priority {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests;
