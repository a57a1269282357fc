//! Replies by their id: started, joined by retries, continued after a restart, kept for a while.

mod compute;
mod find;
mod lines;
mod replicas;
mod retries;
mod settle;
mod sweep;
mod table;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nsbridge_client::{ModelName, TextInput, TraceParent};
use nsbridge_gateway_access::{Caller, Held, Priority, Reservation};
use nsbridge_protocol::{RequestId, Uuid};
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

pub use self::lines::Line;
pub use self::table::Entry;
use self::table::Table;
use crate::bucket::BucketStore;
use crate::disk::{DiskStore, Room};
use crate::failure::{Failure, Result};
use crate::observer::Observer;
use crate::record::{READ_BY_ID, Record};
use crate::reply_end::ReplyEnd;
use crate::reply_log::{Reader, ReplyLog};
use crate::store::{ReplyStore, Times};
use crate::workers::Workers;

/// Time limit for the publishing of a request whose client waits. The broker is then taken for
/// unreachable.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Mask for random seeds: 53 bits, which every JSON parser represents exactly.
const SEED_BITS: u64 = (1 << 53) - 1;

/// Request for one reply.
#[derive(Clone)]
pub struct Ask {
    /// Queue of the model.
    pub model: ModelName,
    /// Input of the worker's handler.
    pub input: TextInput,
    /// Seed of the sampling; a random one if `None`.
    pub seed: Option<u64>,
    /// Upper bound of its tokens.
    pub tokens: u64,
    /// True if the reply goes on without a connection that reads it.
    pub background: bool,
    /// Class of the request in its queue.
    pub class: Priority,
    /// Time after which the reply fails while its model has no worker; without a limit if `None`.
    pub patience: Option<Duration>,
}

impl fmt::Debug for Ask {
    /// Omits the input.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask").field("model", &self.model).finish_non_exhaustive()
    }
}

/// Headers of a request, and other things beside its body, that concern the reply.
#[derive(Clone, Debug, Default)]
pub struct RequestContext {
    /// Parent of the spans of workers.
    pub trace: Option<TraceParent>,
    /// Header `Idempotency-Key`.
    pub idempotency_key: Option<String>,
    /// True if an official client sends the request again.
    pub retries: bool,
    /// Line of a batch that the request is; no header says so.
    pub line: Option<Line>,
    /// Memory of the request; none for a line.
    pub memory: Option<Arc<Held>>,
    /// Time for which a client that sees no byte waits for a model without a worker; without a limit
    /// if `None`.
    pub patience: Option<Duration>,
}

impl RequestContext {
    /// Takes memory for what is made of the request beyond its body.
    ///
    /// # Errors
    ///
    /// Returns an error if the requests of the tenant have all the memory that it may have.
    pub fn take(&self, bytes: usize) -> Result<()> {
        let taken = self.memory.as_ref().is_none_or(|memory| memory.take(bytes));
        if taken { Ok(()) } else { Err(Failure::crowded()) }
    }

    /// Gives memory back, all but this number of bytes.
    pub fn keep(&self, bytes: usize) {
        if let Some(memory) = &self.memory {
            memory.keep(bytes);
        }
    }

    /// Gives back the memory of the parsed request, which is submitted.
    pub fn submitted(&self) {
        if let Some(memory) = &self.memory {
            memory.submitted();
        }
    }
}

/// Stores of replies.
#[derive(Debug, Default)]
pub struct Stores {
    /// Replies of this gateway, on its disk.
    pub disk: Option<DiskStore>,
    /// Replies of all replicas.
    pub bucket: Option<BucketStore>,
}

/// Replies in progress, and those that ended recently.
pub struct Replies {
    client: nsbridge_client::Client,
    workers: Arc<Workers>,
    stores: Stores,
    times: Times,
    /// Tasks that read replies.
    driving: TaskTracker,
    /// Key of the hashes by which retries are recognized.
    hash_key: [u8; 32],
    observer: Arc<dyn Observer>,
    table: Mutex<Table>,
}

impl fmt::Debug for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replies").field("entries", &self.table.lock().entries.len()).finish()
    }
}

impl Replies {
    /// Creates the replies of a gateway. `hash_key` is the key of the hashes by which retries are
    /// recognized; replicas have the same.
    pub fn new(
        client: nsbridge_client::Client,
        workers: Arc<Workers>,
        stores: Stores,
        times: Times,
        hash_key: [u8; 32],
        observer: Arc<dyn Observer>,
    ) -> Self {
        let (driving, table) = (TaskTracker::new(), Mutex::default());
        Self { client, workers, stores, times, driving, hash_key, observer, table }
    }

