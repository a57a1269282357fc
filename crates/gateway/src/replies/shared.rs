//! Replies that replicas share: what another gateway needs to continue them, sealed.
//!
//! Each reply has up to four files below the prefix: its request, which is written before the first
//! byte goes to the client; the fingerprint of its worker; its pieces, if the gateway gave it up; and
//! its end with all pieces. Their names begin with the reply's id, hence with the time of its
//! creation. All of them are sealed under the key that all replicas have, bound to their place.

mod files;
mod lease;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, stream};
use nsbridge_base::chain;
use nsbridge_client::RequestId;
use nsbridge_crypto::{AtRest, Key};
use nsbridge_protocol::Fingerprint;
use nsbridge_store::{Location, SmallFiles, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use self::files::{File, id_of, join_of, joins};
use crate::replies::reply_end::StoredEnd;
use crate::replies::reply_log::{Ending, RawPiece};
use crate::replies::store::{Kept, Record};

/// Maximum number of writes that run or wait. Pieces and ends beyond it are not shared, and computed
/// again if needed.
const WAITING: usize = 1024;

/// Maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Number of names that a sweep lists at once.
const PAGE: usize = 1000;

/// Number of files that a sweep deletes at once.
const MAX_CONCURRENT_DELETES: usize = 16;

/// Replies in a bucket or a folder that all replicas use.
pub(crate) struct Shared {
    files: SmallFiles,
    seal: AtRest,
    /// Random name of this process.
    replica: String,
    writes: TaskTracker,
}

/// Reply as another replica finds it.
pub(crate) struct Found {
    pub(crate) kept: Kept,
    /// Name of the replica that received the request.
    pub(crate) owner: String,
}

/// Request of a reply, and the replica that received it.
#[derive(Serialize, Deserialize)]
struct Begun {
    record: Record,
    owner: String,
}

/// State of a reply: the fingerprint of its worker, its pieces, and its end.
#[derive(Serialize, Deserialize)]
struct State {
    fingerprint: Option<Fingerprint>,
    pieces: Vec<Box<RawValue>>,
    ending: Option<StoredEnd>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Error of the start with a shared store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// The store cannot be read or written.
    #[error("the shared store {location} cannot be used")]
    Store {
        /// Location of the configuration.
        location: String,
        /// Cause.
        #[source]
        cause: StoreError,
    },
    /// Another replica uses another key.
    #[error(
        "the shared store {location} is sealed under another key: give all replicas the key file \
         of the first one"
    )]
    Key {
        /// Location of the configuration.
        location: String,
    },
    /// The operating system provides no randomness.
    #[error("the operating system provides no randomness")]
    NoRandomness,
}

impl Shared {
    /// Opens the store: checks that it can be read and written, and that its replies are sealed
    /// under this key.
    ///
    /// # Errors
    ///
    /// Returns an error if it is not so.
    pub(crate) async fn open(
        location: &Location,
        config: &nsbridge_store::StoreConfig,
        key: Key,
    ) -> Result<Self, SharedError> {
        let name = location.to_string();
        let failed = |cause| SharedError::Store { location: name.clone(), cause };
        let replica = getrandom::u64().map_err(|_| SharedError::NoRandomness)?;
        let replica = format!("{replica:016x}");
        let files = SmallFiles::open(location, config).await.map_err(failed)?;
        let shared = Self { files, seal: AtRest::new(key), replica, writes: TaskTracker::new() };
        if !shared.has_key().await.map_err(failed)? {
            return Err(SharedError::Key { location: name });
        }
        shared.beat().await.map_err(failed)?;
        Ok(shared)
    }

    /// Checks the key against the first replica's, or stores a value that later ones check.
    async fn has_key(&self) -> Result<bool, StoreError> {
        let sealed = self.sealed(&File::Key.place(), &())?;
        if self.files.put_new(&File::Key.name(), sealed).await? {
            return Ok(true);
        }
        let known = self.files.get(&File::Key.name(), MAX_FILE_BYTES).await?;
        Ok(known.is_some_and(|known| self.seal.open(&File::Key.place(), &known).is_ok()))
    }

    /// Writes a request, and the name by which a retry finds it.
    ///
    /// # Errors
    ///
    /// Returns an error if one of them cannot be written.
    pub(crate) async fn put(&self, record: Record) -> Result<(), StoreError> {
        let (id, join) = (record.id, join_of(&record.join, record.id));
        let begun = Begun { record, owner: self.replica.clone() };
        let (request, joined) =
            tokio::join!(self.write(File::Request(id), &begun), self.files.put(&join, Vec::new()));
        request.and(joined)
    }

    /// Shares the fingerprint of the worker of a reply.
    pub(crate) fn mark(self: &Arc<Self>, id: RequestId, fingerprint: Fingerprint) {
        let state = State { fingerprint: Some(fingerprint), pieces: Vec::new(), ending: None };
        self.later(File::Mark(id), state);
    }

    /// Shares the pieces of a reply that this gateway does not continue.
    pub(crate) fn give_up(self: &Arc<Self>, id: RequestId, pieces: Pieces) {
        self.later(File::Part(id), state(pieces, None));
    }

    /// Shares the end of a reply, with its pieces.
    pub(crate) fn end(self: &Arc<Self>, id: RequestId, pieces: Pieces, ending: &Ending) {
        self.later(File::End(id), state(pieces, Some(ending.into())));
    }

