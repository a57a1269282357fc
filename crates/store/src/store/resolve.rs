//! Resolution of a model: alias, revision, manifest, and the version of each object.

use std::collections::HashMap;
use std::sync::Arc;

use nsbridge_handler::Model;
use nsbridge_handler::source::{FileEntry, belongs_to};

use super::{Opened, Store, Wanted};
use crate::contents::{Contents, Digests, StoredFile};
use crate::digest::Digest;
use crate::error::StoreError;
use crate::fetch::Fetcher;
use crate::location::{CURRENT, Location};
use crate::manifest::{
    CHUNK_BYTES, LONGEST_MANIFEST, MANIFEST, Manifest, ManifestFile, check_path, hex,
};
use crate::objects::{Folder, Object, Objects};
use crate::source::Stored;

impl Store {
    /// Finds a model and pins the version of each of its files. Reads no weights yet.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no model at the location, if its manifest is not the pinned
    /// one, or if the location cannot be reached.
    pub async fn model(&self, wanted: &Wanted) -> Result<Opened, StoreError> {
        let (folder, file) = match wanted.location.gguf_file() {
            Some((folder, file)) => (folder, Some(file)),
            None => (wanted.location.clone(), None),
        };
        let (objects, pin) = self.revision(&folder, file.clone()).await?;
        let pin = wanted.manifest.or(pin);
        let fetcher = self.fetcher.clone();
        let mut found = {
            let objects = objects.clone();
            self.run(async move { find(&*objects, &fetcher, pin).await }).await?
        };
        if let Some(name) = &file {
            found.files.retain(|stored| belongs_to(name, &stored.object.path));
            if !found.files.iter().any(|stored| stored.object.path == *name) {
                return Err(StoreError::Missing { object: objects.address(name) });
            }
        }
        self.opened(objects, found, file)
    }

    fn opened(
        &self,
        objects: Arc<dyn Objects>,
        found: Found,
        file: Option<String>,
    ) -> Result<Opened, StoreError> {
        let Found { written, manifest, digest, files } = found;
        let entry = |file: &StoredFile| {
            let Object { path, size, .. } = file.object.clone();
            FileEntry::new(path, size)
        };
        let entries = files.iter().map(entry).collect();
        let chunk_bytes = manifest.as_ref().map_or(CHUNK_BYTES, |manifest| manifest.chunk_bytes);
        let tree = match (objects.folder(), digest, file) {
            // A folder serves as its own tree. The store does not repair damaged files in a folder
            // of the user.
            (Some(folder), ..) => folder.to_owned(),
            (None, Some(digest), None) => self.trees.join(&hex(&digest)[..32]),
            (None, Some(digest), Some(name)) => {
                let of_both = blake3::hash(&[&digest[..], name.as_bytes()].concat());
                self.trees.join(&hex(of_both.as_bytes())[..32])
            }
            (None, None, _) => self.trees.join(&hex(&versions_of(&*objects, &files))[..32]),
        };
        let memory = self.config.memory_bytes();
        let fetcher = self.fetcher.clone();
        let contents = Arc::new(Contents::new(objects, files, chunk_bytes, fetcher, memory / 2));
        let runtime = self.runtime.as_ref().ok_or(StoreError::GivenUp)?.handle().clone();
        let revision = manifest.as_ref().map(|manifest| manifest.revision.clone());
        let stored =
            Stored { contents: contents.clone(), entries, revision, runtime, memory, tree };
        Ok(Opened {
            model: Model::from_source(Arc::new(stored)),
            manifest: manifest.map(Arc::new),
            written,
            contents,
        })
    }

    /// Returns the folder of the requested revision, and the manifest digest that its alias pins.
    async fn revision(
        &self,
        folder: &Location,
        file: Option<String>,
    ) -> Result<(Arc<dyn Objects>, Option<Digest>), StoreError> {
        match folder {
            Location::Folder(dir) => {
                if !dir.is_dir() {
                    let object = format!("folder {}", dir.display());
                    return Err(StoreError::Missing { object });
                }
                Ok((Arc::new(Folder::new(dir).around(file)), None))
            }
            #[cfg(feature = "s3")]
            Location::S3 { bucket, prefix, version } => {
                self.in_bucket(bucket, prefix, version.as_deref()).await
            }
            #[cfg(not(feature = "s3"))]
            Location::S3 { .. } => Err(StoreError::unusable(
                folder.to_string(),
                "this program was built without the feature `s3`",
            )),
        }
    }

    #[cfg(feature = "s3")]
    async fn in_bucket(
        &self,
        bucket: &str,
        prefix: &str,
        version: Option<&str>,
    ) -> Result<(Arc<dyn Objects>, Option<Digest>), StoreError> {
        use crate::objects::s3::S3;
        use crate::versions::Alias;

        let top = S3::new(self.client().await?, bucket, prefix);
        let name = version.unwrap_or(CURRENT).to_owned();
        let (fetcher, within) = (self.fetcher.clone(), top.clone());
        let alias = {
            let name = name.clone();
            self.run(async move { Alias::find(&within, &fetcher, &name).await }).await
        };
        match (alias, version) {
            (Ok(Some(alias)), _) => {
                tracing::info!(model = %top.address(""), alias = name, revision = alias.revision);
                Ok((Arc::new(top.below(&alias.revision)), Some(alias.manifest)))
            }
            // There is no alias of this name, so it is the name of a revision. S3 answers
            // "forbidden" for a missing object if the role may not list.
            (Ok(None) | Err(StoreError::Denied { .. }), Some(revision)) => {
                Ok((Arc::new(top.below(revision)), None))
            }
            // Without an alias the prefix itself is taken for a folder of files.
            (Ok(None) | Err(StoreError::Denied { .. }), None) => Ok((Arc::new(top), None)),
            (Err(error), _) => Err(error),
        }
    }

