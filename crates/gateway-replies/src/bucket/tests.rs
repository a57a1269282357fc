//! Conformance of the store that replicas share, and what only it does.

use std::path::Path;
use std::time::Duration;

use nsbridge_client::RequestId;
use nsbridge_crypto::Key;
use nsbridge_store::{Location, StoreConfig};
use tempfile::TempDir;

use super::files::hex;
use super::{BucketStore, SharedError};
use crate::record::Record;
use crate::reply_log::{Change, ReplyLog};
use crate::store::ReplyStore as _;
use crate::store::testing::{Bench, TIMES, conformance, done, piece, record_of_age};

/// Folder of several replicas.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    async fn open(&self, key: u8) -> Result<BucketStore, SharedError> {
        let location = Location::Folder(self.0.path().to_owned());
        BucketStore::open(&location, &StoreConfig::default(), Key::from_bytes([key; 32])).await
    }
}

impl Bench for Folder {
    type Store = BucketStore;

    async fn open(&self, _: Option<BucketStore>) -> BucketStore {
        self.open(1).await.unwrap()
    }

    fn has_bytes(&self, bytes: &[u8]) -> bool {
        fn has(path: &Path, bytes: &[u8]) -> bool {
            if path.is_dir() {
                return path.read_dir().unwrap().any(|it| has(&it.unwrap().path(), bytes));
            }
            let name = path.as_os_str().as_encoded_bytes().to_vec();
            let texts = [name, std::fs::read(path).unwrap()];
            texts.iter().any(|text| text.windows(bytes.len()).any(|part| part == bytes))
        }
        has(self.0.path(), bytes)
    }

    fn key_of(&self, id: RequestId) -> Vec<u8> {
        hex(id).into_bytes()
    }

    fn count_values(&self, _: &BucketStore) -> usize {
        let count = |folder| self.0.path().join(folder).read_dir().map_or(0, Iterator::count);
        count("replies") + count("joins")
    }
}

conformance!(Folder::new());

/// Notes the end of a reply with two pieces.
fn end(store: &BucketStore, record: &Record) {
    let log = ReplyLog::new(record);
    log.restore(vec![piece(0), piece(1)], None, None);
    store.note(record, &log, &Change::Ended(done(2)));
}

#[tokio::test]
async fn a_retry_finds_a_reply_and_its_replica_at_another_replica() {
    let folder = Folder::new();
    let (one, two) = (folder.open(1).await.unwrap(), folder.open(1).await.unwrap());
    let record = record_of_age(Duration::ZERO);
    assert!(two.repeated(&[1; 32]).await.unwrap().is_none());
    one.begin(&record).await.unwrap();
    assert_eq!(two.repeated(&[1; 32]).await.unwrap(), Some(record.id));
    let owner = two.load(record.id).await.unwrap().unwrap().owner.unwrap();
    assert!(two.is_alive(&owner).await.unwrap());
    one.leave().await.unwrap();
    assert!(!two.is_alive(&owner).await.unwrap());
    one.remove(&record).await.unwrap();
    assert!(two.repeated(&[1; 32]).await.unwrap().is_none());
}

#[tokio::test]
async fn another_key_is_refused_and_a_value_opens_only_at_its_place() {
    let folder = Folder::new();
    let one = folder.open(1).await.unwrap();
    let record = record_of_age(Duration::ZERO);
    one.begin(&record).await.unwrap();
    end(&one, &record);
    one.flush().await;
    assert!(matches!(folder.open(2).await, Err(SharedError::Key { .. })));
    let folder = folder.0.path();
    let name = |kind: &str| folder.join(format!("replies/{}.{kind}", hex(record.id)));
    std::fs::copy(name("end"), name("part")).unwrap();
    std::fs::remove_file(name("end")).unwrap();
    assert!(one.load(record.id).await.unwrap().unwrap().pieces.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_right_after_the_end_leaves_no_file() {
    let folder = Folder::new();
    let one = folder.open(1).await.unwrap();
    for age in 0..50 {
        let record = record_of_age(Duration::from_secs(age));
        one.begin(&record).await.unwrap();
        end(&one, &record);
        one.remove(&record).await.unwrap();
    }
    one.flush().await;
    let left: Vec<_> = folder.0.path().join("replies").read_dir().unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(one.last_writes.lock().is_empty());
}

#[tokio::test]
async fn lines_of_batches_are_not_shared() {
    let folder = Folder::new();
    let one = folder.open(1).await.unwrap();
    let record = Record { of_batch: true, ..record_of_age(Duration::ZERO) };
    one.begin(&record).await.unwrap();
    end(&one, &record);
    one.flush().await;
    assert!(one.load(record.id).await.unwrap().is_none());
}

#[tokio::test]
async fn a_sweep_deletes_all_that_belongs_to_an_old_reply() {
    let folder = Folder::new();
    let one = folder.open(1).await.unwrap();
    let (old, young) = (record_of_age(3 * TIMES.keep), record_of_age(TIMES.keep));
    for record in [&old, &young] {
        one.begin(record).await.unwrap();
        one.cancel(record.id).await.unwrap();
        end(&one, record);
    }
    one.flush().await;
    one.sweep(TIMES).await.unwrap();
    assert_eq!(one.repeated(&[1; 32]).await.unwrap(), Some(young.id));
    assert_eq!(one.cancels().await.unwrap(), [young.id]);
    let count = |name: &str| folder.0.path().join(name).read_dir().unwrap().count();
    assert_eq!((count("replies"), count("joins"), count("leases")), (2, 1, 1));
}
