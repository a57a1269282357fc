//! Access to the gateway: API keys, their holders, and the limits of their use.
//!
//! A caller sends an API key `nsk_<id>_<secret>`. The API key file holds a hash of it, with the
//! tenant and the rights of its holder. The file is reloaded at runtime, so a key that is disabled
//! or removed is refused from the next reload on.

mod bucket;
mod edit;
mod file;
mod key;
mod limits;
mod origin;
mod watched;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use nsbridge_protocol::{ModelName, Tenant};

pub use edit::{add, disable, list};
pub use file::{AccessError, Entry, Priority};
pub use key::{ApiKey, ApiKeyId, InvalidApiKeyId, NoRandomness};
pub use limits::{Limit, Limiter, Limits, Refusal, Reservation};
pub(crate) use origin::is_local;
pub use watched::AccessFile;

use nsbridge_base::Reload;

use self::key::KeyHash;

/// Decision on who may call the gateway.
#[derive(Debug)]
pub struct Access(Source);

#[derive(Debug)]
enum Source {
    Open(Arc<Caller>),
    Fixed(Table),
    File(AccessFile),
}

/// Holder of a valid API key, with the rights that the key gives.
#[derive(Debug)]
#[non_exhaustive]
pub struct Caller {
    /// Id of the key, for logs and metrics.
    pub id: ApiKeyId,
    /// Tenant in whose name requests are submitted.
    pub tenant: Tenant,
    /// Reserved: true if the caller may use administrative pages, of which the gateway has none.
    pub admin: bool,
    /// Class of the caller's requests in the queue.
    pub priority: Priority,
    /// Reserved, without effect: padding of streamed pieces to a uniform length.
    pub obfuscation: Option<bool>,
    /// Account of the key. It lives as long as the key is in the file.
    pub limiter: Arc<Limiter>,
    /// Account of the lines of the key's batches.
    batches: Arc<Limiter>,
    /// Queues of the models that the caller may use; all if `None`.
    pub(crate) models: Option<Vec<ModelName>>,
}

/// Reason for which a call is refused.
///
/// A key that does not match is [`Denied::Unknown`], whether or not there is a key of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denied {
    /// Call without a key.
    #[error("the request has no API key: send `Authorization: Bearer <key>`")]
    Missing,
    /// Header that does not hold a key, or two headers with different keys.
    #[error("the API key is malformed: send `Authorization: Bearer nsk_<id>_<secret>`")]
    Malformed,
    /// Key that does not exist.
    #[error("the API key is not valid: check it, or ask for a new one")]
    Unknown,
    /// Key that was disabled.
    #[error("the API key is disabled: ask for a new one")]
    Disabled,
    /// Key whose time is over.
    #[error("the API key has expired: ask for a new one")]
    Expired,
}

impl Access {
    /// Admits the holders of the keys of a file.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AccessFile::open`].
    pub fn of_file(path: &Path) -> Result<Self, AccessError> {
        AccessFile::open(path).map(|file| Self(Source::File(file)))
    }

    /// Admits the holders of the keys in the text of an API key file.
    ///
    /// # Errors
    ///
    /// Returns a sentence that names the entry, without keys and hashes.
    pub fn of_json(text: &str) -> Result<Self, String> {
        let entries = file::parse(text.as_bytes())?;
        Ok(Self(Source::Fixed(Table::of(entries, None))))
    }

    /// Admits every caller as this tenant, with all rights and without limits.
    ///
    /// It is for development, on a listener that only this machine can reach. Keys that callers
    /// send are ignored.
    pub fn open_to_all(tenant: Tenant) -> Self {
        let account = || Arc::new(Limiter::new(Limits::default()));
        let caller = Caller {
            id: ApiKeyId::OPEN,
            tenant,
            admin: true,
            priority: Priority::default(),
            obfuscation: None,
            limiter: account(),
            batches: account(),
            models: None,
        };
        Self(Source::Open(Arc::new(caller)))
    }

    /// Returns true if no key is asked for.
    pub fn is_open(&self) -> bool {
        matches!(self.0, Source::Open(_))
    }

    /// Identifies the caller by the values of the headers `authorization` and `x-api-key`.
    ///
    /// # Errors
    ///
    /// Returns the reason for which the call is refused. A key is told to be disabled or expired
    /// only to its holder.
    pub fn check(
        &self,
        authorization: Option<&str>,
        x_api_key: Option<&str>,
    ) -> Result<Arc<Caller>, Denied> {
        if let Source::Open(caller) = &self.0 {
            return Ok(caller.clone());
        }
        let bearer = authorization.map(bearer).transpose()?.flatten();
        let plain = x_api_key.map(str::trim).filter(|key| !key.is_empty());
        let text = match (bearer, plain) {
            (Some(one), Some(other)) if one != other => return Err(Denied::Malformed),
            (Some(text), _) | (None, Some(text)) => text,
            (None, None) => return Err(Denied::Missing),
        };
        let key = ApiKey::parse(text).ok_or(Denied::Malformed)?;
        match &self.0 {
            Source::Open(caller) => Ok(caller.clone()),
            Source::Fixed(table) => table.check(&key, Timestamp::now()),
            Source::File(file) => file.table().check(&key, Timestamp::now()),
        }
    }

