//! Files and batches: their records in memory, and all of them sealed in the store.
//!
//! A tenant sees its own only. Records of another key of the store are left out.

pub(crate) mod batch;
mod draft;
pub(crate) mod file;
mod lines;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use nsbridge_client::{ModelName, Tenant};
use nsbridge_gateway_access::{Semaphores, kib};
use nsbridge_gateway_replies::{DiskStore, Kind, Unstored};
use nsbridge_protocol::Uuid;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

pub(crate) use self::batch::{Batch, BatchRecord};
pub(crate) use self::draft::Draft;
pub(crate) use self::file::File;
pub(crate) use self::lines::{Line, Lines};
use crate::config::BatchConfig;
use crate::error::{ApiError, Result};
use crate::ids;

/// Maximum number of files of a tenant, and of its batches.
const MAX_FILES_PER_TENANT: usize = 10_000;

/// Maximum number of batches of a tenant that have not ended.
const UNFINISHED: usize = 64;

/// Maximum number of files that clients upload at the same time, and that those of a tenant do.
const UPLOADS: [usize; 2] = [32, 4];

/// Maximum size of the lines of a tenant's batches in memory, in KiB.
const LINES_KIB: usize = 64 << 10;

/// Time for which files and batches are kept, in seconds: 30 days, as in OpenAI's interface.
pub(crate) const KEPT_S: u64 = 30 * 24 * 3600;

/// Files and batches of all tenants.
pub(crate) struct Archive {
    store: DiskStore,
    pub(crate) limits: BatchConfig,
    files: Mutex<BTreeMap<Uuid, File>>,
    batches: Mutex<BTreeMap<Uuid, Arc<Batch>>>,
    /// Permits of the lines that run: of all tenants by model, and of each tenant by model.
    permits: Semaphores<(Option<Tenant>, ModelName)>,
    uploads: Arc<Semaphore>,
    uploads_of: Semaphores<Tenant>,
    /// KiB of each tenant's lines in memory.
    memory: Semaphores<Tenant>,
    /// Tasks of the batches.
    pub(crate) tasks: TaskTracker,
}

impl fmt::Debug for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, batches) = (self.files.lock().len(), self.batches.lock().len());
        f.debug_struct("Archive").field("files", &files).field("batches", &batches).finish()
    }
}

impl Archive {
    /// Reads the records, and removes files that were not complete when the last process ended.
    pub(crate) fn open(store: DiskStore, limits: BatchConfig) -> Result<Self, Unstored> {
        let (whole, cut): (Vec<_>, Vec<_>) =
            store.records::<File>(Kind::File)?.into_iter().partition(|(_, file)| file.whole);
        for (id, _) in cut {
            store.remove_object(Kind::File, id)?;
        }
        let batches = store.records::<BatchRecord>(Kind::Batch)?;
        let batches =
            batches.into_iter().map(|(id, record)| (id, Arc::new(Batch::new(id, record))));
        Ok(Self {
            store,
            limits,
            files: Mutex::new(whole.into_iter().collect()),
            batches: Mutex::new(batches.collect()),
            permits: Semaphores::new(limits.lines),
            uploads: Arc::new(Semaphore::new(UPLOADS[0])),
            uploads_of: Semaphores::new(UPLOADS[1]),
            memory: Semaphores::new(LINES_KIB),
            tasks: TaskTracker::new(),
        })
    }

