//! Upload of a folder to a bucket: files in parallel parts, then the manifest, then an alias.

mod upload;

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use nsbridge_handler::source::{FileEntry, files_of, links_out_of};

use super::Store;
use crate::digest::{ChunkHasher, Digest, file_digest};
use crate::error::StoreError;
use crate::fetch::Fetcher;
use crate::location::{CURRENT, Location};
use crate::manifest::{
    CHUNK_BYTES, LARGEST_CHUNK, LONGEST_MANIFEST, MANIFEST, Manifest, ManifestFile, check_path,
    check_revision, hex,
};
use crate::objects::Objects;
use crate::objects::s3::S3;
use crate::versions::Alias;

/// Maximum number of parts of an S3 object.
const MOST_PARTS: u64 = 10_000;

/// Number of chunks that are hashed at once. Reading is the bottleneck on most machines.
const HASHED_AT_ONCE: usize = 4;

/// Parameters of a push.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Push {
    /// Folder that is pushed.
    pub from: PathBuf,
    /// Location of the model, `s3://bucket/models/NAME`. Its version must be empty: the revision is
    /// a field of its own.
    pub to: Location,
    /// Name of the model in the manifest.
    pub model: String,
    /// Revision; derived from the content of the files if absent.
    pub revision: Option<String>,
    /// Alias that is pointed to the revision, if any.
    pub alias: Option<String>,
    /// True to replace another model of the same revision.
    pub force: bool,
    /// True to push files that a link outside the folder refers to.
    pub follow_links: bool,
}

impl Push {
    /// Pushes a folder as a model of this name. The revision is derived from the content, and no
    /// alias changes.
    pub fn new(from: impl Into<PathBuf>, to: Location, model: impl Into<String>) -> Self {
        let (from, model) = (from.into(), model.into());
        Self { from, to, model, revision: None, alias: None, force: false, follow_links: false }
    }
}

/// Result of a push.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pushed {
    /// Address of the revision.
    pub place: String,
    /// Revision of the model.
    pub revision: String,
    /// BLAKE3 of the manifest, for a configuration's `manifest`.
    pub manifest: [u8; 32],
    /// True if everything was there before the push.
    pub was_there: bool,
}

/// Progress of a push, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pushing {
    /// Total number of bytes that will be hashed and then sent.
    Planned(u64),
    /// Bytes that were hashed.
    Hashed(u64),
    /// Bytes that are in the bucket, sent now or before.
    There(u64),
}

impl Store {
    /// Pushes a folder. Parts that are in the bucket already are not sent again. The manifest is
    /// written last, so a reader never finds a partial model.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read or changes meanwhile, if the bucket refuses, or if
    /// the revision holds another model and `force` is not set.
    pub async fn push(
        &self,
        push: Push,
        progress: impl Fn(Pushing) + Send + Sync + 'static,
    ) -> Result<Pushed, StoreError> {
        let Location::S3 { bucket, prefix, version } = &push.to else {
            let why = "models are pushed to s3://bucket/prefix; into a folder they are copied";
            return Err(StoreError::unusable(push.to.to_string(), why));
        };
        if version.is_some() {
            let why = "name the revision apart from the address".to_owned();
            return Err(StoreError::unusable(push.to.to_string(), why));
        }
        let top = S3::new(self.client().await?, bucket, prefix);
        let fetcher = self.fetcher.clone();
        self.run(async move { run(&top, &fetcher, &push, &progress).await }).await
    }

    /// Points an alias to a revision, which rolls the revision out or back.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such revision or if the bucket refuses.
    pub async fn point(&self, to: &Location, alias: &str) -> Result<Alias, StoreError> {
        let Location::S3 { bucket, prefix, version: Some(revision) } = to else {
            let why = "an alias points to s3://bucket/prefix@revision";
            return Err(StoreError::unusable(to.to_string(), why));
        };
        check_revision(alias).map_err(StoreError::Refused)?;
        let top = S3::new(self.client().await?, bucket, prefix);
        let fetcher = self.fetcher.clone();
        let (alias, revision) = (alias.to_owned(), revision.clone());
        self.run(async move {
            let within = top.below(&revision);
            let manifest = find_manifest(&within, &fetcher).await?;
            let (_, digest) =
                manifest.ok_or_else(|| StoreError::Missing { object: within.address(MANIFEST) })?;
            let pointed = Alias { revision, manifest: digest };
            set_alias(&top, &fetcher, &alias, &pointed).await?;
            Ok(pointed)
        })
        .await
    }
}

