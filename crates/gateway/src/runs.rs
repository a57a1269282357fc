//! Replies by their id: started, joined by retries, continued after a restart, kept for a while.

mod lines;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nsbridge_client::{ModelName, Request, ResumePoint, TextInput, TraceParent};
use nsbridge_protocol::{RequestId, Uuid};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::access::{Caller, Reservation};
use crate::class::Class;
use crate::error::{ApiError, Result};
use crate::limits;
use crate::metrics::{End, Metrics};
use crate::run::{Change, Ending, RawPiece, Reader, Run};
use crate::store::{Record, Store};

pub(crate) use self::lines::Line;

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

/// Replies in progress, and those that ended recently.
pub(crate) struct Runs {
    client: nsbridge_client::Client,
    store: Option<Arc<Store>>,
    times: Times,
    /// Key of the hashes by which retries are recognized.
    hash_key: [u8; 32],
    metrics: Metrics,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    entries: HashMap<RequestId, Arc<Entry>>,
    joins: HashMap<[u8; 32], RequestId>,
    /// Replies to lines of batches, by the name of the line.
    lines: HashMap<String, HashSet<RequestId>>,
}

/// Reply with its request.
pub(crate) struct Entry {
    pub(crate) run: Arc<Run>,
    pub(crate) record: Record,
    /// Time of the end.
    ended: Mutex<Option<Instant>>,
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runs").field("entries", &self.known.lock().entries.len()).finish()
    }
}

impl fmt::Debug for Entry {
    /// Omits the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("run", &self.run).finish_non_exhaustive()
    }
}

