//! `nsbridge top`: queues, workers and gateways on one screen, from their metrics and the broker.

mod address;
mod exposition;
mod http;
mod management;
mod page;
mod problems;
mod queues;
mod rates;
mod screen;
mod snapshot;
mod source;
mod state;
mod view;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::ArgGroup;
use futures_util::future::join_all;
use hyper::Uri;
use nsbridge_protocol::ModelName;
use ratatui::text::Line;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::http::Http;
use self::management::Management;
use self::queues::Queues;
use self::snapshot::Snapshot;
use self::source::Source;
use self::state::{State, Watched};
use self::view::{Look, Sort, body, header};
use crate::place::{Broker, wait_for};
use crate::terminal::{is_interactive, print, print_line};

/// Minimum time over which rates are computed.
const WINDOW: Duration = Duration::from_secs(10);

/// Width of the text of `--once`, in columns. Lines are only as long as they need to be.
const WIDTH: usize = 200;

/// Shows queues, workers and gateways on one screen, from their metrics and the broker.
#[derive(Debug, clap::Args)]
#[command(
    group = ArgGroup::new("sources").required(true).multiple(true),
    after_help = "Examples:\n\
    \x20 nsbridge top --model tale-7m --metrics worker-1:9464 --metrics worker-2:9464\n\
    \x20 nsbridge top --management http://localhost:15672 --metrics gateway:9090\n\
    \x20 nsbridge top --model tale-7m --metrics worker-1:9464 --json"
)]
pub(crate) struct Arguments {
    /// Model whose queues the broker is asked for; repeatable.
    #[arg(long = "model", short, value_name = "MODEL", group = "sources")]
    models: Vec<ModelName>,
    /// Metrics page of a worker or of a gateway, as HOST:PORT or URL; repeatable.
    #[arg(long, value_name = "URL", value_parser = address::page, group = "sources")]
    metrics: Vec<Uri>,
    /// RabbitMQ's management API, which knows the queues of all models and their rates. It is asked
    /// as the user of --broker.
    #[arg(long, value_name = "URL", value_parser = address::management, group = "sources")]
    management: Option<Uri>,
    #[command(flatten)]
    broker: Broker,
    /// Seconds between two readings of a source.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = interval)]
    interval: Duration,
    /// Reads all sources twice, prints the figures as text and exits, with code 1 if a source cannot
    /// be read.
    #[arg(long)]
    once: bool,
    /// Does so with JSON instead of text.
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.5..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "use 0.5 to 3600 seconds".to_owned())
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let (prints, json) = (arguments.once || arguments.json, arguments.json);
    ensure!(
        prints || is_interactive(),
        "the screen needs a terminal: use --once for text, or --json"
    );
    let interval = arguments.interval;
    let (state, sources) = sources(arguments)?;
    wait_for(async move {
        if prints {
            let state = read_twice(state, sources, interval).await;
            print_figures(&state, json)?;
            let whole = !state.has_faults();
            return Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        let (sender, reports) = mpsc::channel(16);
        let mut tasks = JoinSet::new();
        for (number, source) in sources.into_iter().enumerate() {
            tasks.spawn(source.watch(number, interval, sender.clone()));
        }
        // See no-color.org.
        let colored = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        screen::run(state, reports, tasks, time, colored).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns the sources, and the state that takes their readings.
fn sources(arguments: Arguments) -> Result<(State, Vec<Source>)> {
    let Arguments { models, metrics, management, broker, interval, .. } = arguments;
    let window = WINDOW.max(interval);
    let (mut watched, mut sources) = (Vec::new(), Vec::new());
    let broker_shown = address::without_login(&broker.url);
    let uses_broker = !models.is_empty() || management.is_some();
    if !models.is_empty() {
        sources.push(Source::Queues(Queues::new(&broker.url, &models)?));
        watched.push(Watched::new(format!("the broker {broker_shown}"), models, window));
    }
    if let Some(uri) = management {
        let name = format!("the management API {uri}");
        sources.push(Source::Management(Management::new(uri, &broker.url)?));
        watched.push(Watched::new(name, Vec::new(), window));
    }
    for uri in metrics {
        watched.push(Watched::new(address::host(&uri), Vec::new(), window));
        sources.push(Source::Page(Http::new(&uri)?, uri));
    }
    Ok((State::new(uses_broker.then_some(broker_shown), watched), sources))
}

/// Reads all sources twice, so that there are rates.
async fn read_twice(mut state: State, mut sources: Vec<Source>, interval: Duration) -> State {
    for pause in [Duration::ZERO, interval] {
        tokio::time::sleep(pause).await;
        let reports = sources.iter_mut().enumerate();
        let reports = reports.map(|(number, source)| source.report(number, None));
        for report in join_all(reports).await {
            state.take(report);
        }
    }
    state
}

fn print_figures(state: &State, as_json: bool) -> Result<()> {
    let snapshot = state.snapshot(Instant::now(), time());
    if as_json {
        return Ok(print_line(&serde_json::to_string(&snapshot)?)?);
    }
    Ok(print(&text(&snapshot))?)
}

/// Returns the figures as the screen shows them, as text.
fn text(snapshot: &Snapshot) -> String {
    let look = Look { width: WIDTH, sort: Sort::default(), all_problems: true, colored: false };
    let mut lines = header(snapshot, look, "");
    lines.extend(body(snapshot, look));
    lines.iter().map(|line: &Line<'_>| format!("{line}\n")).collect()
}

/// Returns the time of now in RFC 3339, to the second.
fn time() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
