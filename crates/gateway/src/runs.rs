//! Replies by their id: started, joined by retries, continued after a restart, kept for a while.

mod entry;
mod lines;
mod replicas;
mod retries;
mod settle;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nsbridge_client::{ModelName, Request, ResumePoint, TextInput, TraceParent};
use nsbridge_protocol::{RequestId, Uuid};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

pub(crate) use self::entry::Entry;
use self::entry::Known;
pub(crate) use self::lines::Line;
use self::settle::{end, settle};
use crate::access::{Caller, Reservation};
use crate::class::Class;
use crate::error::{ApiError, Result};
use crate::limits;
use crate::metrics::{End, Metrics};
use crate::run::{Change, Ending, RawPiece, Reader, Run};
use crate::shared::Shared;
use crate::store::{Record, Store};

/// Endpoint whose replies clients read again by their id.
const READ_BY_ID: &str = "response";

/// Maximum number of replies that are kept in memory after their end.
const MOST_ENDED: usize = 10_000;

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
pub(crate) struct Client {
    pub(crate) trace: Option<TraceParent>,
    /// Header `Idempotency-Key`.
    pub(crate) idempotency_key: Option<String>,
    /// True if an official client sends the request again.
    pub(crate) retries: bool,
    /// Line of a batch that the request is; no header says so.
    pub(crate) line: Option<Line>,
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
pub(crate) struct Runs {
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

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runs").field("entries", &self.known.lock().entries.len()).finish()
    }
}

