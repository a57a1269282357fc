//! Cache with concurrent writers, with damaged files, and at its budget.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use nsbridge_handler::Buffer;

use super::Cache;
use crate::chunk_writer::{ChunkWriter, Destination};
use crate::digest::{ChunkHasher, Digest};

fn open(dir: &tempfile::TempDir, budget: u64) -> Cache {
    Cache::open(dir.path(), budget, Arc::default()).unwrap()
}

fn chunk(text: &str) -> (Digest, Vec<Bytes>) {
    let frames = text.as_bytes().chunks(3).map(Bytes::copy_from_slice).collect();
    (blake3::hash(text.as_bytes()).into(), frames)
}

async fn read(cache: &Cache, digest: &Digest, len: usize) -> Option<String> {
    let (filling, segments) = Buffer::filled_by(len, 1, &[]).unwrap();
    let hasher = ChunkHasher::new(0, true);
    let writer =
        ChunkWriter::new(segments.into_iter().map(Destination::Into).collect(), Some(hasher));
    let (writer, found) = cache.read(digest, writer, || "chunk 0 of x".to_owned()).await;
    assert_eq!(writer.received(), if found { len as u64 } else { 0 });
    drop(writer);
    found.then(|| String::from_utf8(filling.finish().unwrap().to_vec()).unwrap())
}

fn paths(cache: &Cache) -> Vec<std::path::PathBuf> {
    super::files(&cache.0.chunks).into_iter().map(|file| file.path).collect()
}

#[tokio::test]
async fn what_was_written_is_read_and_what_rots_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(&dir, 1000);
    let (digest, frames) = chunk("a chunk of a model");
    assert_eq!(read(&cache, &digest, 18).await, None);
    cache.write_behind(digest, frames.clone());
    cache.flushed().await;
    assert_eq!(read(&open(&dir, 1000), &digest, 18).await.as_deref(), Some("a chunk of a model"));
    let path = &paths(&cache)[0];
    for damage in ["a chunk of a modeL", "a chunk", "", "a chunk of a model and more"] {
        fs::write(path, damage).unwrap();
        let found = read(&cache, &digest, 18).await;
        // Bytes after the chunk's end are never read.
        assert_eq!(found.is_some(), damage.len() > 18, "{damage}");
        if found.is_none() {
            assert!(!path.exists(), "{damage} is gone");
            cache.write_behind(digest, frames.clone());
            cache.flushed().await;
        }
    }
    assert_eq!(cache.0.counts.wrong_in_cache.get(), 3);
}

#[tokio::test]
async fn a_writer_that_died_leaves_nothing_that_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(&dir, 1000);
    let left = cache.0.new.join("1-00");
    fs::write(&left, "half a chu").unwrap();
    let (digest, _) = chunk("half a chunk");
    assert_eq!(read(&cache, &digest, 12).await, None);
    let old = fs::File::options().write(true).open(&left).unwrap();
    old.set_modified(SystemTime::now() - Duration::from_secs(7200)).unwrap();
    drop(open(&dir, 1000));
    assert!(!left.exists());
}

#[tokio::test]
async fn what_was_used_longest_ago_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(&dir, 1000);
    let chunks: Vec<_> = (0..4).map(|i| chunk(&format!("chunk number {i}"))).collect();
    for (age, (digest, frames)) in chunks.iter().enumerate() {
        cache.write_behind(*digest, frames.clone());
        cache.flushed().await;
        let file = fs::File::options().write(true).open(cache.0.path(digest)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(100 - age as u64)).unwrap();
    }
    // Reading the oldest chunk makes it the most recently used.
    assert!(read(&cache, &chunks[0].0, 14).await.is_some());
    drop(open(&dir, 30));
    let left: Vec<bool> = chunks.iter().map(|(digest, _)| cache.0.path(digest).exists()).collect();
    assert_eq!(left, [true, false, false, true]);
}

#[tokio::test]
async fn many_writers_of_the_same_chunk_leave_one() {
    let dir = tempfile::tempdir().unwrap();
    let (digest, frames) = chunk("the same for all");
    let caches: Vec<_> = (0..4).map(|_| open(&dir, 1000)).collect();
    for cache in &caches {
        cache.write_behind(digest, frames.clone());
    }
    for cache in &caches {
        cache.flushed().await;
    }
    assert_eq!(paths(&caches[0]).len(), 1);
    assert!(super::files(&caches[0].0.new).is_empty());
    assert_eq!(read(&caches[1], &digest, 16).await.as_deref(), Some("the same for all"));
}
