//! Worker process: the production worker with a handler that records its calls in the journal.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use nsbridge::worker::Config;
use nsbridge_handler::{Fingerprint, Finish, Handler, Job, Models, Result};
use nsbridge_llama::Llama;
use serde::Deserialize;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use crate::calls::Runs;
use crate::engine::Recorded;
use crate::journal::{Journal, What};
use crate::order::{Does, Order, of_attempt, piece};
use crate::python_model::PythonModel;
use crate::timing;
use crate::told::Told;
use nsbridge_chaos::process::leave_with_the_starter;

/// Log message of a worker that has subscribed to its queue.
const TAKING: &str = "taking requests";

/// Log message of a worker that has lost the connection of its subscription.
const NOT_TAKING: &str = "the consuming connection is gone";

/// Log message of a worker about a request that waits to run alone.
const ALONE: &str = "to run alone";

pub(crate) fn run(path: &Path) -> ExitCode {
    leave_with_the_starter();
    match work(path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn work(path: &Path) -> anyhow::Result<()> {
    let config = Config::read(path, [])?.with_timing(timing::of_worker()?);
    if let Some(dir) = config.handler.get("dir").and_then(|dir| dir.as_str())
        && let Ok(journal) = Journal::in_dir(Path::new(dir))
    {
        log_and_watch(&config.log.filter, journal);
    }
    let has = |key| config.handler.contains_key(key);
    let engine = config.handler.get("engine");
    // The options of an engine in Python name it.
    if engine.is_some_and(|options| options.get("engine").is_some()) {
        nsbridge::run_async::<Recorded<nsbridge_python::Engine>>(config)?;
    } else if engine.is_some() {
        nsbridge::run_async::<Recorded<Llama>>(config)?;
    } else if has("python") {
        nsbridge::run_async::<PythonModel>(config)?;
    } else if has("told") {
        nsbridge::run::<Told>(config)?;
    } else {
        nsbridge::run::<Scripted>(config)?;
    }
    Ok(())
}

/// Installs the log and the journal layer. The bridge keeps a subscriber that is already installed.
fn log_and_watch(filter: &str, journal: Journal) {
    let filter = EnvFilter::try_new(filter).unwrap_or_default();
    let lines = fmt::layer().with_writer(nsbridge::stderr_log).with_ansi(false).with_filter(filter);
    let watch = Watch(journal).with_filter(LevelFilter::INFO);
    let _ = tracing_subscriber::registry().with(lines).with(watch).try_init();
}

/// Log layer that records subscriptions and requests that wait to run alone. The checker measures a
/// worker's adoption window from its subscription.
struct Watch(Journal);

impl<S: Subscriber> Layer<S> for Watch {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut said = Said::default();
        event.record(&mut said);
        let (pid, Said { message, request }) = (std::process::id(), said);
        let what = match &*message {
            TAKING => What::Taking { pid },
            NOT_TAKING => What::NotTaking { pid },
            ALONE => What::Alone { pid, request },
            _ => return,
        };
        let _ = self.0.note(what);
    }
}

/// Message and request id of a log event.
#[derive(Default)]
struct Said {
    message: String,
    request: String,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "request" => self.request = format!("{value:?}"),
            _ => {}
        }
    }
}

/// `[handler]` table of the configuration.
#[derive(Clone, Debug, Deserialize)]
struct Options {
    /// Folder of the journal.
    dir: PathBuf,
    worker: String,
    slots: usize,
}

/// Scripted handler: follows the order in its input.
#[derive(Debug)]
struct Scripted {
    runs: Runs,
    slots: usize,
}

impl Handler for Scripted {
    type Options = Options;
    type Input = Order;
    type Output = String;

    fn load(options: Options, _models: Models) -> Result<Self> {
        let Options { dir, worker, slots } = options;
        Ok(Self { runs: Runs::in_dir(&dir, worker)?, slots })
    }

    fn handle(&self, order: Order, job: &mut Job<String>) -> Result<Finish> {
        let differs = order.does == Does::Differ;
        let from = if order.deaf || differs { 0 } else { job.accept_resume().len() };
        let mut call = self.runs.begin(order.n, job.info(), from);
        let attempt = job.info().attempt;
        let seed = job.info().seed;
        let seed = if differs { of_attempt(seed, attempt.0) } else { seed };
        for index in from..order.pieces {
            sleep(Duration::from_millis(order.every_ms));
            misbehave(order.does, index, attempt.is_retry());
            if let Err(stop) = job.emit(piece(seed, index)) {
                call.how = stop.to_string();
                return Err(stop.into());
            }
            call.pieces = index + 1;
        }
        call.how = "ok".to_owned();
        Ok(Finish::STOP)
    }

    fn threads(&self) -> usize {
        self.slots
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(Fingerprint(*b"chaos' handler 1"))
    }
}

#[expect(clippy::panic, reason = "the order says so")]
fn misbehave(does: Does, index: usize, is_retry: bool) {
    match does {
        Does::AbortAt(at) if at == index => std::process::abort(),
        Does::PanicAt(at) if at == index && !is_retry => panic!("as the order says"),
        Does::BlockAt(at, ms) if at == index && !is_retry => sleep(Duration::from_millis(ms)),
        _ => {}
    }
}
