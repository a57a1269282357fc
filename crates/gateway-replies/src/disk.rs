//! Replies on disk, sealed: what is needed to continue them after the gateway has ended.
//!
//! A thread writes to an embedded database and commits what has come since its last commit. All
//! values are sealed under a key of the gateway, bound to their place.

mod about;
mod database;
mod index;
mod objects;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use nsbridge_base::private_file::open_own;
use nsbridge_client::{RequestId, Summary, Tenant};
use nsbridge_crypto::{AtRest, Key};
use nsbridge_protocol::{Fingerprint, Uuid};
use redb::{ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use self::index::Index;
pub(crate) use self::index::Room;
pub use self::objects::{CHUNK_BYTES, Edit, Kind};
use crate::record::{READ_BY_ID, Record};
use crate::reply_end::{ReplyEnd, former_failure};
use crate::reply_log::{Change, RawPiece, ReplyLog};
use crate::store::{ReplyStore, StoredReply, Times, Unstored};

const REPLIES: TableDefinition<'_, [u8; 16], &[u8]> = TableDefinition::new("replies");
const ENDINGS: TableDefinition<'_, [u8; 16], &[u8]> = TableDefinition::new("endings");
const PIECES: TableDefinition<'_, ([u8; 16], u64), &[u8]> = TableDefinition::new("pieces");

/// Maximum number of writes that wait. Pieces beyond it are not kept, and computed again if needed.
const MAX_WAITING_WRITES: usize = 16 << 10;

/// Maximum number of writes of one commit.
const MAX_WRITES_PER_COMMIT: usize = 4096;

/// End of a reply, and its time, as it is stored.
#[derive(Serialize, Deserialize)]
struct DiskEnd {
    at: SystemTime,
    /// Absent in what earlier versions stored.
    #[serde(default)]
    end: Option<ReplyEnd>,
    /// Summary of a complete reply of an earlier version.
    #[serde(default, skip_serializing)]
    summary: Option<Summary>,
    /// Error message of an earlier version.
    #[serde(default, skip_serializing)]
    message: String,
}

impl DiskEnd {
    fn now(end: &ReplyEnd) -> Self {
        let (at, end) = (SystemTime::now(), Some(end.clone()));
        Self { at, end, summary: None, message: String::new() }
    }

    fn end(self) -> ReplyEnd {
        match (self.end, self.summary) {
            (Some(end), _) => end,
            (None, Some(summary)) => ReplyEnd::Done(summary),
            (None, None) => ReplyEnd::Failed(former_failure(None, self.message)),
        }
    }
}

/// Piece as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredPiece {
    json: Box<serde_json::value::RawValue>,
    fingerprint: Option<Fingerprint>,
}

/// Write to the database.
enum Write {
    Record(RequestId, Vec<u8>, oneshot::Sender<()>),
    Piece(RequestId, u64, Vec<u8>),
    /// Removes the pieces from this index on.
    Cut(RequestId, u64),
    Ending(RequestId, Vec<u8>),
    Remove(RequestId, oneshot::Sender<()>),
    Sweep(Duration),
    /// Only tells that all earlier writes are on disk.
    Flush(oneshot::Sender<()>),
}

/// Replies on the disk of one gateway, with its files and batches. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DiskStore {
    database: Arc<database::Place>,
    seal: Arc<AtRest>,
    index: Arc<Index>,
    writes: SyncSender<Write>,
}

/// Error of the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database cannot be opened or read.
    #[error("the store {path} cannot be used: is another gateway running with it?")]
    Database {
        /// Path of the file.
        path: String,
        /// Cause.
        #[source]
        cause: Box<redb::Error>,
    },
    /// The database has replies that another key sealed.
    #[error(
        "the store {path} is sealed under another key: give the key file of its first start, or \
         move the store away"
    )]
    OtherKey {
        /// Path of the file.
        path: String,
    },
    /// The thread that writes cannot be started.
    #[error("the thread of the store cannot be started")]
    Thread(#[source] std::io::Error),
}

