//! Replies by their id: started, joined by retries, continued after a restart, kept for a while.

mod compute;
mod entry;
mod lines;
mod replicas;
mod retries;
mod settle;
mod sweep;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nsbridge_base::chain;
use nsbridge_client::{ModelName, TextInput, TraceParent};
use nsbridge_protocol::{RequestId, Uuid};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

pub(crate) use self::entry::Entry;
use self::entry::Known;
pub(crate) use self::lines::Line;
use crate::callers::access::{Caller, Reservation};
use crate::callers::class::Class;
use crate::callers::limits;
use crate::callers::memory::Held;
use crate::metrics::Metrics;
use crate::replies::reply_log::{Ending, Reader, ReplyLog};
use crate::replies::shared::Shared;
use crate::replies::store::{Record, Room, Store};
use crate::text::error::{ApiError, Result};

/// Endpoint whose replies clients read again by their id.
const READ_BY_ID: &str = "response";

/// Time limit for the publishing of a request whose client waits. The broker is then taken for
/// unreachable.
const PUBLISH: Duration = Duration::from_secs(5);

/// Mask for random seeds: 53 bits, which every JSON parser represents exactly.
const SEED_BITS: u64 = (1 << 53) - 1;

/// Request for one reply.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) model: ModelName,
    pub(crate) input: TextInput,
    pub(crate) seed: Option<u64>,
    /// Upper bound of its tokens.
    pub(crate) tokens: u64,
    /// True if the reply goes on without a connection that reads it.
    pub(crate) background: bool,
    pub(crate) class: Class,
}

/// Headers of a request that concern its reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestContext {
    pub(crate) trace: Option<TraceParent>,
    /// Header `Idempotency-Key`.
    pub(crate) idempotency_key: Option<String>,
    /// True if an official client sends the request again.
    pub(crate) retries: bool,
    /// Line of a batch that the request is; no header says so.
    pub(crate) line: Option<Line>,
    /// Memory of the request; none for a line.
    pub(crate) memory: Option<Arc<Held>>,
}

impl RequestContext {
    /// Takes memory for what is made of the request beyond its body.
    ///
    /// # Errors
    ///
    /// Returns an error if the requests of the tenant have all the memory that it may have.
    pub(crate) fn take(&self, bytes: usize) -> Result<()> {
        let taken = self.memory.as_ref().is_none_or(|memory| memory.take(bytes));
        if taken { Ok(()) } else { Err(ApiError::crowded()) }
    }

    /// Gives memory back, all but this number of bytes.
    pub(crate) fn keep(&self, bytes: usize) {
        if let Some(memory) = &self.memory {
            memory.keep(bytes);
        }
    }

    /// Gives back the memory of the parsed request, which is submitted.
    pub(crate) fn submitted(&self) {
        if let Some(memory) = &self.memory {
            memory.submitted();
        }
    }
}

/// Times for which replies are computed and kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) timeout: Duration,
    pub(crate) keep: Duration,
}

/// Storage of replies.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    /// Replies of this gateway, on its disk.
    pub(crate) own: Option<Arc<Store>>,
    /// Replies of all replicas.
    pub(crate) shared: Option<Arc<Shared>>,
}

/// Replies in progress, and those that ended recently.
pub(crate) struct Replies {
    client: nsbridge_client::Client,
    store: Option<Arc<Store>>,
    shared: Option<Arc<Shared>>,
    times: Times,
    /// Tasks that read replies.
    driving: TaskTracker,
    /// Key of the hashes by which retries are recognized.
    hash_key: [u8; 32],
    metrics: Metrics,
    known: Mutex<Known>,
}

impl fmt::Debug for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replies").field("entries", &self.known.lock().entries.len()).finish()
    }
}

impl Replies {
    pub(crate) fn new(
        client: nsbridge_client::Client,
        stores: Stores,
        times: Times,
        hash_key: [u8; 32],
        metrics: Metrics,
    ) -> Self {
        let (Stores { own: store, shared }, driving) = (stores, TaskTracker::new());
        Self { client, store, shared, times, driving, hash_key, metrics, known: Mutex::default() }
    }