    /// Returns the holder of a key by its id, for work that goes on after its request.
    ///
    /// # Errors
    ///
    /// Returns the reason for which the key is no longer valid.
    pub(crate) fn holder(&self, id: &str) -> Result<Arc<Caller>, Denied> {
        let known = || id.parse().map_err(|_| Denied::Unknown);
        match &self.0 {
            Source::Open(caller) => Ok(caller.clone()),
            Source::Fixed(table) => table.holder(known()?, Timestamp::now()),
            Source::File(file) => file.table().holder(known()?, Timestamp::now()),
        }
    }

    /// Reloads the API key file if it has changed, as [`AccessFile::reload_if_changed`] does.
    ///
    /// # Errors
    ///
    /// Returns the error of a changed file that cannot be used, once per change.
    pub fn reload_if_changed(&self) -> Result<Reload, AccessError> {
        match &self.0 {
            Source::Open(_) | Source::Fixed(_) => Ok(Reload::Unchanged),
            Source::File(file) => file.reload_if_changed(),
        }
    }
}

impl Caller {
    /// Returns true if the key may use the model.
    pub fn may_use(&self, model: &ModelName) -> bool {
        self.models.as_ref().is_none_or(|models| models.contains(model))
    }

    /// Returns the caller as the caller of a batch's lines, which are bulk requests. They have an
    /// account of their own, with equal limits, so that a batch does not use up the limits of the
    /// key's other requests.
    pub(crate) fn for_batch(&self) -> Self {
        let Self { id, admin, obfuscation, .. } = *self;
        let priority = Priority::Bulk;
        let (limiter, batches) = (self.batches.clone(), self.batches.clone());
        let (tenant, models) = (self.tenant.clone(), self.models.clone());
        Self { id, tenant, admin, priority, obfuscation, limiter, batches, models }
    }

    fn of(entry: Entry, [limiter, batches]: [Arc<Limiter>; 2]) -> Self {
        Self {
            id: entry.id,
            tenant: entry.tenant,
            admin: entry.admin,
            priority: entry.priority,
            obfuscation: entry.obfuscation,
            limiter,
            batches,
            models: entry.models,
        }
    }
}

/// Returns the token of an `Authorization` header; `None` if the token is empty.
fn bearer(header: &str) -> Result<Option<&str>, Denied> {
    let header = header.trim();
    let (scheme, token) = header.split_once(' ').unwrap_or((header, ""));
    let token = token.trim();
    if header.is_empty() {
        Ok(None)
    } else if scheme.eq_ignore_ascii_case("bearer") {
        Ok((!token.is_empty()).then_some(token))
    } else {
        Err(Denied::Malformed)
    }
}

/// Keys of one version of the file, by id.
struct Table(HashMap<ApiKeyId, Known>);

struct Known {
    hash: KeyHash,
    disabled: bool,
    expires: Option<Timestamp>,
    caller: Arc<Caller>,
}

impl Table {
    /// Creates the table of these entries. A key that was known before keeps its account, under
    /// its new limits; other accounts end.
    fn of(entries: Vec<Entry>, before: Option<&Self>) -> Self {
        let known = entries.into_iter().map(|entry| {
            let (hash, limits) = (entry.hash.clone(), entry.limits);
            let accounts = match before.and_then(|before| before.0.get(&entry.id)) {
                Some(known) => [&known.caller.limiter, &known.caller.batches].map(|account| {
                    account.set(limits);
                    account.clone()
                }),
                None => [(); 2].map(|()| Arc::new(Limiter::new(limits))),
            };
            let (id, disabled, expires) = (entry.id, entry.disabled, entry.expires);
            let caller = Arc::new(Caller::of(entry, accounts));
            (id, Known { hash, disabled, expires, caller })
        });
        Self(known.collect())
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn check(&self, key: &ApiKey, now: Timestamp) -> Result<Arc<Caller>, Denied> {
        let known = self.0.get(&key.id());
        // An unknown id costs a comparison, too, so that time does not tell which ids exist.
        let hash = known.map_or(&KeyHash::DUMMY, |known| &known.hash);
        let matches = bool::from(key.hash().matches(hash));
        // The rest is for the holder of the key only.
        known.filter(|_| matches).ok_or(Denied::Unknown)?.caller(now)
    }

    fn holder(&self, id: ApiKeyId, now: Timestamp) -> Result<Arc<Caller>, Denied> {
        self.0.get(&id).ok_or(Denied::Unknown)?.caller(now)
    }
}

impl Known {
    fn caller(&self, now: Timestamp) -> Result<Arc<Caller>, Denied> {
        if self.disabled {
            return Err(Denied::Disabled);
        }
        if self.expires.is_some_and(|expires| expires <= now) {
            return Err(Denied::Expired);
        }
        Ok(self.caller.clone())
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("keys", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
