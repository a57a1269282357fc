//! List of a model's files with their digests: `nsb-manifest.json`, stored beside the files.
//!
//! ```json
//! {"schema": 1, "model": "tale-7m", "revision": "2026-11-21", "chunk_bytes": 16777216,
//!  "files": [{"path": "config.json", "size": 737, "blake3": "<64 hex digits>",
//!             "chunks": "<base64, 32 bytes for each chunk>", "etag": "\"9bb5…\""}]}
//! ```

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nsbridge_protocol::Revision;
use serde::{Deserialize, Serialize};

use crate::digest::{ChunkHasher, Digest, file_digest};

/// File name of the manifest, in the model's folder.
pub const MANIFEST: &str = "nsb-manifest.json";

/// Default size of a chunk: 16 MiB.
pub const CHUNK_BYTES: u64 = 16 << 20;

/// Maximum size of a chunk that is read and of a part that is uploaded: 64 MiB.
pub(crate) const LARGEST_CHUNK: u64 = 64 << 20;

/// Maximum size of a manifest: 64 MiB. The digests of a model of 2 TB take less.
pub(crate) const LONGEST_MANIFEST: u64 = 64 << 20;

const LONGEST_PATH: usize = 1024;

/// Maximum folder depth of a path, the same depth to which a folder is listed for a push.
const DEEPEST_PATH: usize = 8;

/// Maximum number of files of a model.
///
/// Every folder of every path is kept in a set, and 64 MiB of deep paths would be tens of millions
/// of entries.
const MOST_FILES: usize = 100_000;
/// Maximum total length of all paths of a model, in bytes.
const MOST_PATH_BYTES: usize = 8 << 20;

const SCHEMA: u32 = 1;

/// Files of a model and the digests of their bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Manifest {
    /// Name of the model.
    pub model: String,
    /// Revision of the model.
    pub revision: String,
    /// Chunk size in bytes, a power of two. Only the last chunk of a file may be smaller.
    pub chunk_bytes: u64,
    /// Files in ascending order of their paths.
    pub files: Vec<ManifestFile>,
}

/// File entry of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManifestFile {
    /// Path within the model, with `/` between the parts.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// BLAKE3 of the whole file.
    pub blake3: [u8; 32],
    /// Digest of each chunk.
    pub chunks: Vec<[u8; 32]>,
    /// ETag that the object store gave the file when it was pushed.
    pub etag: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Written {
    schema: u32,
    model: String,
    revision: String,
    chunk_bytes: u64,
    files: Vec<WrittenFile>,
}

#[derive(Serialize, Deserialize)]
struct WrittenFile {
    path: String,
    size: u64,
    blake3: String,
    chunks: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
}

impl Manifest {
    /// Creates a manifest of files in ascending order of their paths, whose chunks have
    /// [`CHUNK_BYTES`].
    pub fn new(
        model: impl Into<String>,
        revision: impl Into<String>,
        files: Vec<ManifestFile>,
    ) -> Self {
        let (model, revision) = (model.into(), revision.into());
        Self { model, revision, chunk_bytes: CHUNK_BYTES, files }
    }

