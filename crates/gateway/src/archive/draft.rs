//! File that is being written, chunk by chunk. It is removed if it is not completed.

use std::fmt;

use nsbridge_client::Tenant;
use nsbridge_gateway_replies::{CHUNK_BYTES, DiskStore, Kind, Unstored};
use nsbridge_protocol::Uuid;
use tokio::sync::OwnedSemaphorePermit;

use super::{Archive, File, MAX_FILES_PER_TENANT};
use crate::error::{ApiError, Result};

/// File that is being written.
pub(crate) struct Draft {
    pub(crate) id: Uuid,
    pub(crate) file: File,
    store: DiskStore,
    buffer: Vec<u8>,
    most: u64,
    done: bool,
    _permits: Vec<OwnedSemaphorePermit>,
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Draft {
    /// Begins a file. Blocks.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be stored.
    pub(crate) fn begin(store: &DiskStore, file: File, most: u64) -> Result<Self, Unstored> {
        let (id, store) = (Uuid::now_v7(), store.clone());
        store.edit(&[store.record(Kind::File, id, &file)?])?;
        let (buffer, done, _permits) = (Vec::new(), false, Vec::new());
        Ok(Self { id, file, store, buffer, most, done, _permits })
    }

    /// Writes bytes at the end of the file. Blocks.
    ///
    /// # Errors
    ///
    /// Returns an error if they cannot be stored.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Result<(), Unstored> {
        self.file.bytes = self.file.bytes.saturating_add(bytes.len() as u64);
        while !bytes.is_empty() {
            let room = CHUNK_BYTES.saturating_sub(self.buffer.len()).min(bytes.len());
            let (now, later) = bytes.split_at(room);
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() >= CHUNK_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Returns true if the file with these bytes more is larger than it may be.
    pub(crate) fn exceeds(&self, more: usize) -> bool {
        self.file.bytes.saturating_add(more as u64) > self.most
    }

    /// Writes the last chunk, and returns the record of the complete file, which the caller stores.
    /// Blocks.
    ///
    /// # Errors
    ///
    /// Returns an error if the chunk cannot be stored.
    pub(crate) fn finish(&mut self) -> Result<(Uuid, File), Unstored> {
        self.flush()?;
        self.file.whole = true;
        Ok((self.id, self.file.clone()))
    }

    /// Keeps the file, whose complete record is stored.
    pub(crate) fn keep(mut self) {
        self.done = true;
    }

    fn flush(&mut self) -> Result<(), Unstored> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let chunk = self.store.part(Kind::File, self.id, self.file.chunks, &self.buffer)?;
        self.store.edit(&[chunk])?;
        self.buffer.clear();
        self.file.chunks += 1;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let (store, id) = (self.store.clone(), self.id);
        let remove = move || {
            // What stays is removed at the next start.
            let _ = store.remove_object(Kind::File, id);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

impl Archive {
    /// Begins a file that a client uploads.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be stored, or if the tenant or all clients have reached a limit.
    pub(crate) async fn draft(&self, file: File) -> Result<Draft> {
        let after = std::time::Duration::from_secs(5);
        // One tenant's uploads are its own limit, and no fault of the service.
        let limited = |_| {
            ApiError::limited("this tenant uploads too many files now", after)
                .coded("too_many_uploads")
        };
        let busy = |_| {
            ApiError::unavailable("too many files are uploaded now", after)
                .coded("too_many_uploads")
        };
        let own = self.uploads_of.of(file.tenant.clone()).try_acquire_owned().map_err(limited)?;
        let all = self.uploads.clone().try_acquire_owned().map_err(busy)?;
        let left = self.room(&file.tenant)?;
        let most = left.min(self.limits.max_file);
        let mut draft = self.with_store(move |store| Draft::begin(store, file, most)).await?;
        draft._permits = vec![own, all];
        Ok(draft)
    }

    /// Stores a complete file.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be stored, or if the tenant has reached its limit meanwhile.
    pub(crate) async fn complete(&self, mut draft: Draft) -> Result<(Uuid, File)> {
        let left = self.room(&draft.file.tenant)?;
        if draft.file.bytes > left {
            return Err(self.full());
        }
        let stored = self.with_store(move |store| {
            let (id, file) = draft.finish()?;
            store.edit(&[store.record(Kind::File, id, &file)?])?;
            draft.keep();
            Ok((id, file))
        });
        let (id, file) = stored.await?;
        self.files.lock().insert(id, file.clone());
        Ok((id, file))
    }

    /// Returns the error of a tenant whose files take all the space that they may.
    pub(crate) fn full(&self) -> ApiError {
        let message = format!(
            "the files of this tenant may have {} bytes: delete some of them",
            self.limits.max_stored
        );
        ApiError::bad_request(message).coded("storage_full")
    }

    /// Returns the bytes that a tenant may still store.
    pub(crate) fn room(&self, tenant: &Tenant) -> Result<u64> {
        let files = self.files(tenant);
        if files.len() >= MAX_FILES_PER_TENANT {
            let message =
                format!("this tenant has {MAX_FILES_PER_TENANT} files, which are the most");
            return Err(ApiError::bad_request(message).coded("too_many_files"));
        }
        let used: u64 = files.iter().map(|(_, file)| file.bytes).sum();
        let left = self.limits.max_stored.saturating_sub(used);
        if left == 0 { Err(self.full()) } else { Ok(left) }
    }
}
