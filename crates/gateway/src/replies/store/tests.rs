//! Round trips of stored replies, through another process and without the key.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nsbridge_client::{Summary, TextInput};
use nsbridge_crypto::Key;
use nsbridge_protocol::{Fingerprint, Finish, RequestId, Uuid};
use redb::ReadableTableMetadata;
use tempfile::TempDir;

use super::{CHUNK, Kind, Record, Store, StoreError};
use crate::callers::class::Class;
use crate::replies::reply_end::tests::{assert_same, ends};
use crate::replies::reply_log::{Change, Ending, RawPiece};
use crate::text::error::ApiError;

const KEEP: Duration = Duration::from_secs(60);

fn open(dir: &TempDir, key: u8) -> Store {
    Store::open(&dir.path().join("s.redb"), Key::from_bytes([key; 32])).unwrap()
}

/// Returns the request of a reply that is due a minute after its creation.
pub(crate) fn record(id: u128, created_at: SystemTime) -> Record {
    Record {
        kind: "response".to_owned(),
        id: RequestId(Uuid::from_u128(id)),
        seed: 7,
        created_at,
        expires_at: created_at + KEEP,
        model: "m".parse().unwrap(),
        tenant: "t".parse().unwrap(),
        key: "0123abcd".to_owned(),
        input: TextInput::prompt("canary of a prompt"),
        body: "canary of a body".to_owned(),
        join: [1; 32],
        content: [2; 32],
        background: true,
        clients: 0,
        tokens: 0,
        of_batch: false,
        class: Class::Bulk,
    }
}