async fn run(
    top: &S3,
    fetcher: &Fetcher,
    push: &Push,
    progress: &(dyn Fn(Pushing) + Send + Sync),
) -> Result<Pushed, StoreError> {
    check_before(top, fetcher, push).await?;
    let mut manifest = hash_folder(push, progress).await?;
    let revision = match &push.revision {
        Some(revision) => revision.clone(),
        // Equal files give an equal name, so a repeated push finds its own revision.
        None => hex(&content(&manifest))[..16].to_owned(),
    };
    manifest.revision.clone_from(&revision);
    let within = top.below(&revision);
    let place = within.address("").trim_end_matches('/').to_owned();
    let found = find_manifest(&within, fetcher).await?;
    let same = found.as_ref().filter(|(found, _)| content(found) == content(&manifest));
    if found.is_some() && same.is_none() && !push.force {
        return Err(StoreError::Refused(format!(
            "{place} holds another model: push under a new revision, or say --force"
        )));
    }
    // Even if the manifest is there, objects that it lists may have been deleted.
    let sent = upload::files(&within, fetcher, push, &mut manifest, progress).await?;
    let digest = match same {
        Some((_, digest)) => *digest,
        None => publish(&within, fetcher, &manifest, push.force).await?,
    };
    if let Some(alias) = &push.alias {
        let pointed = Alias { revision: revision.clone(), manifest: digest };
        set_alias(top, fetcher, alias, &pointed).await?;
    }
    let was_there = same.is_some() && sent == 0;
    Ok(Pushed { place, revision, manifest: digest, was_there })
}

