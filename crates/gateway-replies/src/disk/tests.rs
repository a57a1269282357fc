//! Conformance of the store on disk, and what only it does.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use nsbridge_client::RequestId;
use nsbridge_crypto::Key;
use nsbridge_protocol::{Fingerprint, Uuid};
use redb::ReadableTableMetadata;
use tempfile::TempDir;

use super::{CHUNK_BYTES, DiskStore, Kind, StoreError};
use crate::failure::Failure;
use crate::record::Record;
use crate::reply_end::ReplyEnd;
use crate::reply_log::{Change, ReplyLog};
use crate::store::ReplyStore as _;
use crate::store::testing::{self, Bench, TIMES, conformance, done, record};

/// Folder of a database.
struct Disk(TempDir);

impl Disk {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("s.redb")
    }

    fn open(&self, key: u8) -> Result<DiskStore, StoreError> {
        DiskStore::open(&self.path(), Key::from_bytes([key; 32]))
    }

    /// Opens the store when the thread of the last one has ended.
    async fn open_when_free(&self, key: u8) -> Result<DiskStore, StoreError> {
        let start = Instant::now();
        loop {
            match self.open(key) {
                Err(StoreError::Database { .. }) => {}
                other => return other,
            }
            assert!(start.elapsed() < Duration::from_secs(20), "the store stays locked");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Bench for Disk {
    type Store = DiskStore;

    async fn open(&self, before: Option<DiskStore>) -> DiskStore {
        drop(before);
        self.open_when_free(1).await.unwrap()
    }

    fn has_bytes(&self, bytes: &[u8]) -> bool {
        let file = std::fs::read(self.path()).unwrap();
        file.windows(bytes.len()).any(|part| part == bytes)
    }

    fn key_of(&self, id: RequestId) -> Vec<u8> {
        id.as_bytes().to_vec()
    }

    fn count_values(&self, store: &DiskStore) -> usize {
        let transaction = store.database.begin_read().unwrap();
        let replies = transaction.open_table(super::REPLIES).unwrap().len().unwrap();
        let endings = transaction.open_table(super::ENDINGS).unwrap().len().unwrap();
        let pieces = transaction.open_table(super::PIECES).unwrap().len().unwrap();
        (replies + endings + pieces) as usize
    }
}

conformance!(Disk::new());

fn note(store: &DiskStore, record: &Record, change: &Change) {
    store.note(record, &ReplyLog::new(record), change);
}

fn note_piece(store: &DiskStore, record: &Record, index: usize) {
    let (piece, fingerprint) = (testing::piece(index), Some(Fingerprint([2; 16])));
    note(store, record, &Change::Piece { index, piece, fingerprint, new_worker: false });
}

#[tokio::test]
async fn replies_without_an_end_are_open() {
    let disk = Disk::new();
    let (store, record) = (disk.open(1).unwrap(), record(1, SystemTime::now()));
    store.begin(&record).await.unwrap();
    assert_eq!(store.open_replies().await, [record.id]);
    note(&store, &record, &Change::Ended(done(0)));
    store.flush().await;
    assert!(store.open_replies().await.is_empty());
}

#[tokio::test]
async fn pieces_after_a_gap_are_left_out() {
    let disk = Disk::new();
    let (store, record) = (disk.open(1).unwrap(), record(1, SystemTime::now()));
    store.begin(&record).await.unwrap();
    [0, 1, 3].into_iter().for_each(|index| note_piece(&store, &record, index));
    note(&store, &record, &Change::Ended(done(4)));
    store.flush().await;
    let stored = store.load(record.id).await.unwrap().unwrap();
    assert_eq!(stored.pieces.len(), 2);
    assert!(stored.end.is_none());
}

#[tokio::test]
async fn another_key_is_refused() {
    let disk = Disk::new();
    let (store, record) = (disk.open(1).unwrap(), record(1, SystemTime::now()));
    store.begin(&record).await.unwrap();
    drop(store);
    drop(disk.open_when_free(1).await.unwrap());
    let other = disk.open_when_free(2).await;
    assert!(other.unwrap_err().to_string().contains("sealed under another key"));
    let store = disk.open_when_free(1).await.unwrap();
    assert!(store.load(record.id).await.unwrap().is_some());
}

#[tokio::test]
async fn what_comes_after_the_removal_is_not_stored() {
    let disk = Disk::new();
    let (store, record) = (disk.open(1).unwrap(), record(1, SystemTime::now()));
    store.begin(&record).await.unwrap();
    note_piece(&store, &record, 0);
    store.remove(&record).await.unwrap();
    note_piece(&store, &record, 1);
    note(&store, &record, &Change::Ended(done(2)));
    store.sweep(TIMES).await.unwrap();
    store.flush().await;
    assert_eq!(disk.count_values(&store), 0);
}

#[test]
fn a_store_has_one_process() {
    let disk = Disk::new();
    let store = disk.open(1).unwrap();
    assert!(disk.open(1).unwrap_err().to_string().contains("another gateway"));
    drop(store);
}

#[test]
fn a_request_and_an_end_are_read_as_earlier_versions_stored_them() {
    let record = r#"{"kind":"response","id":"00000000-0000-0000-0000-000000000001","seed":7,
        "created_at":{"secs_since_epoch":1,"nanos_since_epoch":2},
        "expires_at":{"secs_since_epoch":3,"nanos_since_epoch":4},"model":"m","tenant":"t",
        "key":"0123abcd","input":{"prompt":"p"},"body":"b","join":JOIN,"content":CONTENT,
        "background":true,"clients":2}"#;
    let bytes = |byte: u8| format!("{:?}", [byte; 32]);
    let record = record.replace("JOIN", &bytes(1)).replace("CONTENT", &bytes(2));
    let record: Record = serde_json::from_str(&record).unwrap();
    assert_eq!((record.retry_hash, record.content_hash), ([1; 32], [2; 32]));
    assert_eq!((record.clients, record.tokens, record.of_batch), (2, 0, false));
    let at = r#""at":{"secs_since_epoch":1,"nanos_since_epoch":2}"#;
    let failed = format!(r#"{{{at},"summary":null,"message":"the request was canceled"}}"#);
    let failed: super::DiskEnd = serde_json::from_str(&failed).unwrap();
    testing::assert_same(&failed.end(), &ReplyEnd::Failed(Failure::cancelled()));
    let error = r#"{"status":504,"kind":"server_error","code":"deadline_exceeded","param":null,
        "message":"late","retry":"No","passes":false}"#;
    let end = format!(r#"{{"code":"deadline_exceeded","message":"late","error":{error}}}"#);
    let failed = format!(r#"{{{at},"end":{{"Failed":{end}}}}}"#);
    let failed: super::DiskEnd = serde_json::from_str(&failed).unwrap();
    testing::assert_same(&failed.end(), &ReplyEnd::Failed(Failure::timeout("late")));
}

#[test]
fn all_parts_of_an_object_are_removed_and_those_of_others_stay() {
    /// More than two transactions remove.
    const PARTS: u64 = 10_000;
    let disk = Disk::new();
    let store = disk.open(1).unwrap();
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
    let disk = Disk::new();
    let store = disk.open(1).unwrap();
    for at in 0..CHUNKS {
        let chunk = store.part(Kind::File, Uuid::from_u128(1), at, &vec![7; CHUNK_BYTES]).unwrap();
        store.edit(&[chunk]).unwrap();
    }
    let taken = disk.path().metadata().unwrap().len();
    let size = CHUNKS * CHUNK_BYTES as u64;
    assert!(taken < 2 * size, "{taken} bytes for {size}");
}

#[test]
fn l6_only_the_gateways_user_reads_its_store() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |disk: &Disk| disk.path().metadata().unwrap().permissions().mode() & 0o777;
    let [new, old] = [(); 2].map(|()| Disk::new());
    let _store = new.open(1).unwrap();
    assert_eq!(mode(&new), 0o600);
    // An earlier version left it to the umask.
    std::fs::write(old.path(), "").unwrap();
    std::fs::set_permissions(old.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let _store = old.open(1).unwrap();
    assert_eq!(mode(&old), 0o600);
}
