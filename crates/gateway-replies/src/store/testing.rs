//! Conformance tests: rules that both stores must satisfy.
//!
//! Each rule is a function whose name states it. [`conformance!`] makes one test of each rule.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nsbridge_client::{Error, ErrorCode, RequestId, Summary, TextInput};
use nsbridge_gateway_access::Priority;
use nsbridge_protocol::{Fingerprint, Finish, NO_ROOM, Uuid};

use super::{ReplyStore, StoredReply, Times};
use crate::failure::Failure;
use crate::record::Record;
use crate::reply_end::ReplyEnd;
use crate::reply_log::{Change, RawPiece, ReplyLog};

/// Stores of one gateway after another, or of several replicas, with the same content.
pub(crate) trait Bench {
    type Store: ReplyStore;

    /// Opens the store for the first process, or for another one when `before` has ended.
    async fn open(&self, before: Option<Self::Store>) -> Self::Store;

    /// Returns true if some file of the store has these bytes, or has them in its name.
    fn has_bytes(&self, bytes: &[u8]) -> bool;

    /// Returns an id as the names or keys of the store have it.
    fn key_of(&self, id: RequestId) -> Vec<u8>;

    /// Returns the number of values that the store has of its replies.
    fn count_values(&self, store: &Self::Store) -> usize;
}

/// Makes one test of each rule, with the bench that an expression returns.
macro_rules! conformance {
    ($bench:expr) => {
        crate::store::testing::rules! { $bench =>
            a_request_is_read_back_as_it_was,
            a_complete_reply_is_read_back_as_it_was,
            each_end_is_read_back_as_it_was,
            a_complete_reply_without_all_of_its_pieces_has_no_end,
            an_interrupted_reply_has_no_end,
            an_interrupted_reply_that_is_continued_has_its_end,
            what_a_worker_withdrew_is_not_read_back,
            the_worker_of_a_reply_is_known_before_its_end,
            nothing_of_a_reply_is_in_the_clear,
            a_removed_reply_is_gone_with_all_that_was_noted_of_it,
            a_sweep_removes_what_is_old_and_nothing_else,
            a_request_is_stored_whether_anybody_waits_for_it,
            a_reply_that_never_began_is_not_there,
        }
    };
}

macro_rules! rules {
    ($bench:expr => $($rule:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $rule() {
                crate::store::testing::$rule(&$bench).await;
            }
        )*
    };
}

pub(crate) use conformance;
pub(crate) use rules;

pub(crate) const TIMES: Times =
    Times { timeout: Duration::from_secs(60), keep: Duration::from_secs(60) };

/// Returns the request of a reply that is due a minute after its creation.
pub(crate) fn record(id: u128, created_at: SystemTime) -> Record {
    Record {
        kind: "response".to_owned(),
        id: RequestId(Uuid::from_u128(id)),
        seed: 7,
        created_at,
        expires_at: created_at + TIMES.timeout,
        model: "m".parse().unwrap(),
        tenant: "t".parse().unwrap(),
        key: "0123abcd".to_owned(),
        input: TextInput::prompt("canary of a prompt"),
        body: "canary of a body".to_owned(),
        retry_hash: [1; 32],
        content_hash: [2; 32],
        background: true,
        clients: 0,
        tokens: 9,
        of_batch: false,
        class: Priority::Bulk,
    }
}

/// Returns the request of a reply that was created this long ago, with the time in its id.
pub(crate) fn record_of_age(age: Duration) -> Record {
    let created_at = SystemTime::now() - age;
    let ms = created_at.duration_since(UNIX_EPOCH).unwrap().as_millis();
    record(ms << 80 | 7, created_at)
}

pub(crate) fn piece(token: usize) -> Arc<RawPiece> {
    let json = format!(r#"{{"token":{token}, "text":"canary {token}"}}"#);
    Arc::new(serde_json::from_str(&json).unwrap())
}

/// Returns the end of a complete reply with this number of pieces.
pub(crate) fn done(pieces: u64) -> ReplyEnd {
    let mut summary = Summary::new(Finish::STOP);
    (summary.chunks, summary.bytes, summary.pieces) = (1, 1, pieces);
    ReplyEnd::Done(summary)
}

/// Returns an end of each kind. The complete reply has no pieces.
pub(crate) fn ends() -> Vec<ReplyEnd> {
    let worker =
        |code, message: &str| Failure::from(Error::Failed { code, message: message.to_owned() });
    let too_long = format!("the prompt has 9 tokens, which {NO_ROOM} of 8");
    let failures = [
        Failure::cancelled(),
        worker(ErrorCode::BadInput, &too_long),
        worker(ErrorCode::BadInput, "`top_p` must be above 0"),
        worker(ErrorCode::ReplyTooLarge, "the reply is too large"),
        worker(ErrorCode::ModelFailed, "it failed"),
        worker(ErrorCode::Expired, ""),
        Failure::timeout("the reply was not complete at its deadline"),
        Failure::limited("wait", Duration::from_secs(9)),
        Failure::no_broker(),
        Failure::not_found("it is gone"),
    ];
    std::iter::once(done(0)).chain(failures.map(ReplyEnd::Failed)).collect()
}

/// Checks that clients are told the same of both ends.
#[track_caller]
pub(crate) fn assert_same(read: &ReplyEnd, told: &ReplyEnd) {
    assert_eq!(format!("{read:?}"), format!("{told:?}"));
}

/// Reply that is noted in a store, change by change.
struct Course<'a, S> {
    store: &'a S,
    record: Record,
    log: ReplyLog,
    worker: Option<Fingerprint>,
    pieces: Vec<Arc<RawPiece>>,
}