impl Runs {
    pub(crate) fn new(
        client: nsbridge_client::Client,
        store: Option<Arc<Store>>,
        times: Times,
        hash_key: [u8; 32],
        metrics: Metrics,
    ) -> Self {
        Self { client, store, times, hash_key, metrics, known: Mutex::default() }
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
        if let Some(entry) = repeats.then(|| self.joined(&join)).flatten() {
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
            of_batch: false,
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
        if let Some(store) = &self.store {
            let stored = store.put(&entry.record);
            if entry.record.background || entry.record.of_batch {
                // A client may leave as soon as it has the id, and a batch goes on by it.
                stored.await.map_err(|_| not_stored())?;
            }
        }
        self.submit(&entry, trace, Some(reservation)).await?;
        Ok((entry.run.clone(), reader))
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
        let entry = self.revive(entry);
        let reader = entry.run.reader();
        self.submit(&entry, None, Some(reservation)).await?;
        Ok((entry.run.clone(), reader))
    }

    /// Replaces an interrupted reply by one that continues it.
    fn revive(&self, entry: &Entry) -> Arc<Entry> {
        let (pieces, fingerprint) = entry.run.pieces();
        let clients = entry.record.clients.saturating_add(1);
        let revived = self.add(Record { clients, ..entry.record.clone() });
        revived.run.restore(pieces, fingerprint, None);
        revived
    }

    fn add(&self, record: Record) -> Arc<Entry> {
        let Record { id, created_at, background, join, .. } = record;
        let run = Arc::new(Run::new(id, created_at, background));
        let entry = Arc::new(Entry { run, record, ended: Mutex::new(None) });
        let mut known = self.known.lock();
        known.entries.insert(id, entry.clone());
        known.joins.insert(join, id);
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
        let request = Class::of(entry.record.of_batch).set(request);
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
        tokio::spawn(async move {
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

    /// Notes a change of a reply in the store.
    fn note(&self, entry: &Entry, change: &Change<'_>) {
        if matches!(change, Change::Ended(_)) {
            *entry.ended.lock() = Some(Instant::now());
        }
        if let Some(store) = &self.store {
            store.note(entry.record.id, change);
        }
    }

    /// Returns a reply of the caller's key.
    ///
    /// # Errors
    ///
    /// Returns an error if there is none, or if another key has it.
    pub(crate) fn find(
        &self,
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
        let entry = match (entry, &self.store) {
            (Some(entry), _) => entry,
            (None, Some(store)) => self.load(store, id).ok_or_else(none)?,
            (None, None) => return Err(none()),
        };
        let own = entry.record.key == caller.id.to_string() && entry.record.tenant == caller.tenant;
        if own { Ok(entry) } else { Err(none()) }
    }

    /// Reads a reply that is only in the store.
    fn load(&self, store: &Store, id: RequestId) -> Option<Arc<Entry>> {
        let kept = store.get(id)?;
        let entry = self.add(kept.record);
        if kept.ending.is_some() {
            *entry.ended.lock() = Some(Instant::now());
        }
        entry.run.restore(kept.pieces, kept.fingerprint, kept.ending);
        Some(entry)
    }

    /// Returns a reader of a reply. A reply that was interrupted by a restart of the gateway, or by
    /// the loss of its last connection, is continued.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be submitted.
    pub(crate) async fn read(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(Arc<Run>, Reader)> {
        let interrupted = match entry.run.ending() {
            None => entry.run.is_cancelled(),
            Some(Ending::Done(_)) => false,
            Some(Ending::Failed(error)) => error.code() == "cancelled" && !entry.record.background,
        };
        if interrupted {
            let entry = self.revive(entry);
            let reader = entry.run.reader();
            self.submit(&entry, None, None).await?;
            return Ok((entry.run.clone(), reader));
        }
        Ok((entry.run.clone(), entry.run.reader()))
    }

    /// Continues the replies that the last process left without an end.
    pub(crate) async fn recover(self: &Arc<Self>) -> usize {
        let Some(store) = &self.store else { return 0 };
        let (mut count, now) = (0, SystemTime::now());
        for id in store.open_replies() {
            let Some(entry) = self.load(store, id) else { continue };
            if entry.run.ending().is_some() {
                continue;
            }
            if entry.record.expires_at <= now {
                let late = "the reply was not complete at its deadline";
                self.end(&entry, &Ending::Failed(ApiError::timeout(late)));
                continue;
            }
            if !entry.record.background {
                // Its client is gone; a retry or a resume continues it.
                entry.run.cancel();
                *entry.ended.lock() = Some(Instant::now());
                continue;
            }
            let entry = self.revive(&entry);
            match self.submit(&entry, None, None).await {
                Ok(()) => count += 1,
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

    fn joined(&self, join: &[u8; 32]) -> Option<Arc<Entry>> {
        let known = self.known.lock();
        let id = known.joins.get(join)?;
        known.entries.get(id).cloned()
    }

    /// Returns the hash by which a retry of the request is recognized, and the hash of its content.
    fn hashes(
        &self,
        kind: &str,
        caller: &Caller,
        client: &Client,
        body: &[u8],
    ) -> ([u8; 32], [u8; 32]) {
        let content = *blake3::keyed_hash(&self.hash_key, body).as_bytes();
        let mut join = blake3::Hasher::new_keyed(&self.hash_key);
        let caller = caller.id.to_string();
        let parts: [&[u8]; 3] = [
            caller.as_bytes(),
            kind.as_bytes(),
            match &client.idempotency_key {
                Some(key) => key.as_bytes(),
                None => &content,
            },
        ];
        for part in parts {
            join.update(&(part.len() as u64).to_be_bytes());
            join.update(part);
        }
        (*join.finalize().as_bytes(), content)
    }
}

/// Charges the tokens that a reply took to its caller's limits, and returns their number.
fn settle(run: &Run, reservation: Reservation) -> u64 {
    let tokens = match run.ending() {
        Some(Ending::Done(summary)) => summary.usage.input_tokens + summary.usage.output_tokens,
        // A reply that was given up has cost the tokens that it has.
        Some(Ending::Failed(_)) if run.is_cancelled() => run.pieces().0.len() as u64,
        _ => 0,
    };
    reservation.settle(tokens);
    tokens
}

fn end(run: &Run) -> End {
    match run.ending() {
        Some(Ending::Done(summary)) => End::Done(summary.usage),
        Some(Ending::Failed(_)) if run.is_cancelled() => End::Cancelled,
        Some(Ending::Failed(_)) | None => End::Failed,
    }
}

fn no_randomness() -> ApiError {
    ApiError::internal("the operating system provides no randomness")
}

fn not_stored() -> ApiError {
    ApiError::unavailable("the reply cannot be stored", Duration::from_secs(5))
}