impl DiskStore {
    /// Opens the store, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be used, such as one that another process has open.
    pub fn open(path: &Path, key: Key) -> Result<Self, StoreError> {
        let unusable = |cause: redb::Error| StoreError::Database {
            path: path.display().to_string(),
            cause: Box::new(cause),
        };
        drop(open_own(path).map_err(|error| unusable(redb::Error::Io(error)))?);
        let database = database::Place::of_file(path).map_err(unusable)?;
        let tables = || -> Result<(), redb::Error> {
            let transaction = database.begin_write()?;
            transaction.open_table(REPLIES)?;
            transaction.open_table(ENDINGS)?;
            transaction.open_table(PIECES)?;
            objects::create_tables(&transaction)?;
            transaction.commit()?;
            Ok(())
        };
        tables().map_err(unusable)?;
        let seal = Arc::new(AtRest::new(key));
        if !about::is_own(&database, &seal).map_err(unusable)? {
            return Err(StoreError::OtherKey { path: path.display().to_string() });
        }
        let database = Arc::new(database);
        let (writes, waiting) = sync_channel(MAX_WAITING_WRITES);
        let index = Arc::new(Index::of(&database, &seal).map_err(unusable)?);
        let (kept, of) = (database.clone(), index.clone());
        let own = Writer { database: kept, index: of };
        std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || own.run(&waiting))
            .map_err(StoreError::Thread)?;
        Ok(Self { database, seal, index, writes })
    }

    /// Returns true if the store cannot be written now, such as on a full disk.
    pub(crate) fn fails(&self) -> bool {
        self.database.fails()
    }

    /// Returns the room that a tenant's replies, and those of all tenants, leave for one more.
    pub(crate) fn room(&self, tenant: &Tenant) -> Room {
        self.index.room(tenant)
    }

    fn write(&self, write: Write) {
        if let Err(TrySendError::Full(_)) = self.writes.try_send(write) {
            tracing::warn!("the store is too slow: a part of a reply is not kept");
        }
    }

    fn seal(&self, place: Place, value: &impl Serialize) -> Option<Vec<u8>> {
        let value = serde_json::to_vec(value).ok()?;
        let sealed = self.seal.seal(&place.bytes(), &value);
        let failed = |error: &_| tracing::warn!(%error, "a part of a reply cannot be sealed");
        sealed.inspect_err(failed).ok()
    }

    /// Returns the ids of the replies without an end.
    pub(crate) async fn open_replies(&self) -> Vec<RequestId> {
        let store = self.clone();
        let read = tokio::task::spawn_blocking(move || store.read_open_replies());
        read.await.unwrap_or_default()
    }

    /// Reads the ids of the replies without an end. It blocks.
    fn read_open_replies(&self) -> Vec<RequestId> {
        let read = || -> Result<Vec<RequestId>, redb::Error> {
            let transaction = self.database.begin_read()?;
            let (replies, endings) =
                (transaction.open_table(REPLIES)?, transaction.open_table(ENDINGS)?);
            let mut open = Vec::new();
            for entry in replies.iter()? {
                let id = entry?.0.value();
                if endings.get(id)?.is_none() {
                    open.push(RequestId(Uuid::from_bytes(id)));
                }
            }
            Ok(open)
        };
        read()
            .inspect_err(|error| tracing::error!(%error, "the store cannot be read"))
            .unwrap_or_default()
    }

    /// Reads a reply. It blocks.
    fn read(&self, id: RequestId) -> Result<Option<StoredReply>, redb::Error> {
        let transaction = self.database.begin_read()?;
        let key = *id.as_bytes();
        let replies = transaction.open_table(REPLIES)?;
        let Some(record) = replies.get(key)? else { return Ok(None) };
        let Some(record) = open::<Record>(&self.seal, Place::Record(id), record.value()) else {
            return Ok(None);
        };
        let (mut pieces, mut fingerprint) = (Vec::new(), None);
        for entry in transaction.open_table(PIECES)?.range((key, 0)..=(key, u64::MAX))? {
            let (at, sealed) = entry?;
            let at = at.value().1;
            let stored = open::<StoredPiece>(&self.seal, Place::Piece(id, at), sealed.value());
            let Some(stored) = stored.filter(|_| at == pieces.len() as u64) else { break };
            let Ok(piece) = serde_json::from_str(stored.json.get()) else { break };
            pieces.push(Arc::new(RawPiece { piece, json: stored.json }));
            fingerprint = stored.fingerprint;
        }
        let endings = transaction.open_table(ENDINGS)?;
        let ending = endings.get(key)?;
        let ending =
            ending.and_then(|it| open::<DiskEnd>(&self.seal, Place::Ending(id), it.value()));
        let end = ending.map(DiskEnd::end);
        Ok(Some(StoredReply::new(record, pieces, fingerprint, end, None)))
    }
}