fn piece(token: usize) -> RawPiece {
    let json = format!(r#"{{"token":{token}, "text":"canary {token}"}}"#);
    serde_json::from_str(&json).unwrap()
}

fn note(store: &Store, id: RequestId, at: usize) {
    let (piece, fingerprint) = (piece(at), Some(Fingerprint([at as u8; 16])));
    store.note(id, &Change::Piece { at, piece: &piece, fingerprint });
}

fn done(pieces: u64) -> Ending {
    let mut summary = Summary::new(Finish::STOP);
    (summary.chunks, summary.bytes, summary.pieces) = (1, 1, pieces);
    Ending::Done(summary)
}

/// Waits until all earlier writes are on disk.
async fn written(store: &Store) {
    store.put(&record(0xffff, SystemTime::now())).await.unwrap();
}

#[tokio::test]
async fn a_reply_is_read_back_as_it_was_and_nothing_of_it_is_in_the_clear() {
    let dir = TempDir::new().unwrap();
    let (store, record) = (open(&dir, 1), record(1, SystemTime::now()));
    store.put(&record).await.unwrap();
    (0..3).for_each(|at| note(&store, record.id, at));
    written(&store).await;
    assert_eq!(store.open_replies().len(), 2);
    drop(store);
    let bytes = std::fs::read(dir.path().join("s.redb")).unwrap();
    assert!(!bytes.windows(6).any(|bytes| bytes == b"canary"));
    // The next process.
    let store = until_free(&dir, 1).await;
    let kept = store.get(record.id).unwrap();
    assert_eq!((kept.record.seed, kept.record.input), (7, record.input));
    let json: Vec<&str> = kept.pieces.iter().map(|piece| piece.json.get()).collect();
    assert_eq!(json, [0, 1, 2].map(piece).iter().map(|p| p.json.get()).collect::<Vec<_>>());
    assert_eq!(kept.fingerprint, Some(Fingerprint([2; 16])));
    assert!(kept.ending.is_none());
    store.note(record.id, &Change::Ended(&done(3)));
    written(&store).await;
    assert!(matches!(store.get(record.id).unwrap().ending, Some(Ending::Done(_))));
    assert_eq!(store.open_replies().len(), 1);
}

#[tokio::test]
async fn each_end_is_read_back_as_it_was_by_the_next_process() {
    let (dir, ends) = (TempDir::new().unwrap(), ends());
    let store = open(&dir, 1);
    for (id, ending) in (1..).zip(&ends) {
        let record = record(id, SystemTime::now());
        store.put(&record).await.unwrap();
        store.note(record.id, &Change::Ended(ending));
    }
    written(&store).await;
    drop(store);
    let store = until_free(&dir, 1).await;
    for (id, ending) in (1..).zip(&ends) {
        let kept = store.get(RequestId(Uuid::from_u128(id))).unwrap();
        assert_same(&kept.ending.unwrap(), ending);
    }
}

#[tokio::test]
async fn a_reply_with_missing_pieces_has_those_before_the_gap_and_no_end() {
    let dir = TempDir::new().unwrap();
    let (store, record) = (open(&dir, 1), record(1, SystemTime::now()));
    store.put(&record).await.unwrap();
    [0, 1, 3].into_iter().for_each(|at| note(&store, record.id, at));
    store.note(record.id, &Change::Ended(&done(4)));
    written(&store).await;
    let kept = store.get(record.id).unwrap();
    assert_eq!(kept.pieces.len(), 2);
    assert!(kept.ending.is_none());
    // Pieces that a later attempt withdrew are gone.
    store.note(record.id, &Change::Restarted { kept: 1 });
    written(&store).await;
    assert_eq!(store.get(record.id).unwrap().pieces.len(), 1);
    // A failure is an end, whatever is there.
    let failed = Ending::Failed(ApiError::internal("no"));
    store.note(record.id, &Change::Ended(&failed));
    written(&store).await;
    assert!(matches!(store.get(record.id).unwrap().ending, Some(Ending::Failed(_))));
}

#[tokio::test]
async fn another_key_is_refused_and_what_is_old_is_removed() {
    let dir = TempDir::new().unwrap();
    let long_ago = SystemTime::now() - 3 * KEEP;
    let store = open(&dir, 1);
    let (old, new) = (record(1, long_ago), record(2, SystemTime::now()));
    for record in [&old, &new] {
        store.put(record).await.unwrap();
        note(&store, record.id, 0);
    }
    store.sweep(KEEP);
    written(&store).await;
    assert!(store.get(old.id).is_none() && store.get(new.id).is_some());
    store.remove(new.id).await.unwrap();
    assert!(store.get(new.id).is_none());
    store.put(&new).await.unwrap();
    drop(store);
    drop(until_free(&dir, 1).await);
    let other = loop {
        match Store::open(&dir.path().join("s.redb"), Key::from_bytes([2; 32])) {
            Err(StoreError::Database { .. }) => tokio::task::yield_now().await,
            other => break other,
        }
    };
    assert!(other.unwrap_err().to_string().contains("sealed under another key"));
    assert!(until_free(&dir, 1).await.get(new.id).is_some());
}

#[tokio::test]
async fn what_comes_after_the_removal_is_not_stored() {
    let dir = TempDir::new().unwrap();
    let (store, record) = (open(&dir, 1), record(1, SystemTime::now()));
    store.put(&record).await.unwrap();
    note(&store, record.id, 0);
    store.remove(record.id).await.unwrap();
    note(&store, record.id, 1);
    store.note(record.id, &Change::Ended(&done(2)));
    store.sweep(KEEP);
    written(&store).await;
    let transaction = store.database.begin_read().unwrap();
    let endings = transaction.open_table(super::ENDINGS).unwrap();
    let pieces = transaction.open_table(super::PIECES).unwrap();
    assert!(endings.is_empty().unwrap() && pieces.is_empty().unwrap());
}

/// Opens the store when the thread of the last one has ended.
async fn until_free(dir: &TempDir, key: u8) -> Store {
    let path = dir.path().join("s.redb");
    let start = Instant::now();
    loop {
        if let Ok(store) = Store::open(&path, Key::from_bytes([key; 32])) {
            return store;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "the store stays locked");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_store_has_one_process() {
    let dir = TempDir::new().unwrap();
    let store = Arc::new(open(&dir, 1));
    let second = Store::open(&dir.path().join("s.redb"), Key::from_bytes([1; 32]));
    assert!(second.unwrap_err().to_string().contains("another gateway"));
    drop(store);
}

#[test]
fn all_parts_of_an_object_are_removed_and_those_of_others_stay() {
    /// More than two transactions remove.
    const PARTS: u64 = 10_000;
    let dir = TempDir::new().unwrap();
    let store = open(&dir, 1);
    let [one, other] = [1, 2].map(Uuid::from_u128);
    for id in [one, other] {
        let parts = (0..PARTS).map(|at| store.part(Kind::Batch, id, at, b"result").unwrap());
        store.edit(&parts.collect::<Vec<_>>()).unwrap();
        store.edit(&[store.record(Kind::Batch, id, &id).unwrap()]).unwrap();
    }
    let count = |id| {
        let mut count = 0;
        store.each_part(Kind::Batch, id, |_, _| count += 1).unwrap();
        count
    };
    let left = || {
        let records = store.records::<Uuid>(Kind::Batch).unwrap();
        (count(one), count(other), records.len())
    };
    store.remove_parts(Kind::Batch, one).unwrap();
    assert_eq!(left(), (0, PARTS, 2));
    store.remove_object(Kind::Batch, one).unwrap();
    assert_eq!(left(), (0, PARTS, 1));
    store.remove_object(Kind::Batch, other).unwrap();
    assert_eq!(left(), (0, 0, 0));
}

#[test]
fn a_file_takes_less_than_twice_its_size_on_disk() {
    const CHUNKS: u64 = 48;
    let dir = TempDir::new().unwrap();
    let store = open(&dir, 1);
    for at in 0..CHUNKS {
        let chunk = store.part(Kind::File, Uuid::from_u128(1), at, &vec![7; CHUNK]).unwrap();
        store.edit(&[chunk]).unwrap();
    }
    let taken = dir.path().join("s.redb").metadata().unwrap().len();
    let size = CHUNKS * CHUNK as u64;
    assert!(taken < 2 * size, "{taken} bytes for {size}");
}

#[test]
fn l6_only_the_gateways_user_reads_its_store() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |dir: &TempDir| {
        let status = dir.path().join("s.redb").metadata().unwrap();
        status.permissions().mode() & 0o777
    };
    let [new, old] = [(); 2].map(|()| TempDir::new().unwrap());
    let _store = open(&new, 1);
    assert_eq!(mode(&new), 0o600);
    // An earlier version left it to the umask.
    let path = old.path().join("s.redb");
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let _store = open(&old, 1);
    assert_eq!(mode(&old), 0o600);
}
