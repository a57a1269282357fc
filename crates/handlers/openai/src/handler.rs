//! The handler: passes each request to the server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nsbridge_handler::{
    AsyncHandler, AsyncJob, Error, Fingerprint, Finish, Health, Measure, Models, Result, TextInput,
    TextPiece,
};

use crate::background::{Background, Task as Running};
use crate::fields::check;
use crate::health::Watch;
use crate::load::{client, ready, started};
use crate::options::Options;
use crate::plan::{Plan, Task, plan};
use crate::probe::probe;
use crate::process::Process;
use crate::replies::Replies;
use crate::reply::{EndTokens, Rules};
use crate::server::Server;

/// Version of the mapping of requests and of the division of replies into pieces, for the fingerprint.
const MAPPING: &str = "1";

/// Time in which a server that ends is seen to end.
const EXIT_LIMIT: Duration = Duration::from_millis(500);

/// Handler in front of a server of OpenAI's API.
pub struct OpenAi {
    server: Arc<Server>,
    watch: Arc<Watch>,
    /// The watch's task.
    _watching: Running<()>,
    process: Option<Arc<Process>>,
    background: Background,
    end_tokens: EndTokens,
    slots: usize,
    fingerprint: Fingerprint,
}

impl AsyncHandler for OpenAi {
    type Options = Options;
    type Input = TextInput;
    type Output = TextPiece;

    async fn load(options: Options, _models: Models) -> Result<Self> {
        options.check()?;
        let background = Background::start()?;
        let http = client(&options)?;
        let slots = options.slots;
        let load = async move {
            let process = started(&http, &options).await?.map(Arc::new);
            ready(&http, process.as_deref(), &options).await?;
            let server = probe(http, &options).await?;
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
        let fingerprint = fingerprint(&server);
        let server = Arc::new(server);
        let watch = Arc::new(Watch::new(server.clone()));
        let watching = background.spawn(watch.clone().run());
        let end_tokens = EndTokens::default();
        Ok(Self {
            server,
            watch,
            _watching: watching,
            process,
            background,
            end_tokens,
            slots,
            fingerprint,
        })
    }

    async fn handle(&self, input: TextInput, job: &mut AsyncJob<TextPiece>) -> Result<Finish> {
        check(&input, self.server.flavor)?;
        let answered = match self.plan(input, job).await {
            Ok(plan) => Replies::new(plan, &self.server, &self.background, job).run(job).await,
            Err(error) => Err(error),
        };
        match answered {
            Err(error @ (Error::Retry(_) | Error::Failed(_))) => Err(self.cause(error).await),
            other => other,
        }
    }

    fn tasks(&self) -> usize {
        self.slots
    }

    fn health(&self) -> Health {
        match self.ended() {
            Some(why) => Health::failed(why),
            None => self.watch.health(),
        }
    }

    fn measures(&self) -> Vec<Measure> {
        self.watch.measures()
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(self.fingerprint)
    }
}

impl OpenAi {
    /// Makes the plan of a call, and accepts the pieces that the client has if the reply continues.
    async fn plan(&self, input: TextInput, job: &mut AsyncJob<TextPiece>) -> Result<Plan> {
        let offered = offered(job);
        let count = offered.len();
        let rules = Rules::new(&input, self.server.flavor, self.end_tokens.clone());
        // The server's logs need not name tenants.
        let scope = blake3::hash(job.info().scope.as_bytes()).to_hex().as_str().into();
        let task = Task { input, rules, seed: job.info().seed, scope, offered };
        let first = self.planned(task.clone(), job).await?;
        if !first.continues || job.accept_resume().len() == count {
            return Ok(first);
        }
        self.planned(Task { offered: Vec::new(), ..task }, job).await
    }

    async fn planned(&self, task: Task, job: &AsyncJob<TextPiece>) -> Result<Plan> {
        tokio::select! {
            biased;
            stop = job.stopped() => Err(stop.into()),
            plan = self.background.spawn(plan(self.server.clone(), task)).result() => plan,
        }
    }

    /// Returns the sentence for a server that the worker has started and that has ended.
    fn ended(&self) -> Option<String> {
        let exit = self.process.as_ref()?.exited()?;
        Some(format!("the server that the worker has started has ended: {exit}"))
    }

    /// Returns the error of a call. A server of the worker's own that has ended breaks the handler.
    async fn cause(&self, error: Error) -> Error {
        if let Some(process) = &self.process {
            // The connections of a process that ends are closed before it has ended.
            let _ = tokio::time::timeout(EXIT_LIMIT, process.exit()).await;
        }
        self.ended().map_or(error, Error::fatal)
    }
}

/// Returns the pieces that the client has, without the promise to continue after them.
fn offered(job: &AsyncJob<TextPiece>) -> Vec<TextPiece> {
    let Some(offered) = job.offered() else { return Vec::new() };
    let pieces = offered.pieces.iter().map(|piece| serde_json::from_slice(piece));
    pieces.collect::<Result<_, _>>().unwrap_or_default()
}

fn fingerprint(server: &Server) -> Fingerprint {
    let mut digest = blake3::Hasher::new();
    for part in server.facts.iter().map(String::as_str).chain([MAPPING]) {
        digest.update(&(part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    let mut id = [0; 16];
    digest.finalize_xof().fill(&mut id);
    Fingerprint(id)
}

impl fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAi").field("flavor", &self.server.flavor).finish_non_exhaustive()
    }
}