#[async_trait]
impl ReplyStore for DiskStore {
    fn begin(&self, record: &Record) -> BoxFuture<'static, Result<(), Unstored>> {
        let (done, stored) = oneshot::channel();
        if let Some(sealed) = self.seal(Place::Record(record.id), record) {
            self.index.put(record.id, &record.tenant, record.expires_at, sealed.len());
            self.write(Write::Record(record.id, sealed, done));
        }
        // Replies that their clients do not find again need not be safe before they begin.
        let waits = record.background || record.of_batch || record.kind == READ_BY_ID;
        async move { if waits { stored.await.map_err(|_| Unstored) } else { Ok(()) } }.boxed()
    }

    fn note(&self, record: &Record, _: &ReplyLog, change: &Change) {
        let id = record.id;
        match change {
            Change::Piece { index, piece, fingerprint, .. } => {
                let at = *index as u64;
                let stored = StoredPiece { json: piece.json.clone(), fingerprint: *fingerprint };
                if let Some(sealed) = self.seal(Place::Piece(id, at), &stored) {
                    self.index.add(id, sealed.len());
                    self.write(Write::Piece(id, at, sealed));
                }
            }
            Change::Restarted { kept } => self.write(Write::Cut(id, *kept as u64)),
            // The next process, or a client that comes back, continues it.
            Change::Interrupted => {}
            Change::Ended(end) => {
                let stored = DiskEnd::now(end);
                if let Some(sealed) = self.seal(Place::Ending(id), &stored) {
                    self.index.end(id, stored.at);
                    self.write(Write::Ending(id, sealed));
                }
            }
        }
    }

    async fn load(&self, id: RequestId) -> Result<Option<StoredReply>, Unstored> {
        let store = self.clone();
        let read = tokio::task::spawn_blocking(move || store.read(id));
        let read = read.await.map_err(|_| Unstored)?;
        read.map_err(|error| {
            tracing::error!(%error, "the store cannot be read");
            Unstored
        })
    }

    fn remove(&self, record: &Record) -> BoxFuture<'static, Result<(), Unstored>> {
        let (done, removed) = oneshot::channel();
        self.write(Write::Remove(record.id, done));
        async move { removed.await.map_err(|_| Unstored) }.boxed()
    }

    async fn sweep(&self, times: Times) -> Result<(), Unstored> {
        self.write(Write::Sweep(times.keep));
        Ok(())
    }

    async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        let writes = self.writes.clone();
        // It waits for its place in a full queue.
        let _ = tokio::task::spawn_blocking(move || writes.send(Write::Flush(done))).await;
        // A failed write is in the log.
        let _ = flushed.await;
    }
}

/// Thread that writes.
struct Writer {
    database: Arc<database::Place>,
    index: Arc<Index>,
}

impl Writer {
    /// Writes until the store is dropped.
    fn run(&self, waiting: &Receiver<Write>) {
        while let Ok(first) = waiting.recv() {
            let batch: Vec<Write> = std::iter::once(first)
                .chain(waiting.try_iter().take(MAX_WRITES_PER_COMMIT - 1))
                .collect();
            let committed = self.commit(batch);
            self.database.wrote(committed.is_ok());
            match committed {
                // A caller whose channel is dropped without a value learns of the failure.
                Ok(stored) => {
                    for done in stored {
                        // The caller may be gone.
                        let _ = done.send(());
                    }
                }
                Err(error) => tracing::error!(%error, "the store cannot be written"),
            }
        }
    }