    /// Starts a reply, or joins the one that this request repeats. `kind` is the endpoint, and
    /// `body` the body of the request.
    ///
    /// # Errors
    ///
    /// Returns an error if the request cannot be submitted, or if its caller has reached a limit.
    pub(crate) async fn start(
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
        let (join, content) = self.hashes(kind, caller, context, body);
        let named = context.idempotency_key.is_some();
        // A client tells that it tries again, and not which of its equal requests was refused.
        let repeats = named || context.retries && !self.known.lock().was_refused(&join);
        let tokens = ask.tokens;
        let begun = async {
            let repeated = if repeats { self.joined(&join).await? } else { None };
            if let Some(entry) = repeated {
                return self.repeat(&entry, caller, tokens, content).await;
            }
            let reservation = self.reserve(caller, tokens)?;
            let body = body_to_keep(kind, body);
            let record = self.record(kind, ask, caller, (join, content), body)?;
            self.admit(&record)?;
            match self.add(record, named) {
                Ok(entry) => self.begin(&entry, reservation, context.trace).await,
                // Another connection began it in the meantime.
                Err(entry) => {
                    drop(reservation);
                    self.repeat(&entry, caller, tokens, content).await
                }
            }
        };
        let begun = begun.await;
        match &begun {
            Ok(_) => context.submitted(),
            Err(_) if !named => self.known.lock().refuse(join),
            Err(_) => {}
        }
        begun
    }

    /// Refuses a request whose tenant has no room for it, in memory or in the store.
    fn admit(&self, record: &Record) -> Result<()> {
        match self.store.as_ref().map_or(Room::Free, |store| store.room(&record.tenant)) {
            Room::Free if self.known.lock().admits(&record.tenant, record.bytes()) => Ok(()),
            Room::Free => Err(ApiError::crowded()),
            Room::NoneForTenant => Err(ApiError::storage_limit()),
            Room::NoneForAll => Err(ApiError::store_full()),
        }
    }

