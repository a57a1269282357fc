//! Batch of a file on this machine, without a listener.

use std::fs;
use std::io::{self, BufRead, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use nsbridge_base::private_file::open_own;
use nsbridge_client::KeyProvider;
use nsbridge_protocol::Uuid;
use nsbridge_queue::Broker;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::interval;
use tokio_util::sync::CancellationToken;

use crate::api::batches;
use crate::callers::access::Caller;
use crate::config::{Config, ConfigError};
use crate::gateway::{Error, assemble, upkeep};
use crate::ids;
use crate::metrics::RefusedFiles;
use crate::replies::archive::batch::{Endpoint, Status};
use crate::replies::archive::file::{File, Purpose};
use crate::replies::archive::{Archive, Batch, BatchRecord, Draft};
use crate::replies::store::{Store, Unstored};
use crate::state::App;

/// Interval at which the progress is told.
const TELL: Duration = Duration::from_millis(250);

/// Time for the replies of a batch. A batch of a file has no window.
const WINDOW_S: u64 = 365 * 24 * 3600;

/// Name of the metadata that has the digest of the input.
const DIGEST: &str = "input_blake3";

/// Size of a part of a file in memory, in bytes.
const PART: usize = 1 << 20;

/// Batch of a file, in OpenAI's form of a batch.
///
/// All that is needed to go on is in the store of the configuration, so a process that was killed is
/// continued by the next one: no line is asked twice, and each has one result.
#[derive(Debug)]
pub struct BatchRun {
    app: Arc<App>,
    archive: Arc<Archive>,
    batch: Arc<Batch>,
    drain: CancellationToken,
}

/// Progress of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchProgress {
    /// Number of requests; zero while they are checked.
    pub total: u64,
    /// Number of requests with a reply.
    pub completed: u64,
    /// Number of requests with an error.
    pub failed: u64,
    /// Number of tokens that replies of this process have.
    pub tokens: u64,
}

/// Error of a batch of a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Broker, keys or store cannot be used.
    #[error(transparent)]
    Gateway(#[from] Error),
    /// A file cannot be read or written.
    #[error("cannot use {path}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        cause: io::Error,
    },
    /// The state is that of a batch of another input.
    #[error(
        "the input has changed since the batch began: restore it, or remove the state and begin \
         again"
    )]
    OtherInput,
    /// The first line names no endpoint of batches.
    #[error(
        "line 1 must have a `url` that is /v1/chat/completions, /v1/completions, /v1/responses, \
         /v1/embeddings or /v1/moderations"
    )]
    Endpoint,
    /// The store cannot be read or written.
    #[error("the state of the batch cannot be stored: is the disk full?")]
    Store,
    /// Lines of the input are no requests. No line was asked.
    #[error("{}", .0.join("\n"))]
    Refused(Vec<String>),
    /// The process was told to stop. The next one continues.
    #[error("stopped before the end: the same command continues")]
    Stopped,
}

impl From<Unstored> for BatchError {
    fn from(_: Unstored) -> Self {
        Self::Store
    }
}

impl BatchRun {
    /// Begins the batch of a file, or continues the one that the store has. The configuration needs a
    /// store, and access that is open to a tenant; its listener is not used.
    ///
    /// # Errors
    ///
    /// Returns an error if a file, the broker or the store cannot be used, or if the store has the
    /// batch of another file.
    pub async fn open(
        config: &Config,
        broker: Arc<dyn Broker>,
        keys: Arc<dyn KeyProvider>,
        input: &Path,
    ) -> Result<Self, BatchError> {
        let digest = digest(input).map_err(of_file(input))?;
        let drain = CancellationToken::new();
        let app = assemble(
            config,
            [broker.clone(), broker],
            keys,
            drain.clone(),
            RefusedFiles::default(),
        )
        .await?;
        let invalid = |what: &str| Error::from(ConfigError::Invalid(what.to_owned()));
        let caller = app.access.holder("").map_err(|_| invalid("[access] open_to is missing"))?;
        let archive = app.archive.clone().ok_or_else(|| invalid("[store] path is missing"))?;
        let batch = match archive.batches(&caller.tenant).pop() {
            Some(batch) => {
                let begun = batch.record().metadata.and_then(|all| all.get(DIGEST).cloned());
                if begun != Some(Value::from(digest)) {
                    return Err(BatchError::OtherInput);
                }
                batch
            }
            None => begin(&archive, &caller, input, digest).await?,
        };
        Ok(Self { app, archive, batch, drain })
    }

    /// Returns the signal that stops the batch when it is canceled.
    pub fn drain(&self) -> CancellationToken {
        self.drain.clone()
    }

    /// Returns the progress.
    pub fn progress(&self) -> BatchProgress {
        let record = self.batch.record();
        let [completed, failed] = if record.status.is_end() {
            [record.completed, record.failed]
        } else {
            [&self.batch.completed, &self.batch.failed].map(|count| count.load(Ordering::Relaxed))
        };
        let tokens = self.batch.tokens.load(Ordering::Relaxed);
        BatchProgress { total: record.total, completed, failed, tokens }
    }

