//! In-memory storage of objects.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use s3s::dto::{ETag, ETagCondition, Metadata};
use s3s::{S3Result, s3_error};

use super::checksum::{Algorithm, Sum, md5_hex};

/// All buckets, shared by all requests.
#[derive(Debug, Default)]
pub(super) struct Store {
    buckets: Mutex<BTreeMap<String, Bucket>>,
    /// Number of generated names, of versions and uploads.
    named: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Bucket {
    pub(super) versioned: bool,
    /// Versions of each key, oldest first; `None` marks a deletion. Without versioning a key has
    /// one version.
    objects: BTreeMap<String, Vec<Option<Object>>>,
    pub(super) uploads: BTreeMap<String, Upload>,
}

/// Stored object; clones share its bytes.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) bytes: Bytes,
    pub(super) etag: String,
    pub(super) sum: Sum,
    pub(super) modified: SystemTime,
    /// Sizes of the parts of a multipart object; empty for an object written at once.
    pub(super) parts: Vec<usize>,
    pub(super) content_type: Option<String>,
    pub(super) metadata: Option<Metadata>,
    /// Version id, in a bucket with versioning.
    pub(super) version: Option<String>,
}

/// Multipart upload in progress.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) key: String,
    pub(super) algorithm: Option<Algorithm>,
    /// True for a full-object checksum, false for a composite one.
    pub(super) whole: bool,
    pub(super) content_type: Option<String>,
    pub(super) metadata: Option<Metadata>,
    pub(super) began: SystemTime,
    pub(super) parts: BTreeMap<i32, Part>,
}

#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) bytes: Bytes,
    pub(super) etag: String,
    pub(super) sum: Sum,
    pub(super) modified: SystemTime,
}

/// Preconditions of a read or write (`If-Match`, `If-None-Match`).
#[derive(Debug, Default)]
pub(super) struct Conditions {
    pub(super) matches: Option<ETagCondition>,
    pub(super) matches_not: Option<ETagCondition>,
}

impl Object {
    pub(super) fn new(bytes: Bytes) -> Self {
        let (etag, sum) = (md5_hex(&bytes), Algorithm::Crc64Nvme.whole(&bytes));
        Self {
            bytes,
            etag,
            sum,
            modified: SystemTime::now(),
            parts: Vec::new(),
            content_type: None,
            metadata: None,
            version: None,
        }
    }

    pub(super) fn tag(&self) -> ETag {
        ETag::Strong(self.etag.clone())
    }

    /// Returns true if this is the version `name`; an object from before versioning is version
    /// `null`.
    fn is_version(&self, name: &str) -> bool {
        self.version.as_deref().unwrap_or("null") == name
    }
}

impl Conditions {
    /// Checks the conditions for a read.
    ///
    /// # Errors
    ///
    /// Returns 412 if `If-Match` does not match, and 304 if `If-None-Match` does.
    pub(super) fn to_read(&self, object: &Object) -> S3Result<()> {
        let is = |condition: &ETagCondition| holds(condition, Some(object));
        if self.matches.as_ref().is_some_and(|condition| !is(condition)) {
            return Err(s3_error!(PreconditionFailed, "The object is another one by now."));
        }
        if self.matches_not.as_ref().is_some_and(is) {
            return Err(s3_error!(NotModified));
        }
        Ok(())
    }

    /// Checks the conditions for a write.
    ///
    /// # Errors
    ///
    /// Returns 412 if a condition fails, and 404 for `If-Match` without an object.
    fn to_write(&self, object: Option<&Object>) -> S3Result<()> {
        if self.matches.is_some() && object.is_none() {
            return Err(s3_error!(NoSuchKey));
        }
        let unmet = self.matches.as_ref().is_some_and(|condition| !holds(condition, object))
            || self.matches_not.as_ref().is_some_and(|condition| holds(condition, object));
        if unmet {
            return Err(s3_error!(PreconditionFailed, "A condition of yours did not hold."));
        }
        Ok(())
    }
}

fn holds(condition: &ETagCondition, object: Option<&Object>) -> bool {
    match (condition, object) {
        (_, None) => false,
        (ETagCondition::Any, Some(_)) => true,
        (ETagCondition::ETag(tag), Some(object)) => tag.value() == object.etag,
    }
}

impl Bucket {
    /// Returns the newest version, or the one with this version id.
    ///
    /// # Errors
    ///
    /// Returns `NoSuchKey` or `NoSuchVersion` if there is none.
    pub(super) fn object(&self, key: &str, version: Option<&str>) -> S3Result<&Object> {
        let versions = self.objects.get(key).map(Vec::as_slice).unwrap_or_default();
        let found = match version {
            Some(name) => versions.iter().flatten().find(|object| object.is_version(name)),
            None => versions.last().and_then(Option::as_ref),
        };
        match (found, version) {
            (Some(object), _) => Ok(object),
            (None, None) => Err(s3_error!(NoSuchKey, "The specified key does not exist.")),
            (None, Some(_)) => Err(s3_error!(NoSuchVersion)),
        }
    }

    /// Iterates over the existing keys, in byte order.
    pub(super) fn objects(&self) -> impl Iterator<Item = (&str, &Object)> {
        let newest = self.objects.iter().map(|(key, versions)| (key, versions.last()));
        newest.filter_map(|(key, last)| Some((key.as_str(), last?.as_ref()?)))
    }

    /// Writes an object if the conditions hold.
    ///
    /// # Errors
    ///
    /// Returns an error if a condition does not hold.
    pub(super) fn put(&mut self, key: &str, object: Object, on: &Conditions) -> S3Result<()> {
        on.to_write(self.object(key, None).ok())?;
        let versions = self.objects.entry(key.to_owned()).or_default();
        if !self.versioned {
            versions.clear();
        }
        versions.push(Some(object));
        Ok(())
    }

    /// Deletes an object or one version of it. Missing objects are not an error.
    pub(super) fn delete(&mut self, key: &str, version: Option<&str>) {
        let Some(versions) = self.objects.get_mut(key) else { return };
        match version {
            Some(name) => versions
                .retain(|version| version.as_ref().is_none_or(|object| !object.is_version(name))),
            None if self.versioned => versions.push(None),
            None => versions.clear(),
        }
        if versions.is_empty() {
            self.objects.remove(key);
        }
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Bucket>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a unique name.
    pub(super) fn name(&self, kind: &str) -> String {
        format!("{kind}{:016x}", self.named.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Runs `work` on a bucket.
    ///
    /// # Errors
    ///
    /// Returns the error of `work`, or `NoSuchBucket`.
    pub(super) fn within<T>(
        &self,
        bucket: &str,
        work: impl FnOnce(&mut Bucket) -> S3Result<T>,
    ) -> S3Result<T> {
        match self.lock().get_mut(bucket) {
            Some(bucket) => work(bucket),
            None => Err(s3_error!(NoSuchBucket, "The specified bucket does not exist")),
        }
    }

    /// Runs `work` on a bucket, which is created if it does not exist.
    pub(super) fn within_new<T>(&self, bucket: &str, work: impl FnOnce(&mut Bucket) -> T) -> T {
        work(self.lock().entry(bucket.to_owned()).or_default())
    }

    /// Writes an object without a condition.
    pub(super) fn put(&self, bucket: &str, key: &str, bytes: Bytes) {
        let mut object = Object::new(bytes);
        self.within_new(bucket, |bucket| {
            object.version = bucket.versioned.then(|| self.name("v"));
            let _ = bucket.put(key, object, &Conditions::default());
        });
    }
}
