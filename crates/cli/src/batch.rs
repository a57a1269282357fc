//! `nsbridge batch`: files of requests, through the queues.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Subcommand;
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use nsbridge_client::Keyring;
use nsbridge_gateway::{BatchError, BatchProgress, BatchRun, Config, Model, StoreConfig, Task};
use nsbridge_protocol::{ModelName, Tenant};
use nsbridge_queue::AmqpBroker;
use serde::Deserialize;

use crate::failure::{INTERRUPTED, status};
use crate::place::{self, Broker, Keys, leave_now, model, signals};
use crate::progress::{BAR_AFTER, Display, LINE_INTERVAL};

/// Runs files of requests through the queues, as bulk work.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: nsbridge batch run requests.jsonl --out results.jsonl --model tale-7m"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Run),
}

/// Runs each line of a file as a request, and writes one line for each result.
///
/// The file has OpenAI's form of a batch: `custom_id`, `method`, `url` and `body` in each line. All
/// lines are checked before the first one is sent. Workers take the requests into slots that no
/// interactive request needs. After Ctrl-C or a crash the same command continues: no line is asked
/// twice, and none is lost.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: nsbridge batch run requests.jsonl --out results.jsonl --model tale-7m\n\n\
    Exit status: 0 if every request has a reply, 1 if some failed or the batch was stopped."
)]
struct Run {
    /// Requests, one JSON object a line.
    file: PathBuf,
    /// File of the replies, in the order of the requests. It must not exist. The state of a batch
    /// that is not complete is beside it, in a folder with `.state` at its end.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// File of the requests that failed [default: that of `--out` with `.errors` at its end].
    #[arg(long, value_name = "FILE")]
    errors: Option<PathBuf>,
    /// Model that requests may name, as NAME or NAME=QUEUE; repeatable [default: the model of the
    /// first line].
    #[arg(long = "model", value_name = "MODEL", value_parser = model)]
    models: Vec<(String, ModelName)>,
    /// Tenant of the requests.
    #[arg(long, default_value = "default")]
    tenant: Tenant,
    #[command(flatten)]
    broker: Broker,
    #[command(flatten)]
    keys: Keys,
    /// Maximum number of requests that workers have at the same time, for each model.
    #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    in_flight: u16,
    /// Time limit of each reply, in seconds from the submission of its request. A reply that a worker
    /// began and did not complete in this time fails.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let Command::Run(run) = arguments.command;
    place::block_on(whole(run))
}