    /// Parses a manifest and checks that it is consistent.
    ///
    /// ```
    /// use nsbridge_store::Manifest;
    ///
    /// let refused = Manifest::parse(b"{}").unwrap_err();
    /// assert!(refused.contains("it is no manifest"));
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the reason if the manifest is invalid, for a sentence that names the manifest.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() as u64 > LONGEST_MANIFEST {
            return Err(format!("it has more than {LONGEST_MANIFEST} bytes"));
        }
        let written: Written =
            serde_json::from_slice(bytes).map_err(|error| format!("it is no manifest: {error}"))?;
        if written.schema != SCHEMA {
            return Err(format!("its schema is {}, this program reads {SCHEMA}", written.schema));
        }
        let chunk_bytes = written.chunk_bytes;
        if !chunk_bytes.is_power_of_two() || !(64 << 10..=LARGEST_CHUNK).contains(&chunk_bytes) {
            return Err("its chunk_bytes is no power of two from 64 KiB to 64 MiB".to_owned());
        }
        let paths: usize = written.files.iter().map(|file| file.path.len()).sum();
        if written.files.len() > MOST_FILES || paths > MOST_PATH_BYTES {
            let count = written.files.len();
            return Err(format!(
                "it names {count} files by {paths} bytes of paths, where {MOST_FILES} and \
                 {MOST_PATH_BYTES} are the limits"
            ));
        }
        let files = written.files.into_iter().map(|file| file.check(chunk_bytes));
        let mut files: Vec<_> = files.collect::<Result<_, _>>()?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        if let Some(pair) = files.windows(2).find(|pair| pair[0].path == pair[1].path) {
            return Err(format!("it names {} twice", pair[0].path));
        }
        let folders: BTreeSet<&str> = files.iter().flat_map(|file| folders(&file.path)).collect();
        if let Some(both) = files.iter().find(|file| folders.contains(file.path.as_str())) {
            return Err(format!("{} is a file in it and a folder", both.path));
        }
        check_revision(&written.revision)?;
        Ok(Self { model: written.model, revision: written.revision, chunk_bytes, files })
    }

    /// Serializes the manifest to the JSON that [`parse`](Self::parse) reads.
    pub fn to_json(&self) -> Vec<u8> {
        let files = self.files.iter().map(|file| WrittenFile {
            path: file.path.clone(),
            size: file.size,
            blake3: hex(&file.blake3),
            chunks: STANDARD.encode(file.chunks.concat()),
            etag: file.etag.clone(),
        });
        let written = Written {
            schema: SCHEMA,
            model: self.model.clone(),
            revision: self.revision.clone(),
            chunk_bytes: self.chunk_bytes,
            files: files.collect(),
        };
        // It holds only strings and numbers, so the serialization cannot fail.
        let mut json = serde_json::to_vec_pretty(&written).unwrap_or_default();
        json.push(b'\n');
        json
    }

    /// Returns the total size of all files in bytes.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

impl ManifestFile {
    /// Computes the manifest entry of a file with these bytes.
    pub fn of(path: impl Into<String>, bytes: &[u8], chunk_bytes: u64) -> Self {
        let size = bytes.len() as u64;
        let chunks = bytes.chunks(chunk_bytes as usize).zip(0..);
        let chunks = chunks.map(|(chunk, number)| {
            let mut hasher = ChunkHasher::new(number * chunk_bytes, size <= chunk_bytes);
            hasher.update(chunk);
            hasher.finish()
        });
        let chunks: Vec<_> = chunks.collect();
        let blake3 = file_digest(size, chunk_bytes, &chunks);
        Self { path: path.into(), size, blake3, chunks, etag: None }
    }
}

impl WrittenFile {
    fn check(self, chunk_bytes: u64) -> Result<ManifestFile, String> {
        let Self { path, size, blake3, chunks, etag } = self;
        check_path(&path)?;
        if size > i64::MAX as u64 {
            return Err(format!("{path} claims {size} bytes"));
        }
        let blake3 = unhex(&blake3).ok_or_else(|| format!("the blake3 of {path} is no hash"))?;
        let chunks = STANDARD.decode(&chunks).ok().and_then(|bytes| {
            let (chunks, rest) = bytes.as_chunks::<32>();
            rest.is_empty().then(|| chunks.to_vec())
        });
        let chunks = chunks.ok_or_else(|| format!("the chunks of {path} cannot be read"))?;
        if chunks.len() as u64 != size.div_ceil(chunk_bytes) {
            return Err(format!("{path} has {size} bytes and {} chunks", chunks.len()));
        }
        if file_digest(size, chunk_bytes, &chunks) != blake3 {
            return Err(format!("the chunks of {path} do not make its blake3"));
        }
        Ok(ManifestFile { path, size, blake3, chunks, etag })
    }
}

/// Rejects a path that leads out of its folder, or that some operating system reads differently.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    let bad_part = |part: &str| part.is_empty() || part == "." || part == "..";
    let bad = path.split('/').any(bad_part)
        || path.contains(['\\', ':'])
        || path.chars().any(char::is_control)
        || path.len() > LONGEST_PATH
        || folders(path).count() > DEEPEST_PATH
        || path == MANIFEST;
    // `{path:?}` escapes an untrusted path before it enters a message.
    if bad { Err(format!("the path {path:?} is not one within a folder")) } else { Ok(()) }
}

/// Checks that a revision is valid as a part of addresses and of requests.
pub(crate) fn check_revision(revision: &str) -> Result<(), String> {
    revision.parse::<Revision>().map(|_| ()).map_err(|error| error.to_string())
}

/// Returns the folders that a path passes through.
fn folders(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

pub(crate) fn hex(digest: &Digest) -> String {
    blake3::Hash::from_bytes(*digest).to_hex().to_string()
}

pub(crate) fn unhex(text: &str) -> Option<Digest> {
    blake3::Hash::from_hex(text).ok().map(Into::into)
}

#[cfg(test)]
mod tests;