    /// Returns true if replies cannot be stored now.
    pub(crate) fn cannot_store(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.fails())
    }

    /// Returns the record of a new request: under the hash of its retries and that of its content,
    /// with the body that is kept.
    fn record(
        &self,
        kind: &str,
        ask: Ask,
        caller: &Caller,
        (join, content): ([u8; 32], [u8; 32]),
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
            join,
            content,
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
        content: [u8; 32],
    ) -> Result<(Arc<ReplyLog>, Reader)> {
        if entry.record.content != content {
            let message = "this Idempotency-Key belongs to a request with another body";
            return Err(ApiError::bad_request(message).coded("idempotency_key_reused"));
        }
        self.metrics.joined();
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
        if let Err(error) = self.submit(entry, trace, Some(reservation), Some(PUBLISH)).await {
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
        let own = self.store.as_ref().map(|store| store.put(record));
        let waits = record.background || record.of_batch || record.kind == READ_BY_ID;
        let own = own.filter(|_| waits);
        let shared = self.shared.clone().filter(|_| !record.of_batch).map(|shared| {
            let record = record.clone();
            tokio::spawn(async move { shared.put(record).await })
        });
        async move {
            if let Some(own) = own {
                own.await.map_err(|_| not_stored())?;
            }
            let Some(shared) = shared else { return Ok(()) };
            let stored = shared.await.map_err(|_| not_stored())?;
            stored.map_err(|error| {
                tracing::error!(error = chain(&error), "a request cannot be shared");
                not_stored()
            })
        }
    }

    fn reserve(&self, caller: &Caller, tokens: u64) -> Result<Reservation> {
        let reservation = limits::reserve(caller, tokens)?;
        self.metrics.reserved(tokens);
        Ok(reservation)
    }

    /// Joins a reply; continues it if it was given up, or if it was interrupted.
    async fn join(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        caller: &Caller,
        tokens: u64,
    ) -> Result<(Arc<ReplyLog>, Reader)> {
        let interrupted = match entry.log.ending() {
            None => entry.log.is_cancelled(),
            Some(Ending::Done(_)) => false,
            Some(Ending::Failed(_)) => true,
        };
        if !interrupted {
            return Ok((entry.log.clone(), entry.log.reader()));
        }
        let reservation = self.reserve(caller, tokens)?;
        self.go_on(entry, Some(reservation), Some(PUBLISH)).await
    }

    /// Continues an interrupted reply. `patience` is the time limit for its publishing.
    async fn go_on(
        self: &Arc<Self>,
        entry: &Entry,
        reservation: Option<Reservation>,
        patience: Option<Duration>,
    ) -> Result<(Arc<ReplyLog>, Reader)> {
        let (entry, new) = self.revive(entry);
        let reader = entry.log.reader();
        if new {
            self.submit(&entry, None, reservation, patience).await?;
        }
        Ok((entry.log.clone(), reader))
    }

    /// Replaces an interrupted reply by one that continues it. Returns `false` with the one that
    /// does so already.
    fn revive(&self, entry: &Entry) -> (Arc<Entry>, bool) {
        let mut known = self.known.lock();
        if let Some(other) = known.entries.get(&entry.record.id).filter(|other| other.is_live()) {
            return (other.clone(), false);
        }
        let (pieces, fingerprint) = entry.log.pieces();
        let clients = entry.record.clients.saturating_add(1);
        let revived = Entry::new(Record { clients, ..entry.record.clone() }, false);
        revived.log.restore(pieces, fingerprint, None);
        *revived.marked.lock() = fingerprint;
        known.insert(&revived);
        (revived, true)
    }

    /// Adds the entry of a new request. The error is the entry that the hash of a request with an
    /// idempotency key has already.
    fn add(&self, record: Record, named: bool) -> std::result::Result<Arc<Entry>, Arc<Entry>> {
        let mut known = self.known.lock();
        if named && let Some(other) = known.joined(&record.join) {
            return Err(other);
        }
        let entry = Entry::new(record, false);
        known.insert(&entry);
        let is_due = known.is_due();
        drop(known);
        if is_due {
            self.make_room();
        }
        Ok(entry)
    }

    /// Returns a reply of the caller's key.
    ///
    /// # Errors
    ///
    /// Returns an error if there is none, or if another key has it.
    pub(crate) async fn find(
        self: &Arc<Self>,
        id: Option<RequestId>,
        caller: &Caller,
        name: &str,
    ) -> Result<Arc<Entry>> {
        let none = || {
            let name: String = name.chars().take(100).collect();
            ApiError::not_found(format!("there is no response `{name}`"))
        };
        let id = id.ok_or_else(none)?;
        let entry = self.known.lock().entries.get(&id).cloned();
        let entry = entry.or_else(|| self.load(self.store.as_ref()?, id));
        let entry = match entry {
            Some(entry) => Some(entry),
            None => self.elsewhere(id).await?,
        };
        let own = |entry: &Arc<Entry>| {
            entry.record.key == caller.id.to_string() && entry.record.tenant == caller.tenant
        };
        let entry = entry.filter(own).ok_or_else(none)?;
        self.take_over_lost(entry).await
    }

    /// Reads a reply that is only in the store.
    fn load(&self, store: &Store, id: RequestId) -> Option<Arc<Entry>> {
        let entry = Entry::restored(store.get(id)?, false);
        if entry.log.ending().is_none() {
            // No task reads it.
            entry.log.cancel();
        }
        let mut known = self.known.lock();
        // Another connection may have read it, and continued it, in the meantime.
        if let Some(other) = known.entries.get(&id) {
            return Some(other.clone());
        }
        known.insert(&entry);
        Some(entry)
    }

    /// Returns a reader of a reply. A reply that was interrupted by a restart of the gateway, by
    /// the loss of its last connection, or that another replica computed, is continued.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be submitted, or if the caller has reached a limit.
    pub(crate) async fn read(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        caller: &Caller,
    ) -> Result<(Arc<ReplyLog>, Reader)> {
        let interrupted = match entry.log.ending() {
            None => entry.log.is_cancelled(),
            Some(Ending::Done(_)) => false,
            Some(Ending::Failed(error)) => error.code() == "cancelled" && !entry.record.background,
        };
        if interrupted {
            // The limits of a caller are those of each replica.
            let reservation = self.reserve(caller, entry.record.tokens)?;
            return self.go_on(entry, Some(reservation), Some(PUBLISH)).await;
        }
        Ok((entry.log.clone(), entry.log.reader()))
    }

    /// Continues the replies that the last process left without an end.
    pub(crate) async fn recover(self: &Arc<Self>) -> usize {
        let Some(store) = &self.store else { return 0 };
        let (mut count, now) = (0, SystemTime::now());
        for id in store.open_replies() {
            let Some(entry) = self.load(store, id) else { continue };
            if entry.log.ending().is_some() || self.ended_elsewhere(&entry).await {
                continue;
            }
            if entry.record.expires_at <= now {
                let late = "the reply was not complete at its deadline";
                self.end(&entry, &Ending::Failed(ApiError::timeout(late)));
                continue;
            }
            if !entry.record.background {
                // Its client is gone; a retry or a resume continues it.
                *entry.ended.lock() = Some(Instant::now());
                continue;
            }
            count += 1;
            let replies = self.clone();
            // The gateway serves in the meantime: the broker may be away.
            self.driving.spawn(async move {
                if let Err(error) = replies.go_on(&entry, None, None).await {
                    tracing::warn!(%error, "a reply cannot be continued");
                }
            });
        }
        count
    }
}

/// Returns the body of a request as it is kept: only replies that clients read by their id are shown
/// again from their requests.
fn body_to_keep(kind: &str, body: &[u8]) -> String {
    if kind == READ_BY_ID { String::from_utf8_lossy(body).into_owned() } else { String::new() }
}

fn no_randomness() -> ApiError {
    ApiError::internal("the operating system provides no randomness")
}

fn not_stored() -> ApiError {
    let message = "the reply cannot be stored, and a reply that could be lost is not begun";
    ApiError::unavailable(message, Duration::from_secs(5)).coded("store_unavailable")
}
