//! `nsbridge scaler`: the number of workers that each model should have.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use nsbridge::worker::{LogConfig, LogFormat};
use nsbridge_scaler::{Config, Scaler, replay};
use tokio_util::sync::CancellationToken;

use crate::failure::status;
use crate::gateway::log_format;
use crate::place::{signals, wait_for};
use crate::terminal::{counted, json_lines, print_line};

/// Decides on the number of workers that each model should have, from its queue and its workers.
///
/// The numbers are on a page for KEDA, in Prometheus's metrics and in CloudWatch, and are set on services
/// of ECS that the configuration names. Each decision is a line of JSON on stdout, with its reason and
/// what it was made from. Of several scalers with the same models one decides; the others take over.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n\
    \x20 nsbridge scaler --config scaler.toml --dry-run\n\
    \x20 nsbridge scaler --config scaler.toml > decisions.jsonl\n\
    \x20 nsbridge scaler --config scaler.toml --replay decisions.jsonl\n\
    \x20 curl http://localhost:9465/v1/desired/tale-7m\n\n\
    deploy/scaler.example.toml documents every field.")]
pub(crate) struct Arguments {
    /// Configuration file of the scaler.
    #[arg(long, value_name = "FILE", default_value = "scaler.toml")]
    config: PathBuf,
    /// Decides and shows the numbers, and tells them neither to CloudWatch nor to ECS.
    #[arg(long, conflicts_with = "replay")]
    dry_run: bool,
    /// Makes the decisions of a log again, and exits with code 1 if they differ. With another
    /// configuration it shows what would have been decided.
    #[arg(long, value_name = "LOG")]
    replay: Option<PathBuf>,
    /// Format of the log on stderr: text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = log_format)]
    log: LogFormat,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { config, dry_run, replay, log } = arguments;
    nsbridge::log_to_stderr(&LogConfig::new("info,lapin=off,aws_config=error", log))?;
    let config = Config::read(&config, nsbridge_base::config::variables())?;
    match replay {
        Some(log) => again(&log, &config),
        None => wait_for(decide(config, dry_run)),
    }
}

async fn decide(config: Config, dry_run: bool) -> Result<ExitCode> {
    let scaler = Scaler::new(config, dry_run, json_lines()).await?;
    status(&format!("listening at {}", scaler.address()?));
    let mut signals = signals()?;
    let ended = CancellationToken::new();
    let signaled = ended.clone();
    tokio::spawn(async move {
        signals.next().await;
        signaled.cancel();
    });
    scaler.run(ended).await?;
    Ok(ExitCode::SUCCESS)
}

fn again(log: &Path, config: &Config) -> Result<ExitCode> {
    let shown = log.display();
    let file = File::open(log).with_context(|| format!("opening {shown}"))?;
    let replayed = replay(BufReader::new(file), config).with_context(|| shown.to_string())?;
    for difference in &replayed.differences {
        print_line(difference)?;
    }
    let differing = replayed.differences.len() as u64;
    print_line(&format!(
        "{}, {differing} of them different",
        counted(replayed.decisions, "decision", "decisions")
    ))?;
    Ok(if differing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