    /// Returns the stores, in the order in which a reply is looked up.
    fn stores(&self) -> impl Iterator<Item = &dyn ReplyStore> {
        let disk = self.stores.disk.as_ref().map(|disk| disk as &dyn ReplyStore);
        disk.into_iter().chain(self.stores.bucket.as_ref().map(|bucket| bucket as &dyn ReplyStore))
    }

    /// Starts a reply, or joins the one that this request repeats. `kind` is the endpoint, and
    /// `body` the body of the request.
    ///
    /// # Errors
    ///
    /// Returns an error if the request cannot be submitted, or if its caller has reached a limit.
    pub async fn start(
        self: &Arc<Self>,
        kind: &str,
        ask: Ask,
        caller: &Caller,
        context: &RequestContext,
        body: &[u8],
    ) -> Result<(Arc<ReplyLog>, Reader)> {
        if let Some(line) = &context.line {
            return self.start_line(kind, ask, caller, context, line, body).await;
        }
        let (retry_hash, content_hash) = self.hashes(kind, caller, context, body);
        let named = context.idempotency_key.is_some();
        // A client tells that it tries again, and not which of its equal requests was refused.
        let repeats = named || context.retries && !self.table.lock().was_refused(&retry_hash);
        let (tokens, patience) = (ask.tokens, ask.patience);
        let begun = async {
            let repeated = if repeats { self.repeated(&retry_hash).await? } else { None };
            if let Some(entry) = repeated {
                return self.repeat(&entry, caller, tokens, content_hash).await;
            }
            let reservation = self.reserve(caller, tokens)?;
            let body = body_to_keep(kind, body);
            let record = self.record(kind, ask, caller, (retry_hash, content_hash), body)?;
            self.admit(&record)?;
            match self.add(record, named) {
                Ok(entry) => {
                    entry.log.limit_wait(patience);
                    self.begin(&entry, reservation, context.trace).await
                }
                // Another connection began it in the meantime.
                Err(entry) => {
                    drop(reservation);
                    self.repeat(&entry, caller, tokens, content_hash).await
                }
            }
        };
        let begun = begun.await;
        match &begun {
            Ok((log, _)) => {
                context.submitted();
                log.limit_wait(patience);
            }
            Err(_) if !named => self.table.lock().refuse(retry_hash),
            Err(_) => {}
        }
        begun
    }

    /// Refuses a request whose tenant has no room for it, in memory or in the store.
    fn admit(&self, record: &Record) -> Result<()> {
        match self.stores.disk.as_ref().map_or(Room::Free, |disk| disk.room(&record.tenant)) {
            Room::Free if self.table.lock().admits(&record.tenant, record.bytes()) => Ok(()),
            Room::Free => Err(Failure::crowded()),
            Room::NoneForTenant => Err(Failure::storage_limit()),
            Room::NoneForAll => Err(Failure::store_full()),
        }
    }

    /// Returns true if replies cannot be stored now.
    pub fn cannot_store(&self) -> bool {
        self.stores.disk.as_ref().is_some_and(DiskStore::fails)
    }

    /// Returns the record of a new request: under the hash of its retries and that of its content,
    /// with the body that is kept.
    fn record(
        &self,
        kind: &str,
        ask: Ask,
        caller: &Caller,
        (retry_hash, content_hash): ([u8; 32], [u8; 32]),
        body: String,
    ) -> Result<Record> {
        let now = SystemTime::now();
        Ok(Record {
            kind: kind.to_owned(),
            id: RequestId(Uuid::now_v7()),
            seed: match ask.seed {
                Some(seed) => seed,
                None => getrandom::u64().map_err(|_| no_randomness())? & SEED_BITS,
            },
            created_at: now,
            expires_at: now + self.times.timeout,
            model: ask.model,
            tenant: caller.tenant.clone(),
            key: caller.id.to_string(),
            input: ask.input,
            body,
            retry_hash,
            content_hash,
            background: ask.background,
            clients: 0,
            tokens: ask.tokens,
            of_batch: false,
            class: ask.class,
        })
    }

    /// Joins a reply that the request repeats.
    async fn repeat(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        caller: &Caller,
        tokens: u64,
        content_hash: [u8; 32],
    ) -> Result<(Arc<ReplyLog>, Reader)> {
        if entry.record.content_hash != content_hash {
            let message = "this Idempotency-Key belongs to a request with another body";
            return Err(Failure::bad_request(message).coded("idempotency_key_reused"));
        }
        self.observer.joined();
        self.join(entry, caller, tokens).await
    }

