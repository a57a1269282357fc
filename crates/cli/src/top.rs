//! `nsbridge top`: queues, workers and gateways on one screen, from their metrics and the broker.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::ArgGroup;
use hyper::Uri;
use nsbridge_protocol::ModelName;
use nsbridge_top::{Top, management_address, page_address};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::failure::INTERRUPTED;
use crate::place::{Broker, leave_now, signals, wait_for};
use crate::terminal::{is_interactive, print};

/// Time after a signal at which the process ends, whatever the terminal does.
const STUCK_LIMIT: Duration = Duration::from_secs(1);

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
    #[arg(long, value_name = "URL", value_parser = page_address, group = "sources")]
    metrics: Vec<Uri>,
    /// RabbitMQ's management API, which knows the queues of all models and their rates. It is asked
    /// as the user of --broker.
    #[arg(long, value_name = "URL", value_parser = management_address, group = "sources")]
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
    let Arguments { models, metrics, management, broker, interval, once, json } = arguments;
    ensure!(
        once || json || is_interactive(),
        "the screen needs a terminal: use --once for text, or --json"
    );
    let top = Top::new(&broker.url, models, management, metrics, interval)?;
    wait_for(async move {
        if once || json {
            let figures = top.read_twice(json).await?;
            print(&figures.text)?;
            return Ok(if figures.is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        // See no-color.org.
        let colored = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        top.watch(ended_by_a_signal()?, colored).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns a token that a signal cancels. The process ends after [`STUCK_LIMIT`], even if the terminal
/// takes no output.
fn ended_by_a_signal() -> Result<CancellationToken> {
    let mut signals = signals()?;
    let ended = CancellationToken::new();
    let signaled = ended.clone();
    tokio::spawn(async move {
        signals.next().await;
        signaled.cancel();
        sleep(STUCK_LIMIT).await;
        leave_now(INTERRUPTED);
    });
    Ok(ended)
}