async fn whole(run: Run) -> Result<ExitCode> {
    let added = |ending: &str| PathBuf::from(format!("{}{ending}", run.out.display()));
    let (state, errors) = (added(".state"), run.errors.clone().unwrap_or_else(|| added(".errors")));
    for path in [&run.out, &errors] {
        ensure!(!path.exists(), "{} exists: remove it, or name another file", path.display());
    }
    let config = config(&run, &state)?;
    let keys = Keyring::load(&run.keys.keyring);
    let keys = keys.with_context(|| format!("reading {}", run.keys.keyring.display()))?;
    let broker = Arc::new(AmqpBroker::new(&run.broker.url)?);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&state);
    made.with_context(|| format!("making {}", state.display()))?;
    let batch = BatchRun::open(&config, broker, Arc::new(keys), &run.file).await?;
    let drain = batch.drain();
    tokio::spawn(async move {
        if let Ok(mut signals) = signals() {
            signals.next().await;
            drain.cancel();
            signals.next().await;
            leave_now(INTERRUPTED);
        }
    });
    let shown = Shown::new();
    let ended = batch.run(|progress| shown.tell(progress)).await;
    shown.end();
    let ended = match ended {
        Ok(progress) => progress,
        Err(error) => {
            if matches!(error, BatchError::Refused(_)) {
                // Nothing was asked, so there is nothing to go on with.
                drop(batch);
                remove(&state)?;
            }
            return Err(error.into());
        }
    };
    batch.write(&run.out, &errors).await?;
    drop(batch);
    remove(&state)?;
    let BatchProgress { completed, failed, .. } = ended;
    status(&format!("{completed} replies are in {}", run.out.display()));
    if failed > 0 {
        status(&format!("{failed} requests failed: see {}", errors.display()));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn remove(state: &Path) -> Result<()> {
    fs::remove_dir_all(state).with_context(|| format!("removing {}", state.display()))
}

/// Model and endpoint of the first line.
#[derive(Debug, Deserialize)]
struct First {
    url: String,
    body: FirstBody,
}

#[derive(Debug, Deserialize)]
struct FirstBody {
    model: Option<String>,
}

fn config(run: &Run, state: &Path) -> Result<Config> {
    let first = first(&run.file)?;
    let mut models = run.models.clone();
    if models.is_empty() {
        let name = first
            .body
            .model
            .clone()
            .context("the first request names no model: name it with --model NAME")?;
        models.push(model(&name).map_err(anyhow::Error::msg)?);
    }
    let task = match first.url.as_str() {
        "/v1/embeddings" => Task::Embed,
        "/v1/moderations" => Task::Judge,
        _ => Task::Generate,
    };
    let default = models.first().map(|(name, _)| name.clone());
    let models: BTreeMap<_, _> = models
        .into_iter()
        .map(|(name, queue)| (name, Model { queue: Some(queue), task, ..Model::default() }))
        .collect();
    let mut config = Config::local(([127, 0, 0, 1], 0).into(), run.tenant.clone(), models);
    config.server.default_model = default;
    config.server.timeout_s = run.timeout;
    config.store = Some(StoreConfig::local(state));
    config.batches.lines = usize::from(run.in_flight);
    (config.batches.max_requests, config.batches.max_file) = (u64::MAX, u64::MAX);
    config.batches.max_stored = u64::MAX;
    Ok(config)
}

/// Reads the first line that is not empty.
fn first(path: &Path) -> Result<First> {
    use std::io::BufRead as _;
    let file = fs::File::open(path).with_context(|| format!("reading {}", path.display()))?;
    for line in std::io::BufReader::new(file).split(b'\n') {
        let line = line.with_context(|| format!("reading {}", path.display()))?;
        if !line.trim_ascii().is_empty() {
            return serde_json::from_slice(&line)
                .with_context(|| format!("line 1 of {} is no request of a batch", path.display()));
        }
    }
    anyhow::bail!("{} has no requests", path.display())
}

/// Progress on stderr: one line that is redrawn on a terminal, else a line every five seconds.
struct Shown {
    bar: Option<ProgressBar>,
    began: Instant,
    /// Progress at the beginning, and time of the last line.
    since: std::cell::Cell<(Option<BatchProgress>, Instant)>,
}

impl Shown {
    fn new() -> Self {
        let bar = (Display::of_stderr() == Display::Bar).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        let began = Instant::now();
        Self { bar, began, since: std::cell::Cell::new((None, began)) }
    }

    fn tell(&self, now: BatchProgress) {
        let (first, last) = self.since.get();
        let first = first.unwrap_or(now);
        let is_due = last.elapsed() >= LINE_INTERVAL;
        self.since.set((Some(first), if is_due { Instant::now() } else { last }));
        match &self.bar {
            Some(_) if self.began.elapsed() < BAR_AFTER => {}
            Some(bar) => bar.set_message(line(first, now, self.began.elapsed())),
            None if is_due => status(&line(first, now, self.began.elapsed())),
            None => {}
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Formats the progress since `first`.
fn line(first: BatchProgress, now: BatchProgress, took: Duration) -> String {
    if now.total == 0 {
        return "checking the requests".to_owned();
    }
    let ended = |progress: BatchProgress| progress.completed + progress.failed;
    let new = ended(now).saturating_sub(ended(first));
    let left = now.total.saturating_sub(ended(now));
    let rate = now.tokens as f64 / took.as_secs_f64().max(1e-3);
    let time = match new {
        0 => String::new(),
        new => {
            let seconds = took.as_secs_f64() / new as f64 * left as f64;
            format!(", {} left", HumanDuration(Duration::from_secs_f64(seconds.min(1e9))))
        }
    };
    format!(
        "{} of {} done, {} failed, {rate:.0} tokens/s{time}",
        HumanCount(ended(now)),
        HumanCount(now.total),
        HumanCount(now.failed),
    )
}