impl Runs {
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
        client: &Client,
        body: &[u8],
    ) -> Result<(Arc<Run>, Reader)> {
        if let Some(line) = &client.line {
            return self.start_line(kind, ask, caller, client, line, body).await;
        }
        let (join, content) = self.hashes(kind, caller, client, body);
        let repeats = client.retries || client.idempotency_key.is_some();
        let repeated = if repeats { self.joined(&join).await? } else { None };
        if let Some(entry) = repeated {
            if entry.record.content != content {
                let message = "this Idempotency-Key belongs to a request with another body";
                return Err(ApiError::bad_request(message).coded("idempotency_key_reused"));
            }
            self.metrics.joined();
            return self.join(&entry, caller, ask.tokens).await;
        }
        let reservation = self.reserve(caller, ask.tokens)?;
        let now = SystemTime::now();
        let record = Record {
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
            body: String::from_utf8_lossy(body).into_owned(),
            join,
            content,
            background: ask.background,
            clients: 0,
            tokens: ask.tokens,
            of_batch: false,
            class: ask.class,
        };
        self.begin(record, reservation, client.trace).await
    }

    /// Stores a request and submits it.
    async fn begin(
        self: &Arc<Self>,
        record: Record,
        reservation: Reservation,
        trace: Option<TraceParent>,
    ) -> Result<(Arc<Run>, Reader)> {
        let entry = self.add(record);
        let reader = entry.run.reader();
        let kept = self.keep(&entry.record);
        self.submit(&entry, trace, Some(reservation)).await?;
        // The client may leave, and this process may end, as soon as the client has the id.
        if let Err(error) = kept.await {
            self.remove(&entry);
            return Err(error);
        }
        Ok((entry.run.clone(), reader))
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
                tracing::error!(%error, "a request cannot be shared");
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
    ) -> Result<(Arc<Run>, Reader)> {
        let interrupted = match entry.run.ending() {
            None => entry.run.is_cancelled(),
            Some(Ending::Done(_)) => false,
            Some(Ending::Failed(_)) => true,
        };
        if !interrupted {
            return Ok((entry.run.clone(), entry.run.reader()));
        }
        let reservation = self.reserve(caller, tokens)?;
        self.go_on(entry, Some(reservation)).await
    }

    /// Continues an interrupted reply.
    async fn go_on(
        self: &Arc<Self>,
        entry: &Entry,
        reservation: Option<Reservation>,
    ) -> Result<(Arc<Run>, Reader)> {
        let (entry, new) = self.revive(entry);
        let reader = entry.run.reader();
        if new {
            self.submit(&entry, None, reservation).await?;
        }
        Ok((entry.run.clone(), reader))
    }

    /// Replaces an interrupted reply by one that continues it. Returns `false` with the one that
    /// does so already.
    fn revive(&self, entry: &Entry) -> (Arc<Entry>, bool) {
        let mut known = self.known.lock();
        if let Some(other) = known.entries.get(&entry.record.id).filter(|other| other.is_live()) {
            return (other.clone(), false);
        }
        let (pieces, fingerprint) = entry.run.pieces();
        let clients = entry.record.clients.saturating_add(1);
        let revived = Entry::new(Record { clients, ..entry.record.clone() }, false);
        revived.run.restore(pieces, fingerprint, None);
        *revived.marked.lock() = fingerprint;
        known.insert(&revived);
        (revived, true)
    }

    fn add(&self, record: Record) -> Arc<Entry> {
        let entry = Entry::new(record, false);
        self.known.lock().insert(&entry);
        entry
    }

    /// Submits the request of an entry, and reads its reply in a task.
    async fn submit(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        trace: Option<TraceParent>,
        reservation: Option<Reservation>,
    ) -> Result<()> {
        let Record { model, tenant, input, id, seed, created_at, expires_at, .. } = &entry.record;
        let mut request = Request::new(model.clone(), tenant.clone()).input(input).id(*id);
        request.trace = trace;
        let request = entry.record.class.set(request);
        let meter = self.metrics.reply(&entry.record.kind, model);
        let (pieces, fingerprint) = entry.run.pieces();
        let clients = entry.record.clients;
        let submitted = if clients == 0 {
            let left = expires_at.duration_since(SystemTime::now()).unwrap_or_default();
            let request = request.seed(*seed).timeout(left);
            self.client.submit::<RawPiece>(request).await
        } else {
            self.metrics.reattached();
            let bytes = |piece: &Arc<RawPiece>| piece.json.get().as_bytes().to_vec();
            let pieces = pieces.iter().map(bytes).collect();
            let point = ResumePoint::new(*id, *seed, *created_at, *expires_at)
                .pieces(pieces, fingerprint)
                .clients(clients);
            self.client.reattach::<RawPiece>(request, point).await
        };
        let reply = match submitted {
            Ok(reply) => reply,
            Err(error) => {
                let error = ApiError::from(error);
                meter.end(End::Failed);
                self.end(entry, &Ending::Failed(error.clone()));
                return Err(error);
            }
        };
        let (runs, entry) = (self.clone(), entry.clone());
        self.driving.spawn(async move {
            let note = |change: Change<'_>| {
                if matches!(change, Change::Piece { .. }) {
                    meter.piece();
                }
                runs.note(&entry, &change);
            };
            entry.run.drive(reply, note).await;
            meter.end(end(&entry.run));
            if let Some(reservation) = reservation {
                runs.metrics.settled(settle(&entry.run, reservation));
            }
        });
        Ok(())
    }

    fn end(&self, entry: &Entry, ending: &Ending) {
        entry.run.end(ending, |change| self.note(entry, &change));
    }

    /// Notes a change of a reply in the stores.
    fn note(&self, entry: &Entry, change: &Change<'_>) {
        if matches!(change, Change::Ended(_)) {
            *entry.ended.lock() = Some(Instant::now());
        }
        // Another process, or a client that comes back, continues a reply that was interrupted.
        if let Some(store) = self.store.as_ref().filter(|_| !entry.is_interrupted_by(change)) {
            store.note(entry.record.id, change);
        }
        if let Some(shared) = self.shared.as_ref().filter(|_| !entry.record.of_batch) {
            replicas::note(shared, entry, change);
        }
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
        if entry.run.ending().is_none() {
            // No task reads it.
            entry.run.cancel();
        }
        self.known.lock().insert(&entry);
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
    ) -> Result<(Arc<Run>, Reader)> {
        let interrupted = match entry.run.ending() {
            None => entry.run.is_cancelled(),
            Some(Ending::Done(_)) => false,
            Some(Ending::Failed(error)) => error.code() == "cancelled" && !entry.record.background,
        };
        if interrupted {
            // The limits of a caller are those of each replica.
            let tokens = entry.elsewhere.then_some(entry.record.tokens);
            let reservation = tokens.map(|tokens| self.reserve(caller, tokens)).transpose()?;
            return self.go_on(entry, reservation).await;
        }
        Ok((entry.run.clone(), entry.run.reader()))
    }

    /// Continues the replies that the last process left without an end.
    pub(crate) async fn recover(self: &Arc<Self>) -> usize {
        let Some(store) = &self.store else { return 0 };
        let (mut count, now) = (0, SystemTime::now());
        for id in store.open_replies() {
            let Some(entry) = self.load(store, id) else { continue };
            if entry.run.ending().is_some() || self.ended_elsewhere(&entry).await {
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
            match self.go_on(&entry, None).await {
                Ok(_) => count += 1,
                Err(error) => tracing::warn!(%error, "a reply cannot be continued"),
            }
        }
        count
    }

    /// Forgets a reply. One in progress is canceled.
    pub(crate) fn remove(&self, entry: &Entry) {
        entry.run.cancel();
        let mut known = self.known.lock();
        known.entries.remove(&entry.record.id);
        known.joins.remove(&entry.record.join);
        drop(known);
        if let Some(store) = &self.store {
            store.remove(entry.record.id);
        }
        if let Some(shared) = &self.shared {
            shared.remove(entry.record.id, &entry.record.join);
        }
    }

    /// Forgets replies that ended long ago.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let old = |entry: &Arc<Entry>| {
            entry.ended.lock().filter(|ended| now.duration_since(*ended) >= self.times.keep)
        };
        let mut known = self.known.lock();
        let mut gone: Vec<_> =
            known.entries.values().filter(|entry| old(entry).is_some()).cloned().collect();
        let mut ended: Vec<_> = known
            .entries
            .values()
            .filter_map(|entry| Some(((*entry.ended.lock())?, entry.clone())))
            .collect();
        if let Some(excess) = ended.len().checked_sub(MOST_ENDED) {
            ended.sort_by_key(|(at, _)| *at);
            gone.extend(ended.into_iter().take(excess).map(|(_, entry)| entry));
        }
        for entry in &gone {
            known.entries.remove(&entry.record.id);
            known.joins.remove(&entry.record.join);
        }
        drop(known);
        if let Some(store) = &self.store {
            store.sweep(self.times.keep);
        }
    }
}

fn no_randomness() -> ApiError {
    ApiError::internal("the operating system provides no randomness")
}

fn not_stored() -> ApiError {
    let message = "the reply cannot be stored, and a reply that could be lost is not begun";
    ApiError::unavailable(message, Duration::from_secs(5)).coded("store_unavailable")
}
