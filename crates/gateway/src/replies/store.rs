//! Replies on disk, sealed: what is needed to continue them after the gateway has ended.
//!
//! A thread writes to an embedded database and commits what has come since its last commit. All
//! values are sealed under a key of the gateway, bound to their place.

mod about;
mod database;
mod index;
mod objects;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime};

use nsbridge_base::private_file::open_own;
use nsbridge_client::{ModelName, RequestId, Tenant, TextInput};
use nsbridge_crypto::{AtRest, Key};
use nsbridge_protocol::{Fingerprint, Uuid};
use redb::{ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::callers::class::Class;
use crate::callers::limits::{prompt_bytes, prompt_tokens};
use crate::replies::reply_end::KeptEnding;
use crate::replies::reply_log::{Change, Ending, RawPiece};
use crate::text::extent::Extent;

use self::index::Index;
pub(crate) use self::index::Room;
pub(crate) use self::objects::{CHUNK, Kind, Unstored};

const REPLIES: TableDefinition<'_, [u8; 16], &[u8]> = TableDefinition::new("replies");
const ENDINGS: TableDefinition<'_, [u8; 16], &[u8]> = TableDefinition::new("endings");
const PIECES: TableDefinition<'_, ([u8; 16], u64), &[u8]> = TableDefinition::new("pieces");

/// Maximum number of writes that wait. Pieces beyond it are not kept, and computed again if needed.
const WAITING: usize = 16 << 10;

/// Maximum number of writes of one commit.
const BATCH: usize = 4096;

/// Request of a reply, with what another process needs to continue it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Endpoint that received the request.
    pub(crate) kind: String,
    pub(crate) id: RequestId,
    pub(crate) seed: u64,
    pub(crate) created_at: SystemTime,
    pub(crate) expires_at: SystemTime,
    pub(crate) model: ModelName,
    pub(crate) tenant: Tenant,
    /// Id of the API key.
    pub(crate) key: String,
    pub(crate) input: TextInput,
    /// Body of the request, if clients read the reply again by its id; else empty.
    pub(crate) body: String,
    /// Hash by which a retry is recognized.
    pub(crate) join: [u8; 32],
    /// Hash of the body.
    pub(crate) content: [u8; 32],
    pub(crate) background: bool,
    /// Number of clients of the queue that submitted the request before.
    pub(crate) clients: u16,
    /// Upper bound of the reply's tokens, prompt included.
    #[serde(default)]
    pub(crate) tokens: u64,
    /// True for a line of a batch.
    #[serde(default)]
    pub(crate) of_batch: bool,
    /// Class of the request in its queue.
    #[serde(default)]
    pub(crate) class: Class,
}

impl Record {
    /// Returns an estimate of the prompt's tokens, which is a part of `tokens`.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        prompt_tokens(&self.input)
    }

    /// Returns the size of the request in memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        /// Record with its allocations.
        const RECORD: usize = 2048;
        let input = &self.input;
        let lists = [&input.prompt_token_ids, &input.stop_token_ids, &input.bad_token_ids];
        let ids: usize = lists.iter().map(|list| 4 * list.len()).sum();
        let values = (&input.tools, &input.chat_template_kwargs, &input.response_format);
        let values = serde_json::to_vec(&values).map_or(0, |text| Extent::of(&text).memory());
        RECORD + self.body.len() + prompt_bytes(input) + ids + 16 * input.logit_bias.len() + values
    }
}

impl fmt::Debug for Record {
    /// Omits the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Reply as it is stored.
pub(crate) struct Kept {
    pub(crate) record: Record,
    pub(crate) pieces: Vec<Arc<RawPiece>>,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) ending: Option<Ending>,
}

/// Piece as it is stored.
#[derive(Serialize, Deserialize)]
struct KeptPiece {
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
}

/// Replies on disk.
#[derive(Debug)]
pub(crate) struct Store {
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

impl Store {
    /// Opens the store, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be used, such as one that another process has open.
    pub(crate) fn open(path: &Path, key: Key) -> Result<Self, StoreError> {
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
        let (writes, waiting) = sync_channel(WAITING);
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

    /// Stores a request. The receiver gets a value when it is on disk, or an error if it cannot be
    /// stored.
    pub(crate) fn put(&self, record: &Record) -> oneshot::Receiver<()> {
        let (done, stored) = oneshot::channel();
        if let Some(sealed) = self.seal(Place::Record(record.id), record) {
            self.index.put(record.id, &record.tenant, record.expires_at, sealed.len());
            self.write(Write::Record(record.id, sealed, done));
        }
        stored
    }

    /// Stores a change of a reply.
    pub(crate) fn note(&self, id: RequestId, change: &Change<'_>) {
        match change {
            Change::Piece { at, piece, fingerprint } => {
                let at = *at as u64;
                let kept = KeptPiece { json: piece.json.clone(), fingerprint: *fingerprint };
                if let Some(sealed) = self.seal(Place::Piece(id, at), &kept) {
                    self.index.add(id, sealed.len());
                    self.write(Write::Piece(id, at, sealed));
                }
            }
            Change::Restarted { kept } => self.write(Write::Cut(id, *kept as u64)),
            Change::Ended(ending) => {
                let kept = KeptEnding::now(ending);
                if let Some(sealed) = self.seal(Place::Ending(id), &kept) {
                    self.index.end(id, kept.at);
                    self.write(Write::Ending(id, sealed));
                }
            }
        }
    }

    /// Removes a reply. The receiver has a value when it is removed, and none if it cannot be.
    pub(crate) fn remove(&self, id: RequestId) -> oneshot::Receiver<()> {
        let (done, removed) = oneshot::channel();
        self.write(Write::Remove(id, done));
        removed
    }

    /// Removes the replies that ended this long ago.
    pub(crate) fn sweep(&self, keep: Duration) {
        self.write(Write::Sweep(keep));
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
    pub(crate) fn open_replies(&self) -> Vec<RequestId> {
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

    /// Reads a reply. Pieces after a gap are left out.
    pub(crate) fn get(&self, id: RequestId) -> Option<Kept> {
        let read = || -> Result<Option<Kept>, redb::Error> {
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
                let kept = open::<KeptPiece>(&self.seal, Place::Piece(id, at), sealed.value());
                let Some(kept) = kept.filter(|_| at == pieces.len() as u64) else { break };
                let Ok(piece) = serde_json::from_str(kept.json.get()) else { break };
                pieces.push(Arc::new(RawPiece { piece, json: kept.json }));
                fingerprint = kept.fingerprint;
            }
            let ending = transaction.open_table(ENDINGS)?;
            let ending = ending.get(key)?;
            let ending = ending
                .and_then(|kept| open::<KeptEnding>(&self.seal, Place::Ending(id), kept.value()));
            let ending = ending.map(KeptEnding::ending);
            // A complete reply of which pieces are missing is computed again.
            let whole = |ending: &Ending| match ending {
                Ending::Done(summary) => summary.pieces == pieces.len() as u64,
                Ending::Failed(_) => true,
            };
            let ending = ending.filter(whole);
            Ok(Some(Kept { record, pieces, fingerprint, ending }))
        };
        let read = read().inspect_err(|error| tracing::error!(%error, "the store cannot be read"));
        read.ok().flatten()
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
            let batch: Vec<Write> =
                std::iter::once(first).chain(waiting.try_iter().take(BATCH - 1)).collect();
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
                    // These may come after their reply was removed.
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
pub(crate) mod tests;
