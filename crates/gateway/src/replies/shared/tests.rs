//! Round trips of shared replies, through another replica and without the key.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nsbridge_client::Summary;
use nsbridge_crypto::Key;
use nsbridge_protocol::{Fingerprint, Finish};
use nsbridge_store::{Location, StoreConfig};
use tempfile::TempDir;

use super::{Shared, SharedError};
use crate::replies::reply_end::tests::{assert_same, ends};
use crate::replies::reply_log::{Ending, RawPiece};
use crate::replies::store::{Record, tests as stored};

async fn open(dir: &TempDir, key: u8) -> Result<Arc<Shared>, SharedError> {
    let location = Location::Folder(dir.path().to_owned());
    let key = Key::from_bytes([key; 32]);
    Shared::open(&location, &StoreConfig::default(), key).await.map(Arc::new)
}

/// Returns the request of a reply that was created this long ago.
fn record(age: Duration) -> Record {
    let created_at = SystemTime::now() - age;
    let ms = created_at.duration_since(UNIX_EPOCH).unwrap().as_millis();
    Record { tokens: 9, ..stored::record(ms << 80 | 7, created_at) }
}

fn pieces(count: usize) -> super::Pieces {
    let piece = |token| {
        let json = format!(r#"{{"token":{token}, "text":"canary {token}"}}"#);
        Arc::new(serde_json::from_str::<RawPiece>(&json).unwrap())
    };
    ((0..count).map(piece).collect(), Some(Fingerprint([3; 16])))
}

fn done() -> Ending {
    let mut summary = Summary::new(Finish::STOP);
    (summary.chunks, summary.bytes, summary.pieces) = (1, 1, 2);
    Ending::Done(summary)
}

#[tokio::test]
async fn another_replica_reads_what_was_shared_last() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (open(&dir, 1).await.unwrap(), open(&dir, 1).await.unwrap());
    let record = record(Duration::ZERO);
    let id = record.id;
    assert!(two.get(id).await.unwrap().is_none() && two.joined(&[1; 32]).await.unwrap().is_none());
    one.put(record).await.unwrap();
    assert_eq!(two.joined(&[1; 32]).await.unwrap(), Some(id));
    let begun = two.get(id).await.unwrap().unwrap();
    assert_eq!((begun.kept.record.seed, begun.kept.record.body.as_str()), (7, "canary of a body"));
    assert!(begun.kept.pieces.is_empty() && begun.kept.ending.is_none());
    assert!(two.is_alive(&begun.owner).await.unwrap());
    one.mark(id, Fingerprint([3; 16]));
    one.flush().await;
    assert_eq!(two.get(id).await.unwrap().unwrap().kept.fingerprint, Some(Fingerprint([3; 16])));
    one.give_up(id, pieces(1));
    one.flush().await;
    assert_eq!(two.get(id).await.unwrap().unwrap().kept.pieces.len(), 1);
    one.end(id, pieces(2), &done());
    one.flush().await;
    let ended = two.get(id).await.unwrap().unwrap().kept;
    assert_eq!(
        ended.pieces.iter().map(|it| it.piece.text.as_str()).collect::<String>(),
        "canary 0canary 1"
    );
    assert!(matches!(ended.ending, Some(Ending::Done(summary)) if summary.pieces == 2));
    one.leave().await.unwrap();
    assert!(!two.is_alive(&begun.owner).await.unwrap());
    assert!(one.remove(id, &[1; 32]).await.unwrap());
    assert!(two.get(id).await.unwrap().is_none() && two.joined(&[1; 32]).await.unwrap().is_none());
}

#[tokio::test]
async fn each_end_is_read_back_as_it_was_by_another_replica() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (open(&dir, 1).await.unwrap(), open(&dir, 1).await.unwrap());
    for (age, ending) in (0..).zip(&ends()) {
        let record = record(Duration::from_secs(age));
        let id = record.id;
        one.put(record).await.unwrap();
        one.end(id, pieces(0), ending);
        one.flush().await;
        let kept = two.get(id).await.unwrap().unwrap().kept;
        assert_same(&kept.ending.unwrap(), ending);
    }
}

#[tokio::test]
async fn nothing_is_readable_and_another_key_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let one = open(&dir, 1).await.unwrap();
    let record = record(Duration::ZERO);
    let id = record.id;
    one.put(record).await.unwrap();
    one.end(id, pieces(2), &done());
    one.flush().await;
    for folder in std::fs::read_dir(dir.path()).unwrap() {
        let path = folder.unwrap().path();
        let files = if path.is_dir() {
            path.read_dir().unwrap().map(|it| it.unwrap().path()).collect()
        } else {
            vec![path]
        };
        for file in files {
            let bytes = std::fs::read(&file).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains("canary"), "{}", file.display());
        }
    }
    assert!(matches!(open(&dir, 2).await, Err(SharedError::Key { .. })));
    // A value opens only at its place.
    let name = |kind: &str| dir.path().join(format!("replies/{}.{kind}", crate::ids::hex(id)));
    std::fs::copy(name("end"), name("part")).unwrap();
    std::fs::remove_file(name("end")).unwrap();
    assert!(one.get(id).await.unwrap().unwrap().kept.pieces.is_empty());
}

#[tokio::test]
async fn a_sweep_deletes_old_replies_with_all_that_belongs_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let one = open(&dir, 1).await.unwrap();
    let (old, young) = (record(Duration::from_secs(100)), record(Duration::from_secs(50)));
    for record in [&old, &young] {
        one.put(record.clone()).await.unwrap();
        one.cancel(record.id).await.unwrap();
        one.end(record.id, pieces(2), &done());
    }
    one.flush().await;
    let limit = Duration::from_secs(75);
    one.sweep(limit).await.unwrap();
    one.sweep_notices(limit).await.unwrap();
    assert!(one.get(old.id).await.unwrap().is_none());
    assert!(one.get(young.id).await.unwrap().unwrap().kept.ending.is_some());
    assert_eq!(one.joined(&[1; 32]).await.unwrap(), Some(young.id));
    assert_eq!(one.cancels().await.unwrap(), [young.id]);
    let count = |folder: &str| dir.path().join(folder).read_dir().unwrap().count();
    assert_eq!((count("replies"), count("joins"), count("leases")), (2, 1, 1));
}