    #[cfg(feature = "s3")]
    pub(super) async fn client(&self) -> Result<aws_sdk_s3::Client, StoreError> {
        let make = || crate::objects::s3::connect(&self.config, self.credentials.as_ref());
        self.client.get_or_try_init(make).await.cloned()
    }
}

/// Returns a digest of the current object versions, for models without a manifest.
fn versions_of(objects: &dyn Objects, files: &[StoredFile]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(objects.address("").as_bytes());
    for StoredFile { object, .. } in files {
        for part in [object.path.as_str(), object.etag.as_deref().unwrap_or_default()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
    }
    hasher.finalize().into()
}

struct Found {
    written: Option<bytes::Bytes>,
    manifest: Option<Manifest>,
    digest: Option<Digest>,
    files: Vec<StoredFile>,
}

async fn find(
    objects: &dyn Objects,
    fetcher: &Fetcher,
    pin: Option<Digest>,
) -> Result<Found, StoreError> {
    let address = objects.address(MANIFEST);
    let manifest = fetcher.patiently(&address, || objects.get(MANIFEST, LONGEST_MANIFEST)).await?;
    let digest = manifest.as_ref().map(|bytes| blake3::hash(bytes).into());
    if let Some(pin) = pin
        && digest != Some(pin)
    {
        let found =
            digest.map_or("is not there".to_owned(), |digest| format!("is {}", hex(&digest)));
        let why = format!("its BLAKE3 must be {}, and it {found}", hex(&pin));
        return Err(StoreError::unusable(address, why));
    }
    let Some(bytes) = manifest else { return unverified(objects, fetcher).await };
    let manifest = Manifest::parse(&bytes).map_err(|why| StoreError::unusable(address, why))?;
    let listed = match fetcher.patiently(&objects.address(""), || objects.list()).await {
        // If the role may read but not list, the manifest's sizes and ETags are used.
        Err(StoreError::Denied { .. }) => None,
        other => Some(by_path(other?)),
    };
    let pinned = |file: &ManifestFile| {
        let object = match &listed {
            Some(listed) => pin_listed(objects, file, listed)?,
            None => Object { path: file.path.clone(), size: file.size, etag: file.etag.clone() },
        };
        let digests = Some(Digests { file: file.blake3, chunks: file.chunks.clone() });
        Ok(StoredFile { object, digests })
    };
    let files = manifest.files.iter().map(pinned).collect::<Result<_, StoreError>>()?;
    Ok(Found { written: Some(bytes), manifest: Some(manifest), digest, files })
}

fn pin_listed(
    objects: &dyn Objects,
    file: &ManifestFile,
    listed: &HashMap<String, Object>,
) -> Result<Object, StoreError> {
    let address = objects.address(&file.path);
    let Some(object) = listed.get(&file.path) else {
        return Err(StoreError::Missing { object: format!("{address}, which its manifest names") });
    };
    if object.size != file.size {
        let why = format!("it has {} bytes, its manifest says {}", object.size, file.size);
        return Err(StoreError::unusable(address, why));
    }
    // A copied bucket may have other ETags for the same bytes. The digests decide.
    if file.etag.is_some() && object.etag != file.etag && objects.folder().is_none() {
        tracing::debug!(address, "another ETag than the manifest's: the digests will tell");
    }
    Ok(object.clone())
}

/// Opens a model without a manifest: pinned to the current object versions, not verified.
async fn unverified(objects: &dyn Objects, fetcher: &Fetcher) -> Result<Found, StoreError> {
    let place = objects.address("").trim_end_matches('/').to_owned();
    let mut listed = fetcher.patiently(&place, || objects.list()).await?;
    if listed.is_empty() {
        let object = format!("model in {place}: it has no {MANIFEST} and no other file");
        return Err(StoreError::Missing { object });
    }
    if objects.folder().is_none() {
        tracing::warn!("{place} has no {MANIFEST}: its bytes cannot be verified");
    }
    let revisions = listed.iter().filter_map(|object| object.path.strip_suffix(MANIFEST));
    let revisions: Vec<_> = revisions.map(|path| path.trim_end_matches('/')).take(5).collect();
    if !revisions.is_empty() {
        let why = format!(
            "it has no alias `{}`: name one of its revisions behind an @, such as {}",
            CURRENT,
            revisions.join(", ")
        );
        return Err(StoreError::unusable(place, why));
    }
    listed.sort_by(|a, b| a.path.cmp(&b.path));
    check_listing(&listed).map_err(|why| StoreError::unusable(place, why))?;
    let files = listed.into_iter().map(|object| StoredFile { object, digests: None }).collect();
    Ok(Found { written: None, manifest: None, digest: None, files })
}

/// Checks paths and sizes of a listing, which are as untrusted as those of a manifest.
fn check_listing(listed: &[Object]) -> Result<(), String> {
    for object in listed {
        check_path(&object.path)?;
        if object.size > i64::MAX as u64 {
            return Err(format!("{:?} claims {} bytes", object.path, object.size));
        }
    }
    let folders = listed.windows(2).find(|pair| {
        pair[0].path == pair[1].path || pair[1].path.starts_with(&format!("{}/", pair[0].path))
    });
    folders.map_or(Ok(()), |pair| Err(format!("{:?} is there twice", pair[0].path)))
}

fn by_path(objects: Vec<Object>) -> HashMap<String, Object> {
    objects.into_iter().map(|object| (object.path.clone(), object)).collect()
}