/// Refuses invalid parameters before hours of hashing and sending.
async fn check_before(top: &S3, fetcher: &Fetcher, push: &Push) -> Result<(), StoreError> {
    for name in push.revision.iter().chain(&push.alias) {
        check_revision(name).map_err(StoreError::Refused)?;
    }
    if push.alias.is_some() && push.alias == push.revision {
        return Err(StoreError::Refused("an alias cannot bear its revision's name".to_owned()));
    }
    if !push.follow_links {
        stays_within(&push.from)?;
    }
    match Alias::find(top, fetcher, CURRENT).await {
        // This role may write but not read.
        Ok(_) | Err(StoreError::Denied { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Refuses a folder with links that lead out of it, since they may expose any file of the user.
fn stays_within(folder: &Path) -> Result<(), StoreError> {
    let unlisted = StoreError::system(format!("list {}", folder.display()));
    let links = links_out_of(folder).map_err(unlisted)?;
    let Some((path, place)) = links.first() else { return Ok(()) };
    let others =
        if links.len() > 1 { format!(", and {} more", links.len() - 1) } else { String::new() };
    Err(StoreError::Refused(format!(
        "{path:?} in {} is a link to {}{others}: if they are meant, as in a cache of Hugging Face, say \
         --follow-links",
        folder.display(),
        place.display(),
    )))
}

/// Writes the manifest if the objects are still the ones that were sent.
async fn publish(
    within: &S3,
    fetcher: &Fetcher,
    manifest: &Manifest,
    force: bool,
) -> Result<Digest, StoreError> {
    let place = within.address("");
    let other = || StoreError::Refused(format!("another push to {place} went on at the same time"));
    match fetcher.patiently(&place, || within.list()).await {
        Err(StoreError::Denied { .. }) => {}
        listed => {
            let listed = listed?;
            let is_there = |file: &ManifestFile| {
                listed.iter().any(|object| object.path == file.path && object.etag == file.etag)
            };
            if !manifest.files.iter().all(is_there) {
                return Err(other());
            }
        }
    }
    let json = manifest.to_json();
    let digest = blake3::hash(&json).into();
    let put = || within.put(MANIFEST, json.clone(), !force);
    if !fetcher.patiently(&within.address(MANIFEST), put).await? {
        // It was written by an earlier try whose response was lost, or by another push.
        let written = find_manifest(within, fetcher).await?;
        if written.is_none_or(|(_, written)| written != digest) {
            return Err(other());
        }
    }
    Ok(digest)
}

async fn set_alias(
    top: &S3,
    fetcher: &Fetcher,
    name: &str,
    alias: &Alias,
) -> Result<(), StoreError> {
    if find_manifest(&top.below(name), fetcher).await?.is_some() {
        let why = format!("{name} is a revision, and cannot be an alias too");
        return Err(StoreError::Refused(why));
    }
    let put = || top.put(name, alias.to_json(), false);
    fetcher.patiently(&top.address(name), put).await.map(|_| ())
}

async fn find_manifest(
    within: &S3,
    fetcher: &Fetcher,
) -> Result<Option<(Manifest, Digest)>, StoreError> {
    let address = within.address(MANIFEST);
    let bytes = fetcher.patiently(&address, || within.get(MANIFEST, LONGEST_MANIFEST)).await?;
    let parse = |bytes: bytes::Bytes| {
        let manifest = Manifest::parse(&bytes);
        let manifest = manifest.map_err(|why| StoreError::unusable(&address, why))?;
        Ok((manifest, blake3::hash(&bytes).into()))
    };
    bytes.map(parse).transpose()
}

/// Returns a digest of the files' paths and hashes, without their ETags.
fn content(manifest: &Manifest) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for file in &manifest.files {
        hasher.update(&(file.path.len() as u64).to_le_bytes());
        hasher.update(file.path.as_bytes());
        hasher.update(&file.blake3);
    }
    hasher.finalize().into()
}

/// Hashes a folder and returns its manifest, without a revision.
async fn hash_folder(
    push: &Push,
    progress: &(dyn Fn(Pushing) + Send + Sync),
) -> Result<Manifest, StoreError> {
    let dir = &push.from;
    let files = files_of(dir).map_err(StoreError::system(format!("list {}", dir.display())))?;
    let files: Vec<_> = files.into_iter().filter(|file| file.path != MANIFEST).collect();
    if files.is_empty() {
        return Err(StoreError::Missing { object: format!("file in {}", dir.display()) });
    }
    let largest = files.iter().map(|file| file.size).max().unwrap_or(0);
    let chunk_bytes = CHUNK_BYTES.max(largest.div_ceil(MOST_PARTS).next_power_of_two());
    if chunk_bytes > LARGEST_CHUNK {
        let why = format!("a file of {largest} bytes is more than S3's {MOST_PARTS} parts hold");
        return Err(StoreError::unusable(dir.display().to_string(), why));
    }
    progress(Pushing::Planned(files.iter().map(|file| file.size).sum()));
    let mut hashed = Vec::with_capacity(files.len());
    for file in files {
        check_path(&file.path)
            .map_err(|why| StoreError::unusable(dir.display().to_string(), why))?;
        hashed.push(hash_file(dir, file, chunk_bytes, progress).await?);
    }
    let (model, revision) = (push.model.clone(), String::new());
    Ok(Manifest { model, revision, chunk_bytes, files: hashed })
}

async fn hash_file(
    dir: &Path,
    file: FileEntry,
    chunk_bytes: u64,
    progress: &(dyn Fn(Pushing) + Send + Sync),
) -> Result<ManifestFile, StoreError> {
    let path = dir.join(&file.path);
    let size = file.size;
    let alone = size <= chunk_bytes;
    let hash = |number: u64| {
        let path = path.clone();
        let range = number * chunk_bytes..size.min((number + 1) * chunk_bytes);
        async move {
            let bytes = read_part(&path, range.clone()).await?;
            let mut hasher = ChunkHasher::new(range.start, alone);
            hasher.update(&bytes);
            progress(Pushing::Hashed(range.end - range.start));
            Ok::<_, StoreError>(hasher.finish())
        }
    };
    let numbers = stream::iter(0..size.div_ceil(chunk_bytes));
    let chunks: Vec<Digest> = numbers.map(hash).buffered(HASHED_AT_ONCE).try_collect().await?;
    let blake3 = file_digest(size, chunk_bytes, &chunks);
    Ok(ManifestFile { path: file.path, size, blake3, chunks, etag: None })
}

/// Reads a range of a local file.
async fn read_part(path: &Path, range: std::ops::Range<u64>) -> Result<Vec<u8>, StoreError> {
    let target = path.to_owned();
    let read = move || {
        let mut file = File::open(&target)?;
        file.seek(SeekFrom::Start(range.start))?;
        let mut bytes = Vec::new();
        file.take(range.end - range.start).read_to_end(&mut bytes)?;
        let whole = bytes.len() as u64 == range.end - range.start;
        whole.then_some(bytes).ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
    };
    let read = tokio::task::spawn_blocking(read).await.map_err(|_| StoreError::GivenUp)?;
    read.map_err(StoreError::system(format!("read {}", path.display())))
}