impl<'a, S: ReplyStore> Course<'a, S> {
    async fn begin(store: &'a S, record: Record) -> Self {
        store.begin(&record).await.unwrap();
        let log = ReplyLog::new(&record);
        Self { store, record, log, worker: None, pieces: Vec::new() }
    }

    fn note(&self, change: &Change) {
        self.store.note(&self.record, &self.log, change);
    }

    fn piece(&mut self, token: usize, worker: u8) {
        let (piece, fingerprint) = (piece(token), Some(Fingerprint([worker; 16])));
        let new_worker = self.worker != fingerprint;
        self.worker = fingerprint;
        self.pieces.push(piece.clone());
        self.log.restore(self.pieces.clone(), fingerprint, None);
        let index = self.pieces.len() - 1;
        self.note(&Change::Piece { index, piece, fingerprint, new_worker });
    }

    fn withdraw(&mut self, kept: usize) {
        self.pieces.truncate(kept);
        self.log.restore(self.pieces.clone(), self.worker, None);
        self.note(&Change::Restarted { kept });
    }

    fn end(&self, end: ReplyEnd) {
        self.note(&Change::Ended(end));
    }
}

async fn read(store: &impl ReplyStore, id: RequestId) -> StoredReply {
    store.flush().await;
    store.load(id).await.unwrap().unwrap()
}

#[track_caller]
fn assert_pieces(stored: &StoredReply, tokens: &[usize]) {
    let read: Vec<&str> = stored.pieces.iter().map(|piece| piece.json.get()).collect();
    let noted: Vec<_> = tokens.iter().map(|token| piece(*token)).collect();
    assert_eq!(read, noted.iter().map(|piece| piece.json.get()).collect::<Vec<_>>());
}

pub(crate) async fn a_request_is_read_back_as_it_was(bench: &impl Bench) {
    let store = bench.open(None).await;
    let record = record_of_age(Duration::ZERO);
    store.begin(&record).await.unwrap();
    let store = bench.open(Some(store)).await;
    let stored = read(&store, record.id).await;
    assert!(stored.pieces.is_empty() && stored.fingerprint.is_none() && stored.end.is_none());
    let fields = |record: &Record| serde_json::to_value(record).unwrap();
    assert_eq!(fields(&stored.record), fields(&record));
}

pub(crate) async fn a_complete_reply_is_read_back_as_it_was(bench: &impl Bench) {
    let store = bench.open(None).await;
    let mut reply = Course::begin(&store, record_of_age(Duration::ZERO)).await;
    (0..3).for_each(|token| reply.piece(token, 2));
    reply.end(done(3));
    let id = reply.record.id;
    store.flush().await;
    let store = bench.open(Some(store)).await;
    let stored = read(&store, id).await;
    assert_pieces(&stored, &[0, 1, 2]);
    assert_eq!(stored.fingerprint, Some(Fingerprint([2; 16])));
    assert_same(&stored.end.unwrap(), &done(3));
}

pub(crate) async fn each_end_is_read_back_as_it_was(bench: &impl Bench) {
    let (store, ends) = (bench.open(None).await, ends());
    let mut ids = Vec::new();
    for (age, end) in (0..).zip(&ends) {
        let reply = Course::begin(&store, record_of_age(Duration::from_secs(age))).await;
        reply.end(end.clone());
        ids.push(reply.record.id);
    }
    store.flush().await;
    let store = bench.open(Some(store)).await;
    for (id, end) in ids.into_iter().zip(&ends) {
        assert_same(&read(&store, id).await.end.unwrap(), end);
    }
}

pub(crate) async fn an_interrupted_reply_has_no_end(bench: &impl Bench) {
    let store = bench.open(None).await;
    let mut reply = Course::begin(&store, record_of_age(Duration::ZERO)).await;
    (0..2).for_each(|token| reply.piece(token, 2));
    reply.note(&Change::Interrupted);
    let id = reply.record.id;
    store.flush().await;
    let store = bench.open(Some(store)).await;
    let stored = read(&store, id).await;
    assert_pieces(&stored, &[0, 1]);
    assert!(stored.end.is_none());
}