    /// Stores the request of a new entry and submits it.
    async fn begin(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        reservation: Reservation,
        trace: Option<TraceParent>,
    ) -> Result<(Arc<ReplyLog>, Reader)> {
        let reader = entry.log.reader();
        let kept = self.keep(&entry.record);
        if let Err(error) =
            self.submit(entry, trace, Some(reservation), Some(PUBLISH_TIMEOUT)).await
        {
            if !entry.record.of_batch {
                // No client has its id, and a retry is a new request.
                let _ = kept.await;
                drop(self.remove(entry));
            }
            return Err(error);
        }
        // The client may leave, and this process may end, as soon as the client has the id.
        if let Err(error) = kept.await {
            drop(self.remove(entry));
            return Err(error);
        }
        Ok((entry.log.clone(), reader))
    }

    /// Begins to store a request. The future ends when it is stored as safely as its endpoint
    /// promises.
    fn keep(&self, record: &Record) -> impl Future<Output = Result<()>> + use<> {
        let stored: Vec<_> = self.stores().map(|store| store.begin(record)).collect();
        async move {
            for stored in stored {
                stored.await.map_err(|_| not_stored())?;
            }
            Ok(())
        }
    }

    fn reserve(&self, caller: &Caller, tokens: u64) -> Result<Reservation> {
        let reservation = caller.limiter.reserve(tokens)?;
        self.observer.reserved(tokens);
        Ok(reservation)
    }

    /// Joins a reply; continues it if it was given up, or if it was interrupted.
    async fn join(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        caller: &Caller,
        tokens: u64,
    ) -> Result<(Arc<ReplyLog>, Reader)> {
        let interrupted = match entry.log.end() {
            None => entry.log.is_cancelled(),
            Some(ReplyEnd::Done(_)) => false,
            Some(ReplyEnd::Failed(_)) => true,
        };
        if !interrupted {
            return Ok((entry.log.clone(), entry.log.reader()));
        }
        let reservation = self.reserve(caller, tokens)?;
        self.go_on(entry, Some(reservation), Some(PUBLISH_TIMEOUT)).await
    }

    /// Continues an interrupted reply. `patience` is the time limit for its publishing.
    async fn go_on(
        self: &Arc<Self>,
        entry: &Entry,
        reservation: Option<Reservation>,
        patience: Option<Duration>,
    ) -> Result<(Arc<ReplyLog>, Reader)> {
        let (entry, new) = self.revive(entry)?;
        let reader = entry.log.reader();
        if new {
            self.submit(&entry, None, reservation, patience).await?;
        }
        Ok((entry.log.clone(), reader))
    }

    /// Replaces an interrupted reply by one that continues it. Returns `false` with the one that
    /// does so already.
    ///
    /// # Errors
    ///
    /// Returns an error if the reply was removed.
    fn revive(&self, entry: &Entry) -> Result<(Arc<Entry>, bool)> {
        let is_removed = entry.removal.lock();
        if *is_removed {
            return Err(Failure::not_found(format!("there is no response `{}`", entry.record.id)));
        }
        let mut table = self.table.lock();
        if let Some(other) = table.entries.get(&entry.record.id).filter(|other| other.is_live()) {
            return Ok((other.clone(), false));
        }
        let (pieces, fingerprint) = entry.log.pieces();
        let clients = entry.record.clients.saturating_add(1);
        let record = Record { clients, ..entry.record.clone() };
        let revived = Entry::new(record, false, entry.removal.clone());
        revived.log.restore(pieces, fingerprint, None);
        table.insert(&revived);
        Ok((revived, true))
    }

    /// Adds the entry of a new request. The error is the entry that the hash of a request with an
    /// idempotency key has already.
    fn add(&self, record: Record, named: bool) -> std::result::Result<Arc<Entry>, Arc<Entry>> {
        let mut table = self.table.lock();
        if named && let Some(other) = table.repeated(&record.retry_hash) {
            return Err(other);
        }
        let removal = table.new_removal(record.id);
        let entry = Entry::new(record, false, removal);
        table.insert(&entry);
        let is_due = table.is_due();
        drop(table);
        if is_due {
            self.make_room();
        }
        Ok(entry)
    }
}

/// Returns the body of a request as it is kept: only replies that clients read by their id are shown
/// again from their requests.
fn body_to_keep(kind: &str, body: &[u8]) -> String {
    if kind == READ_BY_ID { String::from_utf8_lossy(body).into_owned() } else { String::new() }
}

fn late() -> Failure {
    Failure::timeout("the reply was not complete at its deadline")
}

/// Failure of a request that needs a store which cannot be read.
fn unreadable() -> Failure {
    let message = "the stored replies cannot be read now";
    Failure::unavailable(message, Duration::from_secs(5)).coded("store_unavailable")
}

fn no_randomness() -> Failure {
    Failure::internal("the operating system provides no randomness")
}

fn not_stored() -> Failure {
    let message = "the reply cannot be stored, and a reply that could be lost is not begun";
    Failure::unavailable(message, Duration::from_secs(5)).coded("store_unavailable")
}

#[cfg(test)]
mod tests;
