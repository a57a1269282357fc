//! Replies that replicas share: what another gateway needs to continue them, sealed.
//!
//! Each reply has up to four files below the prefix: its request, which is written before the first
//! byte goes to the client; the fingerprint of its worker; its pieces, if the gateway gave it up; and
//! its end with all pieces. Their names begin with the reply's id, hence with the time of its
//! creation. All of them are sealed under the key that all replicas have, bound to their place.

mod files;
mod lease;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use nsbridge_base::chain;
use nsbridge_client::RequestId;
use nsbridge_crypto::{AtRest, Key};
use nsbridge_protocol::Fingerprint;
use nsbridge_store::{Location, SmallFiles, StoreError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use self::files::{File, id_of, retries_of, retry_of};
use crate::record::Record;
use crate::reply_end::ReplyEnd;
use crate::reply_log::{Change, RawPiece, ReplyLog};
use crate::store::{ReplyStore, StoredReply, Times, Unstored};

/// Maximum number of writes of pieces and ends that run or wait. Those beyond it are not shared, and
/// computed again if needed.
const MAX_WAITING_WRITES: usize = 1024;

/// Maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Number of names that a sweep lists at once.
const NAMES_PER_PAGE: usize = 1000;

/// Number of files that a sweep deletes at once.
const MAX_CONCURRENT_DELETES: usize = 16;

/// Replies in a bucket or a folder that all replicas use. Cheap to clone.
///
/// Lines of batches are not in it: a batch belongs to the gateway whose disk has its files.
#[derive(Clone)]
pub struct BucketStore {
    files: Arc<SmallFiles>,
    seal: Arc<AtRest>,
    /// Random name of this process.
    replica: Arc<str>,
    writes: TaskTracker,
    /// One permit for each write of pieces or an end that may run or wait.
    waiting_writes: Arc<Semaphore>,
    /// Last write of each reply that has writes, with its number.
    last_writes: Arc<Mutex<HashMap<RequestId, LastWrite>>>,
    /// Number of writes so far.
    writes_begun: Arc<AtomicU64>,
}

/// Write of a reply: its number, and a receiver that has an error when it has ended.
type LastWrite = (u64, oneshot::Receiver<()>);

/// Request of a reply, and the replica that received it.
#[derive(Serialize, Deserialize)]
struct StoredRequest {
    record: Record,
    owner: String,
}

/// State of a reply: the fingerprint of its worker, its pieces, and its end.
#[derive(Default, Serialize, Deserialize)]
struct ReplyState {
    fingerprint: Option<Fingerprint>,
    pieces: Vec<Box<RawValue>>,
    #[serde(rename = "ending")]
    end: Option<ReplyEnd>,
}

impl ReplyState {
    /// Returns the state of a reply with all of its pieces.
    fn of(log: &ReplyLog, end: Option<ReplyEnd>) -> Self {
        let (pieces, fingerprint) = log.pieces();
        let pieces = pieces.iter().map(|piece| piece.json.clone()).collect();
        Self { fingerprint, pieces, end }
    }
}

impl fmt::Debug for BucketStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketStore").field("files", &self.files).finish_non_exhaustive()
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

impl BucketStore {
    /// Opens the store: checks that it can be read and written, and that its replies are sealed
    /// under this key.
    ///
    /// # Errors
    ///
    /// Returns an error if it is not so.
    pub async fn open(
        location: &Location,
        config: &nsbridge_store::StoreConfig,
        key: Key,
    ) -> Result<Self, SharedError> {
        let name = location.to_string();
        let failed = |cause| SharedError::Store { location: name.clone(), cause };
        let replica = getrandom::u64().map_err(|_| SharedError::NoRandomness)?;
        let replica = format!("{replica:016x}").into();
        let files = Arc::new(SmallFiles::open(location, config).await.map_err(failed)?);
        let (seal, writes) = (Arc::new(AtRest::new(key)), TaskTracker::new());
        let waiting_writes = Arc::new(Semaphore::new(MAX_WAITING_WRITES));
        let (last_writes, writes_begun) = (Arc::default(), Arc::default());
        let store =
            Self { files, seal, replica, writes, waiting_writes, last_writes, writes_begun };
        if !store.has_key().await.map_err(failed)? {
            return Err(SharedError::Key { location: name });
        }
        store.beat().await.map_err(failed)?;
        Ok(store)
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
    async fn put(&self, record: Record) -> Result<(), StoreError> {
        let (id, retry) = (record.id, retry_of(&record.retry_hash, record.id));
        let request = StoredRequest { record, owner: self.replica.to_string() };
        let (request, retry) = tokio::join!(
            self.write(File::Request(id), &request),
            self.files.put(&retry, Vec::new())
        );
        request.and(retry)
    }

    /// Runs a write of a reply in a task, after the earlier ones of that reply.
    fn in_turn<T: Send + 'static>(
        &self,
        id: RequestId,
        write: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let (done, ended) = oneshot::channel();
        let number = self.writes_begun.fetch_add(1, Ordering::Relaxed);
        let before = self.last_writes.lock().insert(id, (number, ended));
        let last_writes = self.last_writes.clone();
        self.writes.spawn(async move {
            if let Some((_, before)) = before {
                let _ = before.await;
            }
            let written = write.await;
            drop(done);
            let mut last_writes = last_writes.lock();
            if last_writes.get(&id).is_some_and(|(last, _)| *last == number) {
                last_writes.remove(&id);
            }
            written
        })
    }

    /// Writes a file of a reply in its turn.
    fn write_later(&self, id: RequestId, file: File, state: ReplyState) {
        let Ok(permit) = self.waiting_writes.clone().try_acquire_owned() else {
            tracing::warn!("the shared store is too slow: a part of a reply is not shared");
            return;
        };
        let store = self.clone();
        self.in_turn(id, async move {
            let _permit = permit;
            if let Err(error) = store.write(file, &state).await {
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

    async fn read_reply(&self, id: RequestId) -> Result<Option<StoredReply>, StoreError> {
        let (request, end, part, mark) = tokio::join!(
            self.read::<StoredRequest>(File::Request(id)),
            self.read::<ReplyState>(File::End(id)),
            self.read::<ReplyState>(File::Part(id)),
            self.read::<ReplyState>(File::Mark(id)),
        );
        let Some(StoredRequest { record, owner }) = request? else { return Ok(None) };
        let ReplyState { fingerprint, pieces, end } = end?.or(part?).or(mark?).unwrap_or_default();
        let raw = |json: Box<RawValue>| {
            let piece = serde_json::from_str(json.get()).ok()?;
            Some(Arc::new(RawPiece { piece, json }))
        };
        let pieces = pieces.into_iter().map_while(raw).collect();
        Ok(Some(StoredReply::new(record, pieces, fingerprint, end, Some(owner))))
    }

    /// Returns the latest reply that a retry with this hash repeats.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    pub(crate) async fn repeated(
        &self,
        retry_hash: &[u8; 32],
    ) -> Result<Option<RequestId>, StoreError> {
        let names = self.files.names(&retries_of(retry_hash), NAMES_PER_PAGE).await?;
        Ok(names.last().and_then(|name| id_of(name)))
    }

    /// Deletes the files of a reply; returns false if one is left.
    async fn delete(&self, id: RequestId, retry_hash: &[u8; 32]) -> bool {
        let mut names = File::of(id).map(|file| file.name()).to_vec();
        names.push(retry_of(retry_hash, id));
        let mut deleted = true;
        for name in names {
            if let Err(error) = self.files.remove(&name).await {
                let error = chain(&error);
                tracing::warn!(error, "a reply cannot be deleted from the shared store");
                deleted = false;
            }
        }
        deleted
    }

    /// Deletes the replies that were created this long ago, those of other replicas included.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached.
    async fn sweep_replies(&self, age: Duration) -> Result<(), StoreError> {
        loop {
            let names = self.files.names("replies/", NAMES_PER_PAGE).await?;
            let is_old = |name: &&String| id_of(name).is_none_or(|id| files::age(id) >= age);
            let old: Vec<&String> = names.iter().take_while(is_old).collect();
            let mut retries = Vec::new();
            for name in &old {
                let Some(id) = id_of(name).filter(|id| **name == File::Request(*id).name()) else {
                    continue;
                };
                if let Some(request) = self.read::<StoredRequest>(File::Request(id)).await? {
                    retries.push(retry_of(&request.record.retry_hash, id));
                }
            }
            // Those first: without the request, they are not found again.
            let (count, all) = (old.len(), old.len() == names.len());
            let old = old.into_iter().cloned().collect();
            self.remove_all(retries).await?;
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
}

#[async_trait]
impl ReplyStore for BucketStore {
    fn begin(&self, record: &Record) -> BoxFuture<'static, Result<(), Unstored>> {
        if record.of_batch {
            return async { Ok(()) }.boxed();
        }
        let (store, record) = (self.clone(), record.clone());
        let stored = self.in_turn(record.id, async move { store.put(record).await });
        async move {
            let stored = stored.await.map_err(|_| Unstored)?;
            stored.map_err(|error| {
                tracing::error!(error = chain(&error), "a request cannot be shared");
                Unstored
            })
        }
        .boxed()
    }

    fn note(&self, record: &Record, log: &ReplyLog, change: &Change) {
        if record.of_batch {
            return;
        }
        let id = record.id;
        match change {
            Change::Piece { fingerprint: fingerprint @ Some(_), new_worker: true, .. } => {
                let (pieces, end) = (Vec::new(), None);
                let state = ReplyState { fingerprint: *fingerprint, pieces, end };
                self.write_later(id, File::Mark(id), state);
            }
            Change::Piece { .. } | Change::Restarted { .. } => {}
            Change::Interrupted => {
                self.write_later(id, File::Part(id), ReplyState::of(log, None));
            }
            Change::Ended(end) => {
                let state = ReplyState::of(log, Some(end.clone()));
                self.write_later(id, File::End(id), state);
            }
        }
    }

    async fn load(&self, id: RequestId) -> Result<Option<StoredReply>, Unstored> {
        self.read_reply(id).await.map_err(|error| {
            tracing::error!(error = chain(&error), "the shared store cannot be read");
            Unstored
        })
    }

    fn remove(&self, record: &Record) -> BoxFuture<'static, Result<(), Unstored>> {
        let (store, id, retry_hash) = (self.clone(), record.id, record.retry_hash);
        let delete = async move { store.delete(id, &retry_hash).await };
        let deleted = self.in_turn(id, delete);
        async move {
            let deleted = deleted.await.unwrap_or_default();
            deleted.then_some(()).ok_or(Unstored)
        }
        .boxed()
    }

    async fn sweep(&self, times: Times) -> Result<(), Unstored> {
        let age = times.timeout + times.keep;
        let swept = self.sweep_replies(age).await;
        swept.and(self.sweep_notices(age).await).map_err(|error| {
            let error = chain(&error);
            tracing::warn!(error, "old replies cannot be deleted from the shared store");
            Unstored
        })
    }

    async fn flush(&self) {
        self.writes.close();
        self.writes.wait().await;
        self.writes.reopen();
    }
}

/// Returns the time since the Unix epoch in milliseconds.
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