    /// Writes a file in a task.
    fn later(self: &Arc<Self>, file: File, state: State) {
        if self.writes.len() >= WAITING {
            tracing::warn!("the shared store is too slow: a part of a reply is not shared");
            return;
        }
        let shared = self.clone();
        self.writes.spawn(async move {
            if let Err(error) = shared.write(file, &state).await {
                tracing::warn!(error = chain(&error), "a part of a reply is not shared");
            }
        });
    }

    async fn write(&self, file: File, value: &impl Serialize) -> Result<(), StoreError> {
        let sealed = self.sealed(&file.place(), value)?;
        self.files.put(&file.name(), sealed).await
    }

    fn sealed(&self, place: &[u8], value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
        let refused = |why: &str| StoreError::Refused(why.to_owned());
        let value = serde_json::to_vec(value).map_err(|_| refused("the value is no JSON"))?;
        self.seal.seal(place, &value).map_err(|_| refused("the value cannot be sealed"))
    }

    async fn read<T: for<'de> Deserialize<'de>>(
        &self,
        file: File,
    ) -> Result<Option<T>, StoreError> {
        let Some(sealed) = self.files.get(&file.name(), MAX_FILE_BYTES).await? else {
            return Ok(None);
        };
        let opened = self.seal.open(&file.place(), &sealed).ok();
        let value = opened.and_then(|value| serde_json::from_slice(&value).ok());
        if value.is_none() {
            tracing::warn!(file = file.name(), "a file of the shared store cannot be opened");
        }
        Ok(value)
    }

    /// Reads a reply.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    pub(crate) async fn get(&self, id: RequestId) -> Result<Option<Found>, StoreError> {
        let (begun, end, part, mark) = tokio::join!(
            self.read::<Begun>(File::Request(id)),
            self.read::<State>(File::End(id)),
            self.read::<State>(File::Part(id)),
            self.read::<State>(File::Mark(id)),
        );
        let Some(Begun { record, owner }) = begun? else { return Ok(None) };
        let none = State { fingerprint: None, pieces: Vec::new(), ending: None };
        let State { fingerprint, pieces, ending } = end?.or(part?).or(mark?).unwrap_or(none);
        let raw = |json: Box<RawValue>| {
            let piece = serde_json::from_str(json.get()).ok()?;
            Some(Arc::new(RawPiece { piece, json }))
        };
        let pieces = pieces.into_iter().map_while(raw).collect();
        let ending = ending.map(Ending::from);
        Ok(Some(Found { kept: Kept { record, pieces, fingerprint, ending }, owner }))
    }

    /// Returns the latest reply that a retry with this hash repeats.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    pub(crate) async fn joined(&self, join: &[u8; 32]) -> Result<Option<RequestId>, StoreError> {
        let names = self.files.names(&joins(join), PAGE).await?;
        Ok(names.last().and_then(|name| id_of(name)))
    }

    /// Deletes a reply in a task, whose result is true if it is deleted.
    pub(crate) fn remove(self: &Arc<Self>, id: RequestId, join: &[u8; 32]) -> JoinHandle<bool> {
        let mut names = File::of(id).map(|file| file.name()).to_vec();
        names.push(join_of(join, id));
        let shared = self.clone();
        self.writes.spawn(async move {
            let mut deleted = true;
            for name in names {
                if let Err(error) = shared.files.remove(&name).await {
                    let error = chain(&error);
                    tracing::warn!(error, "a reply cannot be deleted from the shared store");
                    deleted = false;
                }
            }
            deleted
        })
    }

    /// Deletes the replies that were created this long ago, those of other replicas included.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached.
    pub(crate) async fn sweep(&self, age: Duration) -> Result<(), StoreError> {
        loop {
            let names = self.files.names("replies/", PAGE).await?;
            let is_old = |name: &&String| id_of(name).is_none_or(|id| files::age(id) >= age);
            let old: Vec<&String> = names.iter().take_while(is_old).collect();
            let mut joins = Vec::new();
            for name in &old {
                let Some(id) = id_of(name).filter(|id| **name == File::Request(*id).name()) else {
                    continue;
                };
                if let Some(begun) = self.read::<Begun>(File::Request(id)).await? {
                    joins.push(join_of(&begun.record.join, id));
                }
            }
            // Those first: without the request, they are not found again.
            let (count, all) = (old.len(), old.len() == names.len());
            let old = old.into_iter().cloned().collect();
            self.remove_all(joins).await?;
            self.remove_all(old).await?;
            if count == 0 || !all {
                return Ok(());
            }
        }
    }

    async fn remove_all(&self, names: Vec<String>) -> Result<(), StoreError> {
        let remove = |name: String| async move { self.files.remove(&name).await };
        let removed = stream::iter(names).map(remove);
        let removed: Vec<_> = removed.buffer_unordered(MAX_CONCURRENT_DELETES).collect().await;
        removed.into_iter().collect()
    }

    /// Waits until all writes so far have ended.
    pub(crate) async fn flush(&self) {
        self.writes.close();
        self.writes.wait().await;
        self.writes.reopen();
    }
}

/// Pieces of a reply, and the fingerprint of the last one's worker.
pub(crate) type Pieces = (Vec<Arc<RawPiece>>, Option<Fingerprint>);

fn state((pieces, fingerprint): Pieces, ending: Option<StoredEnd>) -> State {
    let pieces = pieces.iter().map(|piece| piece.json.clone()).collect();
    State { fingerprint, pieces, ending }
}

/// Returns the time since the Unix epoch in milliseconds.
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
