//! Server in use: its load, the watch over it, and its process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nsbridge_handler::{AsyncJob, Error, Fingerprint, Health, Measure, Models, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::background::{Background, Task};
use crate::health::Watch;
use crate::load::{client, ready, started};
use crate::options::Options;
use crate::probe::probe;
use crate::process::Process;
use crate::server::{Purpose, Server};

/// Version of the mapping of requests and of the division of replies into pieces, for the fingerprint.
const MAPPING: &str = "1";

/// Time in which a server that ends is seen to end.
const EXIT_LIMIT: Duration = Duration::from_millis(500);

/// Server that a handler uses.
pub(crate) struct Upstream {
    pub(crate) server: Arc<Server>,
    pub(crate) background: Background,
    /// Maximum number of calls at a time.
    pub(crate) slots: usize,
    watch: Arc<Watch>,
    /// The watch's task.
    _watching: Task<()>,
    process: Option<Arc<Process>>,
}

impl Upstream {
    /// Starts the server if the worker owns it, waits until it is ready, and asks what it is.
    ///
    /// # Errors
    ///
    /// Returns an error if the options are wrong, or if the server cannot be used.
    pub(crate) async fn load(options: Options, models: &Models, purpose: Purpose) -> Result<Self> {
        options.check()?;
        let options = options.with_folder(models)?;
        let background = Background::start()?;
        let http = client(&options)?;
        let slots = options.slots;
        let load = async move {
            let process = started(&http, &options).await?.map(Arc::new);
            ready(&http, process.as_deref(), &options).await?;
            let server = probe(http, &options, purpose).await?;
            if let Some(process) = &process {
                process.output().set_ready();
            }
            Ok::<_, Error>((server, process))
        };
        let (server, process) = background.spawn(load).result().await?;
        tracing::info!(
            server = ?server.flavor,
            model = server.model,
            context = server.context,
            "the server is ready"
        );
        let server = Arc::new(server);
        let watch = Arc::new(Watch::new(server.clone()));
        let watching = background.spawn(watch.clone().run());
        Ok(Self { server, background, slots, watch, _watching: watching, process })
    }

    /// Waits for the result of work on the thread of the exchanges, or for the stop of the call.
    pub(crate) async fn unless_stopped<O, T>(
        &self,
        job: &AsyncJob<O>,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T>
    where
        O: Serialize + DeserializeOwned,
        T: Send + 'static,
    {
        tokio::select! {
            biased;
            stop = job.stopped() => Err(stop.into()),
            done = self.background.spawn(work).result() => done,
        }
    }

    pub(crate) fn health(&self) -> Health {
        self.ended().map_or_else(|| self.watch.health(), Health::failed)
    }

    pub(crate) fn measures(&self) -> Vec<Measure> {
        self.watch.measures()
    }

    /// Returns the id of everything besides the request that determines the pieces.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let mut digest = blake3::Hasher::new();
        for part in self.server.facts.iter().map(String::as_str).chain([MAPPING]) {
            digest.update(&(part.len() as u64).to_le_bytes());
            digest.update(part.as_bytes());
        }
        let mut id = [0; 16];
        digest.finalize_xof().fill(&mut id);
        Fingerprint(id)
    }

    /// Returns the result of a call. A server of the worker's own that has ended breaks the handler.
    pub(crate) async fn result<T>(&self, answered: Result<T>) -> Result<T> {
        let error = match answered {
            Err(error @ (Error::Retry(_) | Error::Failed(_))) => error,
            other => return other,
        };
        if let Some(process) = &self.process {
            // The connections of a process that ends are closed before it has ended.
            let _ = tokio::time::timeout(EXIT_LIMIT, process.exit()).await;
        }
        Err(self.ended().map_or(error, Error::fatal))
    }

    /// Returns the sentence for a server that the worker has started and that has ended.
    fn ended(&self) -> Option<String> {
        let exit = self.process.as_ref()?.exited()?;
        Some(format!("the server that the worker has started has ended: {exit}"))
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("flavor", &self.server.flavor).finish_non_exhaustive()
    }
}

/// Returns the scope of the server's caches for a call. The server's logs need not name tenants.
pub(crate) fn scope<O: Serialize + DeserializeOwned>(job: &AsyncJob<O>) -> Arc<str> {
    blake3::hash(job.info().scope.as_bytes()).to_hex().as_str().into()
}