    /// Runs a function that uses the store, off the threads of the runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be used.
    pub(crate) async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&DiskStore) -> Result<T, Unstored> + Send + 'static,
    ) -> Result<T, Unstored> {
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || work(&store)).await.map_err(|_| Unstored)?
    }

    /// Returns a file of a tenant.
    ///
    /// # Errors
    ///
    /// Returns an error if the tenant has no such file.
    pub(crate) fn file(&self, name: &str, tenant: &Tenant) -> Result<(Uuid, File)> {
        let file =
            ids::of_file(name).and_then(|id| Some((id, self.files.lock().get(&id)?.clone())));
        file.filter(|(_, file)| file.tenant == *tenant && file.whole)
            .ok_or_else(|| none("file", name))
    }

    /// Returns the files of a tenant, the oldest first.
    pub(crate) fn files(&self, tenant: &Tenant) -> Vec<(Uuid, File)> {
        let files = self.files.lock();
        let own = files.iter().filter(|(_, file)| file.tenant == *tenant && file.whole);
        own.map(|(id, file)| (*id, file.clone())).collect()
    }

    /// Returns a batch of a tenant.
    ///
    /// # Errors
    ///
    /// Returns an error if the tenant has no such batch.
    pub(crate) fn batch(&self, name: &str, tenant: &Tenant) -> Result<Arc<Batch>> {
        let batch = ids::of_batch(name).and_then(|id| self.batches.lock().get(&id).cloned());
        batch.filter(|batch| batch.record().tenant == *tenant).ok_or_else(|| none("batch", name))
    }

    /// Returns the batches of a tenant, the oldest first.
    pub(crate) fn batches(&self, tenant: &Tenant) -> Vec<Arc<Batch>> {
        let batches = self.batches.lock();
        batches.values().filter(|batch| batch.record().tenant == *tenant).cloned().collect()
    }

    /// Returns the batches without an end, of all tenants.
    pub(crate) fn unfinished(&self) -> Vec<Arc<Batch>> {
        let batches = self.batches.lock();
        batches.values().filter(|batch| !batch.record().status.is_end()).cloned().collect()
    }

    /// Stores a new batch.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be stored, or if the tenant has too many.
    pub(crate) async fn add(&self, record: BatchRecord) -> Result<Arc<Batch>> {
        let own = self.batches(&record.tenant);
        if own.len() >= MAX_FILES_PER_TENANT {
            let message =
                format!("this tenant has {MAX_FILES_PER_TENANT} batches, which are the most");
            return Err(ApiError::bad_request(message).coded("too_many_batches"));
        }
        if own.iter().filter(|batch| !batch.status().is_end()).count() >= UNFINISHED {
            let message = format!(
                "{UNFINISHED} batches of this tenant have not ended, which are the most: wait for \
                 one, or cancel one"
            );
            let error = ApiError::limited(message, std::time::Duration::from_secs(60));
            return Err(error.coded("too_many_batches"));
        }
        self.room(&record.tenant)?;
        let (id, kept) = (Uuid::now_v7(), record.clone());
        let stored = self.with_store(move |store| {
            let edit = store.record(Kind::Batch, id, &kept)?;
            store.edit(&[edit])
        });
        stored.await?;
        let batch = Arc::new(Batch::new(id, record));
        self.batches.lock().insert(id, batch.clone());
        Ok(batch)
    }

    /// Changes a batch, with further changes of the store in the same transaction. `change` returns
    /// false if the batch is to stay as it is.
    ///
    /// # Errors
    ///
    /// Returns an error if nothing was changed.
    pub(crate) async fn change(
        &self,
        batch: &Arc<Batch>,
        files: Vec<(Uuid, File)>,
        change: impl FnOnce(&mut BatchRecord) -> bool + Send,
    ) -> Result<bool, Unstored> {
        let _turn = batch.turn.lock().await;
        let mut record = batch.record();
        if !change(&mut record) {
            return Ok(false);
        }
        let (id, kept, added) = (batch.id, record.clone(), files.clone());
        let stored = self.with_store(move |store| {
            let mut edits = vec![store.record(Kind::Batch, id, &kept)?];
            for (id, file) in &added {
                edits.push(store.record(Kind::File, *id, file)?);
            }
            store.edit(&edits)?;
            if kept.status.is_end() {
                // What stays is removed with the batch.
                let _ = store.remove_parts(Kind::Batch, id);
            }
            Ok(())
        });
        stored.await?;
        self.files.lock().extend(files);
        batch.set(record);
        Ok(true)
    }

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// Returns an error if a batch in progress reads it, or if it cannot be removed.
    pub(crate) async fn delete(&self, id: Uuid) -> Result<()> {
        let unfinished = self.unfinished();
        if let Some(batch) = unfinished.iter().find(|batch| batch.record().input == id) {
            let message = format!("the file is the input of {}, which has not ended", batch.name());
            return Err(ApiError::bad_request(message).coded("file_in_use"));
        }
        self.with_store(move |store| store.remove_object(Kind::File, id)).await?;
        self.files.lock().remove(&id);
        Ok(())
    }

    /// Removes what has expired, except the inputs of batches without an end.
    pub(crate) async fn sweep(&self) {
        let now = ids::seconds(SystemTime::now());
        let files: Vec<Uuid> = {
            let files = self.files.lock();
            let old = files.iter().filter(|(_, file)| file.whole && file.has_expired(now));
            old.map(|(id, _)| *id).collect()
        };
        for id in files {
            // An input of a batch goes later.
            let _ = self.delete(id).await;
        }
        let batches: Vec<Uuid> = {
            let batches = self.batches.lock();
            let old = |record: &BatchRecord| {
                record.status.is_end() && record.created_at.saturating_add(KEPT_S) <= now
            };
            batches.values().filter(|batch| old(&batch.record())).map(|batch| batch.id).collect()
        };
        for id in batches {
            if self.with_store(move |store| store.remove_object(Kind::Batch, id)).await.is_ok() {
                self.batches.lock().remove(&id);
            }
        }
    }

    /// Waits for the turn of a line: first among those of its tenant, then among those of all
    /// tenants. So the lines of a tenant wait for at most a few lines of each other tenant.
    ///
    /// # Errors
    ///
    /// Returns an error if the gateway ends.
    pub(crate) async fn turn(&self, tenant: &Tenant, model: &ModelName) -> Result<Turn> {
        let closed = |_| ApiError::internal("the gateway ends");
        let permits = |tenant| self.permits.of((tenant, model.clone())).acquire_owned();
        let own = permits(Some(tenant.clone())).await.map_err(closed)?;
        let all = permits(None).await.map_err(closed)?;
        Ok(Turn { _own: own, _all: all })
    }

    /// Waits for the memory of the next line of a file. [`Room::fit`] gives back what the line does
    /// not need.
    ///
    /// # Errors
    ///
    /// Returns an error if the gateway ends.
    pub(crate) async fn room_for_line(
        &self,
        tenant: &Tenant,
        file: Uuid,
        longest: usize,
    ) -> Result<Room, Unstored> {
        let bytes = self.files.lock().get(&file).map_or(0, |file| file.bytes);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(longest);
        let memory = self.memory.of(tenant.clone());
        let room = memory.acquire_many_owned(kib(bytes, LINES_KIB)).await;
        room.map(Room).map_err(|_| Unstored)
    }

    /// Returns a reader of the lines of a file. A file that was deleted has none.
    pub(crate) fn lines(&self, id: Uuid, longest: usize) -> Lines {
        Lines::new(self.store.clone(), id, self.chunks(id), longest)
    }

    /// Returns the number of chunks of a file.
    pub(crate) fn chunks(&self, id: Uuid) -> u64 {
        self.files.lock().get(&id).map_or(0, |file| file.chunks)
    }

    /// Reads a chunk of a file.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such chunk.
    pub(crate) async fn chunk(&self, id: Uuid, at: u64) -> Result<Vec<u8>, Unstored> {
        self.with_store(move |store| store.chunk(id, at)).await
    }
}

/// Turn of a line, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// Memory of a line, which is free when this is dropped.
#[derive(Debug)]
pub(crate) struct Room(OwnedSemaphorePermit);

impl Room {
    /// Gives back what a line of this size does not need.
    pub(crate) fn fit(&mut self, bytes: usize) {
        let held = self.0.num_permits();
        drop(self.0.split(held - kib(bytes, held) as usize));
    }
}

impl From<Unstored> for ApiError {
    fn from(_: Unstored) -> Self {
        Self::unavailable("files and batches cannot be stored", std::time::Duration::from_secs(5))
            .coded("store_unavailable")
    }
}

fn none(what: &str, name: &str) -> ApiError {
    let name: String = name.chars().take(100).collect();
    ApiError::not_found(format!("there is no {what} `{name}`"))
}