    /// Runs the batch to its end, and calls `told` with its progress a few times a second.
    ///
    /// # Errors
    ///
    /// Returns an error if lines of the input are no requests, or if the drain begins.
    pub async fn run(
        &self,
        mut told: impl FnMut(BatchProgress),
    ) -> Result<BatchProgress, BatchError> {
        self.app.replies.recover().await;
        let upkeep = tokio::spawn(upkeep(self.app.clone(), None, None));
        batches::resume(&self.app);
        let mut tick = interval(TELL);
        while !self.batch.status().is_end() && !self.drain.is_cancelled() {
            tokio::select! {
                () = self.drain.cancelled() => {}
                _ = tick.tick() => told(self.progress()),
            }
        }
        self.app.replies.release().await;
        self.archive.tasks.close();
        self.archive.tasks.wait().await;
        upkeep.abort();
        if !self.batch.status().is_end() {
            return Err(BatchError::Stopped);
        }
        told(self.progress());
        let record = self.batch.record();
        if record.status == Status::Failed {
            let line = |line: &u64| format!("line {line}: ");
            let errors = record.errors.iter().map(|error| {
                format!("{}{}", error.line.as_ref().map(line).unwrap_or_default(), error.message)
            });
            return Err(BatchError::Refused(errors.collect()));
        }
        Ok(self.progress())
    }

    /// Writes the results of a batch that has ended: replies to `output`, and errors to `errors`,
    /// which is not created if there are none.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be written.
    pub async fn write(&self, output: &Path, errors: &Path) -> Result<(), BatchError> {
        let record = self.batch.record();
        if let Some(file) = record.error {
            self.copy(Some(file), errors).await?;
        }
        self.copy(record.output, output).await
    }

    /// Copies a file of the store. The file at `path` is whole, or as it was.
    async fn copy(&self, file: Option<Uuid>, path: &Path) -> Result<(), BatchError> {
        let (path, chunks) = (path.to_owned(), file.map_or(0, |file| self.archive.chunks(file)));
        let copy = move |store: &Store| -> Result<(), BatchError> {
            let part = PathBuf::from(format!("{}.part", path.display()));
            let mut written = open_own(&part).map_err(of_file(&part))?;
            written.set_len(0).map_err(of_file(&part))?;
            if let Some(file) = file {
                for at in 0..chunks {
                    written.write_all(&store.chunk(file, at)?).map_err(of_file(&part))?;
                }
            }
            written.sync_all().map_err(of_file(&part))?;
            fs::rename(&part, &path).map_err(of_file(&path))
        };
        self.archive.with_store(move |store| Ok(copy(store))).await?
    }
}

fn of_file(path: &Path) -> impl FnOnce(io::Error) -> BatchError {
    let path = path.to_owned();
    move |cause| BatchError::File { path, cause }
}

/// Returns the digest of a file in hexadecimal digits.
fn digest(path: &Path) -> io::Result<String> {
    let mut hash = blake3::Hasher::new();
    hash.update_reader(fs::File::open(path)?)?;
    Ok(hash.finalize().to_hex().to_string())
}

/// Stores the input and the record of its batch.
async fn begin(
    archive: &Arc<Archive>,
    caller: &Caller,
    input: &Path,
    digest: String,
) -> Result<Arc<Batch>, BatchError> {
    let endpoint = endpoint(input).map_err(of_file(input))?.ok_or(BatchError::Endpoint)?;
    // The last process may have ended before its batch was stored.
    for (id, _) in archive.files(&caller.tenant) {
        archive.delete(id).await.map_err(|_| BatchError::Store)?;
    }
    let created_at = ids::seconds(SystemTime::now());
    let file = File {
        tenant: caller.tenant.clone(),
        name: "input.jsonl".to_owned(),
        purpose: Purpose::Batch,
        bytes: 0,
        chunks: 0,
        created_at,
        expires_at: None,
        whole: false,
    };
    let mut draft = archive.draft(file).await.map_err(|_| BatchError::Store)?;
    let read = fs::File::open(input).map_err(of_file(input))?;
    loop {
        let mut part = Vec::with_capacity(PART);
        let next = (&read).take(PART as u64).read_to_end(&mut part);
        next.map_err(of_file(input))?;
        if part.is_empty() {
            break;
        }
        let pushed = move |_: &_| -> Result<Draft, Unstored> {
            draft.push(&part)?;
            Ok(draft)
        };
        draft = archive.with_store(pushed).await?;
    }
    let (id, _) = archive.complete(draft).await.map_err(|_| BatchError::Store)?;
    let mut record = BatchRecord::new(caller.tenant.clone(), caller.id, endpoint, id);
    record.window = "none".to_owned();
    record.expires_at = created_at.saturating_add(WINDOW_S);
    record.metadata = Some(Map::from_iter([(DIGEST.to_owned(), Value::from(digest))]));
    archive.add(record).await.map_err(|_| BatchError::Store)
}

/// Returns the endpoint of the first line that is not empty.
fn endpoint(path: &Path) -> io::Result<Option<Endpoint>> {
    #[derive(Deserialize)]
    struct Line {
        url: String,
    }
    for line in io::BufReader::new(fs::File::open(path)?).split(b'\n') {
        let line = line?;
        if !line.trim_ascii().is_empty() {
            let line = serde_json::from_slice::<Line>(&line).ok();
            return Ok(line.and_then(|line| Endpoint::of(&line.url)));
        }
    }
    Ok(None)
}
