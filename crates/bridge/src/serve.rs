//! Entry point of a worker's own binary: command line, signals, logs and exit code.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nsbridge_base::chain;
use nsbridge_crypto::KeyProvider;
use nsbridge_handler::erased::Servable;
use nsbridge_handler::source::LoadProgress;
use nsbridge_handler::{AsyncHandler, Handler};
use nsbridge_queue::{AmqpBroker, Broker};
use nsbridge_store::Store;
use nsbridge_telemetry::{Spans, host_name, stderr_log};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::config::{Config, ConfigError, LogConfig, LogFormat};
use crate::confine;
use crate::drain::Drain;
use crate::error::Error;
use crate::keys;
use crate::loading;
use crate::observability::Observability;
use crate::observability::health::{Health, Pages};
use crate::observability::metrics::Metrics;
use crate::platform::{EcsAddresses, Platform};
use crate::service::Service;
use crate::service_manager::ServiceManager;
use crate::worker::{Worker, WorkerBuilder};

const USAGE: &str = "[--config worker.toml]

Takes requests from a model's queue and answers them. Each field of the configuration can be set
by NSBRIDGE_<SECTION>__<FIELD> in the environment too.
";

/// Time limit for the last log lines of a process to be written.
const LAST_WORDS_LIMIT: Duration = Duration::from_secs(1);

/// Runs a worker with a [`Handler`]; the whole of a worker binary's `main`.
///
/// The worker may call the handler more than once for a request (see the contract of [`Handler`]).
///
/// Reads `--config FILE` (`worker.toml` if absent). SIGTERM or Ctrl-C begins a drain: running jobs
/// get `grace_s` seconds, and the rest is requeued. The exit code is 0 after a drain, 1 after a
/// failure, 2 for a wrong command line.
pub fn serve<H: Handler>() -> ExitCode {
    serve_any::<H, _>()
}

/// Runs a worker with an [`AsyncHandler`], as [`serve`] does with a [`Handler`].
pub fn serve_async<H: AsyncHandler>() -> ExitCode {
    serve_any::<H, _>()
}