pub(crate) async fn a_complete_reply_without_all_of_its_pieces_has_no_end(bench: &impl Bench) {
    let store = bench.open(None).await;
    let mut reply = Course::begin(&store, record_of_age(Duration::ZERO)).await;
    reply.piece(0, 2);
    reply.end(done(2));
    let stored = read(&store, reply.record.id).await;
    assert_pieces(&stored, &[0]);
    assert!(stored.end.is_none());
    // A failure is an end, whatever is there.
    reply.end(ReplyEnd::Failed(Failure::internal("no")));
    assert!(read(&store, reply.record.id).await.end.is_some());
}

pub(crate) async fn an_interrupted_reply_that_is_continued_has_its_end(bench: &impl Bench) {
    let store = bench.open(None).await;
    let mut reply = Course::begin(&store, record_of_age(Duration::ZERO)).await;
    reply.piece(0, 2);
    reply.note(&Change::Interrupted);
    store.flush().await;
    // Another process continues it.
    let (record, pieces) = (reply.record.clone(), reply.pieces.clone());
    let store = bench.open(Some(store)).await;
    let log = ReplyLog::new(&record);
    let mut reply = Course { store: &store, record, log, worker: None, pieces };
    reply.piece(1, 3);
    reply.end(done(2));
    let stored = read(&store, reply.record.id).await;
    assert_pieces(&stored, &[0, 1]);
    assert_eq!(stored.fingerprint, Some(Fingerprint([3; 16])));
    assert_same(&stored.end.unwrap(), &done(2));
}

pub(crate) async fn what_a_worker_withdrew_is_not_read_back(bench: &impl Bench) {
    let store = bench.open(None).await;
    let mut reply = Course::begin(&store, record_of_age(Duration::ZERO)).await;
    (0..3).for_each(|token| reply.piece(token, 2));
    reply.withdraw(1);
    reply.piece(7, 3);
    reply.end(done(2));
    let stored = read(&store, reply.record.id).await;
    assert_pieces(&stored, &[0, 7]);
    assert_same(&stored.end.unwrap(), &done(2));
}

pub(crate) async fn the_worker_of_a_reply_is_known_before_its_end(bench: &impl Bench) {
    let store = bench.open(None).await;
    let mut reply = Course::begin(&store, record_of_age(Duration::ZERO)).await;
    for worker in [2, 2, 3] {
        reply.piece(0, worker);
    }
    let stored = read(&store, reply.record.id).await;
    assert_eq!(stored.fingerprint, Some(Fingerprint([3; 16])));
}

pub(crate) async fn nothing_of_a_reply_is_in_the_clear(bench: &impl Bench) {
    let store = bench.open(None).await;
    let mut reply = Course::begin(&store, record_of_age(Duration::ZERO)).await;
    reply.piece(0, 2);
    reply.note(&Change::Interrupted);
    reply.end(done(1));
    store.flush().await;
    assert!(bench.has_bytes(&bench.key_of(reply.record.id)));
    assert!(!bench.has_bytes(b"canary"));
}

pub(crate) async fn a_removed_reply_is_gone_with_all_that_was_noted_of_it(bench: &impl Bench) {
    let store = bench.open(None).await;
    let mut reply = Course::begin(&store, record_of_age(Duration::ZERO)).await;
    reply.piece(0, 2);
    store.flush().await;
    assert!(bench.count_values(&store) > 0);
    // The removal goes on without its future.
    drop(store.remove(&reply.record));
    store.flush().await;
    assert!(store.load(reply.record.id).await.unwrap().is_none());
    let id = reply.record.id;
    let store = bench.open(Some(store)).await;
    assert!(store.load(id).await.unwrap().is_none());
    assert_eq!(bench.count_values(&store), 0);
}

pub(crate) async fn a_sweep_removes_what_is_old_and_nothing_else(bench: &impl Bench) {
    let store = bench.open(None).await;
    let (old, young) = (record_of_age(3 * TIMES.keep), record_of_age(Duration::ZERO));
    for record in [&old, &young] {
        let mut reply = Course::begin(&store, record.clone()).await;
        reply.piece(0, 2);
    }
    store.flush().await;
    store.sweep(TIMES).await.unwrap();
    store.flush().await;
    assert!(store.load(old.id).await.unwrap().is_none());
    assert!(store.load(young.id).await.unwrap().is_some());
}

pub(crate) async fn a_reply_that_never_began_is_not_there(bench: &impl Bench) {
    let store = bench.open(None).await;
    assert!(store.load(RequestId(Uuid::from_u128(9))).await.unwrap().is_none());
}

pub(crate) async fn a_request_is_stored_whether_anybody_waits_for_it(bench: &impl Bench) {
    let (store, record) = (bench.open(None).await, record_of_age(Duration::ZERO));
    drop(store.begin(&record));
    read(&store, record.id).await;
}
