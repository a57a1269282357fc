//! Client process: submits the requests of its plan through the production client and records every
//! event.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nsbridge_client::{Client, Error, Event, Reply, Request};
use nsbridge_crypto::Keyring;
use nsbridge_protocol::{ModelName, TextPiece};
use nsbridge_queue::{AmqpBroker, Limits};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, sleep_until};

use crate::gate::Gate;
use crate::journal::{Journal, What};
use crate::order::Piece;
use crate::plan::{Ask, Reading};
use crate::process::wait_for_the_driver;
use crate::timing;
use crate::watched::{Trick, Watched};
use nsbridge_chaos::process::leave_with_the_starter;

/// Pause of a caller that insists, after a refusal.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Configuration file of a client process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    /// Folder of the journal.
    pub(crate) dir: PathBuf,
    /// Name of the client, from which its connections are named.
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) keyring: PathBuf,
    pub(crate) model: ModelName,
    pub(crate) asks: Vec<Ask>,
    pub(crate) trick: Trick,
    /// Reply-queue limit in bytes; `None` is the client's default.
    pub(crate) reply_queue_bytes: Option<u64>,
}

pub(crate) fn run(path: &Path) -> Result<()> {
    let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let config: Config = serde_json::from_slice(&text)?;
    tracing_subscriber::fmt()
        .with_env_filter("info,lapin=off")
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(submit_all(config))
}

async fn submit_all(config: Config) -> Result<()> {
    let Config { dir, name, url, keyring, model, asks, trick, reply_queue_bytes } = config;
    let journal = Arc::new(Journal::in_dir(&dir)?);
    let mut limits = Limits::default();
    limits.reply_queue_bytes = reply_queue_bytes.unwrap_or(limits.reply_queue_bytes);
    let inner = AmqpBroker::with_limits(&url, limits)?;
    let broker = Arc::new(Watched { inner, journal: journal.clone(), trick });
    let keys = Arc::new(Keyring::load(&keyring)?);
    let builder = Client::builder().broker(broker).keys(keys).name(&name);
    let client = builder.timing(timing::of_client()?).connect().await?;
    let reply_queue = client.reply_queue();
    journal.note(What::Client { pid: std::process::id(), name, reply_queue })?;
    // The wire tap must receive the first frame, so requests are submitted only after the driver has
    // started it.
    tokio::task::spawn_blocking(wait_for_the_driver).await??;
    leave_with_the_starter();
    let began = Instant::now();
    let tasks: Vec<_> = asks
        .into_iter()
        .map(|ask| {
            let (client, journal) = (client.clone(), journal.clone());
            let caller = Caller { client, journal, gate: Gate::in_dir(&dir), n: ask.order.n };
            tokio::spawn(caller.ask(model.clone(), ask, began))
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    // After the last event, the reply still has control messages to send to its worker.
    sleep(Duration::from_secs(2)).await;
    Ok(())
}

/// Caller of one request.
struct Caller {
    client: Client,
    journal: Arc<Journal>,
    gate: Gate,
    n: usize,
}

impl Caller {
    async fn ask(self, model: ModelName, ask: Ask, began: Instant) -> Result<()> {
        sleep_until(began + Duration::from_millis(ask.after_ms)).await;
        loop {
            let request = Request::new(model.clone(), "chaos".parse()?)
                .input(&ask.order)
                .seed(ask.seed)
                .priority(ask.priority)
                .timeout(Duration::from_millis(ask.timeout_ms));
            return match self.client.submit::<TextPiece>(request).await {
                Ok(reply) => self.read(reply, ask.reading).await,
                Err(Error::QueueFull { .. }) if ask.insists => {
                    sleep(REFUSED_PAUSE).await;
                    continue;
                }
                Err(error) => self.failed(String::new(), &error),
            };
        }
    }

    async fn read(&self, mut reply: Reply<TextPiece>, reading: Reading) -> Result<()> {
        let (n, request) = (self.n, reply.id().to_string());
        self.journal.note(What::Asked { n, request: request.clone() })?;
        if reading == Reading::AfterGate {
            self.gate.opened().await;
        }
        let mut pieces = 0;
        while let Some(event) = reply.next().await {
            let request = request.clone();
            self.journal.note(match event {
                Ok(Event::Piece(piece)) => {
                    pieces += 1;
                    let (index, Piece { text, choice, finish_reason }) = (pieces - 1, piece.into());
                    What::Piece { n, request, index, text, choice, finish_reason }
                }
                Ok(Event::Restarted { kept }) => {
                    pieces = kept;
                    What::Restarted { n, request, kept }
                }
                Ok(Event::Waiting) => What::Waiting { n, request },
                Ok(Event::Hint(code)) => What::Hint { n, request, code: code.to_string() },
                Ok(Event::Done(_)) => What::Done { n, request },
                Ok(other) => bail!("the journal has no word for {other:?}"),
                Err(error) => return self.failed(request, &error),
            })?;
            if reading == Reading::UntilPiece(pieces) {
                self.journal.note(What::Cancelled { n, request: reply.id().to_string() })?;
                reply.cancel();
            }
        }
        Ok(())
    }

    fn failed(&self, request: String, error: &Error) -> Result<()> {
        let (code, message) = (code(error), error.to_string());
        self.journal.note(What::Failed { n: self.n, request, code, message })?;
        Ok(())
    }
}

/// Returns a code for each kind of failure; a failure reported by a worker has its error code.
fn code(error: &Error) -> String {
    match error {
        Error::Failed { code, .. } => code.to_string(),
        Error::Deadline { .. } => "late".to_owned(),
        Error::Truncated { .. } => "truncated".to_owned(),
        Error::NoSuchModel { .. } => "no-such-model".to_owned(),
        Error::QueueFull { .. } => "queue-full".to_owned(),
        Error::Closed => "closed".to_owned(),
        _ => "other".to_owned(),
    }
}