fn serve_any<H: Servable<K>, K>() -> ExitCode {
    let program = program_name();
    let path = match read_arguments(std::env::args().skip(1)) {
        Ok(CommandLine::Serve { config }) => config,
        Ok(CommandLine::Help) => {
            say(&format!("Usage: {program} {USAGE}"));
            return ExitCode::SUCCESS;
        }
        Ok(CommandLine::Version) => {
            say(&format!("{program}, a worker of nsbridge {}\n", env!("CARGO_PKG_VERSION")));
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            say(&format!("error: {wrong}\n\nUsage: {program} {USAGE}"));
            return ExitCode::from(2);
        }
    };
    let config = Config::read(&path, nsbridge_base::config::variables()).map_err(Error::from);
    match config.and_then(run_any::<H, K>) {
        Ok(()) => {
            flush_log();
            ExitCode::SUCCESS
        }
        Err(error) => {
            say(&format!("error: {}\n", chain(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Runs a worker with a [`Handler`] and this configuration until a signal ends it. It starts the
/// worker's own runtime, writes the log to stderr, and handles the signals of the process.
///
/// # Errors
///
/// Returns an error if the worker cannot start, or if its handler broke. The causes are its sources.
pub fn run<H: Handler>(config: Config) -> Result<(), Error> {
    run_any::<H, _>(config)
}

/// Runs a worker with an [`AsyncHandler`], as [`run`] does with a [`Handler`].
///
/// # Errors
///
/// Returns an error as [`run`] does.
pub fn run_async<H: AsyncHandler>(config: Config) -> Result<(), Error> {
    run_any::<H, _>(config)
}

fn run_any<H: Servable<K>, K>(config: Config) -> Result<(), Error> {
    config.validate()?;
    log_to_stderr(&config.log)?;
    confine::quiet_panics();
    // Before the first key is read.
    if !config.worker.allow_core_dumps {
        confine::close_memory()?;
    }
    if let Some(exposed) = &config.exposed {
        tracing::warn!("{exposed}");
    }
    if config.worker.show_errors {
        tracing::warn!("[worker] show_errors is set: the log may quote prompts");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("nsbridge")
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| Error::System { what: "start the bridge's threads", source })?;
    let manager = ServiceManager::new(std::env::vars_os());
    let ended = runtime.block_on(run_until_signal::<H, K>(config, &manager));
    // A handler that does not stop must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

async fn run_until_signal<H: Servable<K>, K>(
    config: Config,
    manager: &ServiceManager,
) -> Result<(), Error> {
    let drain = Drain::new(Duration::from_secs(config.worker.grace_s));
    let observability = observability(&config)?;
    watch_signals(drain.clone(), config.worker.grace_s, observability.metrics.load())?;
    let options = config.options::<H::Options>()?;
    // Before the load, so that a worker that loads for minutes is seen to be alive.
    if let Some(addr) = config.health.listen {
        let pages = Pages::bind(addr).await?;
        tokio::spawn(pages.serve(observability.health.clone(), observability.metrics.clone()));
    }
    let platform = Platform::new(&config.fleet, ecs_addresses())?;
    tokio::spawn(platform.run(drain.clone(), observability.metrics.clone()));
    let service = Service { drain, observability, progress: LoadProgress::default() };
    tokio::select! {
        // Before the work, whose end at a signal would leave no time for a notice.
        biased;
        never = manager.follow(|| service.state(), service.stopping()) => match never {},
        ended = load_and_work::<H, K>(config, options, &service) => ended,
    }
}

/// Loads the models and takes requests until the worker has drained.
async fn load_and_work<H: Servable<K>, K>(
    mut config: Config,
    options: H::Options,
    service: &Service,
) -> Result<(), Error> {
    let Service { drain, observability, progress } = service;
    let metrics = &observability.metrics;
    let (withdrawn, withdrawals) = watch::channel(());
    let keys = keys::open(&config.keys, metrics, withdrawn, &config.timing).await?;
    // Wiped here. The copy in the environment cannot be wiped.
    config.keys.keyring_json = None;
    let builder = builder(&config, keys, drain.clone(), observability.clone())?;
    let store = Store::open(&config.store)?;
    let loading = async {
        let found = loading::find(&store, &config.models, metrics, progress).await?;
        builder.revision(found.revision).start_any::<H, K>(options, found.models).await
    };
    let worker = tokio::select! {
        worker = loading => worker?,
        never = loading::tell(&store, metrics, progress) => match never {},
        _ = drain.begun() => return Ok(()),
    };
    metrics.store(store.counts());
    worker.forget_when(withdrawals);
    let ended = worker.run().await;
    observability.spans.close().await;
    ended
}

/// Creates the worker's metrics, health and spans as configured.
fn observability(config: &Config) -> Result<Observability, ConfigError> {
    let model = &config.worker.model;
    let spans = match &config.telemetry.otlp {
        Some(collector) => {
            let named = [
                ("service.name", "nsbridge-worker".to_owned()),
                ("service.instance.id", name(config)),
                ("nsbridge.model", model.to_string()),
            ];
            Spans::to(collector, named)
                .map_err(|error| ConfigError::new(format!("[telemetry] otlp {error}")))?
        }
        None => Spans::default(),
    };
    let health = Health::new(model.clone(), config.health.dead_after());
    Ok(Observability { metrics: Metrics::new(model), health, spans })
}

/// Returns the addresses that ECS puts into each container's environment.
#[expect(clippy::disallowed_methods, reason = "this is the edge that reads the environment")]
fn ecs_addresses() -> EcsAddresses {
    EcsAddresses {
        metadata: std::env::var("ECS_CONTAINER_METADATA_URI_V4").ok(),
        agent: std::env::var("ECS_AGENT_URI").ok(),
    }
}

fn name(config: &Config) -> String {
    config.worker.name.clone().unwrap_or_else(host_name)
}

fn builder(
    config: &Config,
    keys: Arc<dyn KeyProvider>,
    drain: Drain,
    observability: Observability,
) -> Result<WorkerBuilder, Error> {
    let broker: Arc<dyn Broker> = Arc::new(AmqpBroker::new(&config.broker.read_url()?)?);
    let builder = Worker::builder(config.worker.model.clone(), broker, keys);
    let builder = builder
        .name(name(config))
        .reply(config.reply.clone())
        .bulk(config.worker.bulk)
        .show_errors(config.worker.show_errors);
    let builder = builder.timing(config.timing.clone());
    Ok(builder.drain(drain).observability(observability))
}

/// Drains at the first SIGTERM or Ctrl-C, and ends the process at once at the second.
fn watch_signals(drain: Drain, grace_s: u64, running: watch::Receiver<usize>) -> Result<(), Error> {
    let listen =
        |kind| signal(kind).map_err(|source| Error::System { what: "listen for signals", source });
    let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    tokio::spawn(async move {
        // Counts signals, not drains: after a spot notice, the first signal must not end the
        // process at once.
        for signals in 0.. {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            if signals > 0 {
                leave_now();
            }
            drain.begin();
            tracing::info!(
                grace_s,
                requests = *running.borrow(),
                "draining after a signal: no new requests, running requests may finish within the \
                 grace period; a second signal ends the worker at once"
            );
        }
    });
    Ok(())
}

#[expect(clippy::exit, reason = "the second signal must end the process whatever it is doing")]
fn leave_now() -> ! {
    say("a second signal came: leaving at once\n");
    std::process::exit(1)
}

/// Sends logs to stderr as configured. Log lines never hold up the process: they are dropped if stderr
/// is read too slowly. [`flush_log`] waits for the last of them.
///
/// # Errors
///
/// Returns an error if the filter cannot be parsed.
pub fn log_to_stderr(config: &LogConfig) -> Result<(), ConfigError> {
    let filter = EnvFilter::try_new(&config.filter)
        .map_err(|error| ConfigError::new(format!("[log] filter `{}`: {error}", config.filter)))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr_log)
        // Otherwise a log line that cannot be written is reported on stderr, and the logging thread
        // panics if that fails as well.
        .log_internal_errors(false)
        .with_ansi(is_colored());
    // A second call in one process keeps the settings of the first.
    let _ = match config.format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().try_init(),
    };
    Ok(())
}

/// Returns true if stderr shows colors: on a terminal, unless `NO_COLOR` is set (see no-color.org).
fn is_colored() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !no_color && std::io::stderr().is_terminal()
}

/// Waits until the log lines so far are on stderr, for a second at most. The last step of a program that
/// called [`log_to_stderr`].
pub fn flush_log() {
    stderr_log().flush_within(LAST_WORDS_LIMIT);
}

/// Returns the name under which this process was started, without its folder.
fn program_name() -> String {
    let program = std::env::args().next().unwrap_or_default();
    let name = Path::new(&program).file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "worker".to_owned())
}

/// Request of a command line of a worker binary.
enum CommandLine {
    Serve { config: PathBuf },
    Help,
    Version,
}

fn read_arguments(mut args: impl Iterator<Item = String>) -> Result<CommandLine, String> {
    let mut path = PathBuf::from("worker.toml");
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--help" | "-h" => return Ok(CommandLine::Help),
            "--version" | "-V" => return Ok(CommandLine::Version),
            "--config" => path = args.next().ok_or("--config needs a file")?.into(),
            other => match other.strip_prefix("--config=") {
                Some(file) => path = file.into(),
                None => return Err(format!("`{other}` is not known here")),
            },
        }
    }
    Ok(CommandLine::Serve { config: path })
}

/// Writes the last words of the process to stderr, behind the log. Waits a second at most, because
/// stderr may be a pipe that is not read.
fn say(text: &str) {
    let mut log = stderr_log();
    let _ = log.write_all(text.as_bytes());
    log.flush_within(LAST_WORDS_LIMIT);
}

#[cfg(test)]
mod tests;