    fn commit(&self, batch: Vec<Write>) -> Result<Vec<oneshot::Sender<()>>, redb::Error> {
        let (mut stored, mut gone) = (Vec::new(), Vec::new());
        let transaction = self.database.begin_write()?;
        {
            let mut replies = transaction.open_table(REPLIES)?;
            let mut endings = transaction.open_table(ENDINGS)?;
            let mut pieces = transaction.open_table(PIECES)?;
            for write in batch {
                match write {
                    Write::Record(id, sealed, done) => {
                        replies.insert(*id.as_bytes(), sealed.as_slice())?;
                        endings.remove(*id.as_bytes())?;
                        stored.push(done);
                    }
                    // A sweep may remove a reply that is still computed, and its rest comes later.
                    Write::Piece(id, ..) | Write::Ending(id, _)
                        if !self.index.has(id) || gone.contains(&id) => {}
                    Write::Piece(id, at, sealed) => {
                        pieces.insert((*id.as_bytes(), at), sealed.as_slice())?;
                    }
                    Write::Cut(id, from) => {
                        let key = *id.as_bytes();
                        pieces.retain_in((key, from)..=(key, u64::MAX), |_, _| false)?;
                    }
                    Write::Ending(id, sealed) => {
                        endings.insert(*id.as_bytes(), sealed.as_slice())?;
                    }
                    Write::Remove(id, done) => {
                        let key = *id.as_bytes();
                        replies.remove(key)?;
                        endings.remove(key)?;
                        pieces.retain_in((key, 0)..=(key, u64::MAX), |_, _| false)?;
                        gone.push(id);
                        stored.push(done);
                    }
                    Write::Flush(done) => stored.push(done),
                    Write::Sweep(keep) => {
                        for id in self.index.old(keep) {
                            let key = *id.as_bytes();
                            replies.remove(key)?;
                            endings.remove(key)?;
                            pieces.retain_in((key, 0)..=(key, u64::MAX), |_, _| false)?;
                            gone.push(id);
                        }
                        if self.database.fails() {
                            about::probe(&transaction)?;
                        }
                    }
                }
            }
        }
        transaction.commit()?;
        gone.into_iter().for_each(|id| self.index.remove(id));
        Ok(stored)
    }
}

/// Place of a value, which it is bound to.
#[derive(Clone, Copy)]
enum Place {
    Record(RequestId),
    Piece(RequestId, u64),
    Ending(RequestId),
    File(Uuid),
    Chunk(Uuid, u64),
    Batch(Uuid),
    Result(Uuid, u64),
    Key,
}

impl Place {
    fn bytes(self) -> [u8; 25] {
        let (kind, id, at) = match self {
            Self::Record(id) => (0, id.0, 0),
            Self::Piece(id, at) => (1, id.0, at),
            Self::Ending(id) => (2, id.0, 0),
            Self::File(id) => (3, id, 0),
            Self::Chunk(id, at) => (4, id, at),
            Self::Batch(id) => (5, id, 0),
            Self::Result(id, at) => (6, id, at),
            Self::Key => (7, Uuid::nil(), 0),
        };
        let mut bytes = [kind; 25];
        bytes[1..17].copy_from_slice(id.as_bytes());
        bytes[17..].copy_from_slice(&at.to_be_bytes());
        bytes
    }
}

/// Opens a value; `None` if it was sealed under another key, or was changed.
fn open<T: for<'de> Deserialize<'de>>(seal: &AtRest, place: Place, sealed: &[u8]) -> Option<T> {
    serde_json::from_slice(&seal.open(&place.bytes(), sealed).ok()?).ok()
}

#[cfg(test)]
mod tests;
