//! The objects, in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use s3s::dto::{ETag, ETagCondition, Metadata};
use s3s::{S3Result, s3_error};

use super::checksum::{Algorithm, Sum, md5_hex};

/// All buckets, for all requests.
#[derive(Debug, Default)]
pub(super) struct Store {
    buckets: Mutex<BTreeMap<String, Bucket>>,
    /// Of what needs a name of its own: versions and uploads.
    named: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Bucket {
    pub(super) versioned: bool,
    /// Oldest version first, `None` where the key was deleted; without versioning there is only one.
    objects: BTreeMap<String, Vec<Option<Object>>>,
    pub(super) uploads: BTreeMap<String, Upload>,
}

/// An object as it was written; its bytes are shared, never copied.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) bytes: Bytes,
    pub(super) etag: String,
    pub(super) sum: Sum,
    pub(super) modified: SystemTime,
    /// Of the parts it came in; empty if it came at once.
    pub(super) parts: Vec<usize>,
    pub(super) content_type: Option<String>,
    pub(super) metadata: Option<Metadata>,
    /// Where the bucket keeps versions.
    pub(super) version: Option<String>,
}

/// An object that comes in parts.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) key: String,
    pub(super) algorithm: Option<Algorithm>,
    /// A checksum over all bytes at its end, rather than over the parts' checksums.
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

/// Under which conditions something is read or written.
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

    /// What was written before there were versions has the name `null`.
    fn is_version(&self, name: &str) -> bool {
        self.version.as_deref().unwrap_or("null") == name
    }
}

impl Conditions {
    /// # Errors
    ///
    /// 412 where the object must be another one, 304 where it must not be this one.
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

    /// # Errors
    ///
    /// 412 where one of them does not hold, 404 where there is nothing that could match.
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
    /// The newest version, or the one with this name.
    ///
    /// # Errors
    ///
    /// There is none.
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

    /// Every key that is there, in the order of its bytes.
    pub(super) fn objects(&self) -> impl Iterator<Item = (&str, &Object)> {
        let newest = self.objects.iter().map(|(key, versions)| (key, versions.last()));
        newest.filter_map(|(key, last)| Some((key.as_str(), last?.as_ref()?)))
    }

    /// Writes an object if its conditions hold.
    ///
    /// # Errors
    ///
    /// They do not.
    pub(super) fn put(&mut self, key: &str, object: Object, on: &Conditions) -> S3Result<()> {
        on.to_write(self.object(key, None).ok())?;
        let versions = self.objects.entry(key.to_owned()).or_default();
        if !self.versioned {
            versions.clear();
        }
        versions.push(Some(object));
        Ok(())
    }

    /// Deletes an object, or one version of it. There may be none.
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

    /// A name that nothing else has.
    pub(super) fn name(&self, kind: &str) -> String {
        format!("{kind}{:016x}", self.named.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// # Errors
    ///
    /// What `work` says, or that there is no such bucket.
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

    /// A bucket, made if it is not there.
    pub(super) fn within_new<T>(&self, bucket: &str, work: impl FnOnce(&mut Bucket) -> T) -> T {
        work(self.lock().entry(bucket.to_owned()).or_default())
    }

    /// Writes without a condition.
    pub(super) fn put(&self, bucket: &str, key: &str, bytes: Bytes) {
        let mut object = Object::new(bytes);
        self.within_new(bucket, |bucket| {
            object.version = bucket.versioned.then(|| self.name("v"));
            let _ = bucket.put(key, object, &Conditions::default());
        });
    }
}
