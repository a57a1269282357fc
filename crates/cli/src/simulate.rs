//! `nsbridge simulate`: waiting times and cost of policies that scale workers, on a trace.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use nsbridge_scaling::policy::Options;
use nsbridge_scaling::report::{Run, frontier, series, table};
use nsbridge_scaling::simulate::{Cluster, Outcome, simulate};
use nsbridge_scaling::trace::{Day, Trace};
use serde::Deserialize;
use serde_json::json;

use crate::terminal::{print, print_line};

/// Configuration that is used without `--config`.
const DEFAULT_CONFIG: &str = include_str!("simulate.toml");

/// Replays a trace of requests through policies that scale workers, and compares their waiting times and
/// cost.
///
/// The waits are those until the first token. No policy can start a worker faster than it boots: a load
/// that rises faster waits for the boot, or for the workers that exist.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n\
    \x20 nsbridge simulate --plots plots\n\
    \x20 nsbridge simulate trace.csv --boot-s 420\n\
    \x20 nsbridge simulate --print-config > policies.toml\n\n\
    A trace is CSV with the header at_s,input_tokens,output_tokens, or with that of the Azure LLM traces\n\
    (TIMESTAMP,ContextTokens,GeneratedTokens), or JSON lines with at_s, input_tokens and output_tokens, or with\n\
    those names of the Mooncake traces (timestamp, input_length, output_length).")]
pub(crate) struct Arguments {
    /// File with the trace [default: a day that is generated, as `day` of the configuration]
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,
    /// File with cluster and policies [default: that of --print-config]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Time from the request for a worker until it takes requests, in seconds, in place of the
    /// configuration's.
    #[arg(long, value_name = "SECONDS")]
    boot_s: Option<f64>,
    /// Folder for plots: waits beside cost, and each policy over time, as SVG.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Prints one JSON object to stdout instead of a table.
    #[arg(long)]
    json: bool,
    /// Prints the default configuration.
    #[arg(long, exclusive = true)]
    print_config: bool,
}

/// Cluster and policies of a comparison.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Currency of the prices.
    #[serde(default = "usd")]
    currency: String,
    cluster: Cluster,
    /// Load from which a trace is generated.
    #[serde(default)]
    day: Day,
    policies: Vec<Candidate>,
}

fn usd() -> String {
    "USD".to_owned()
}

/// Policy of a comparison.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Candidate {
    name: String,
    /// True if all workers are on demand.
    #[serde(default)]
    on_demand: bool,
    options: Options,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { trace, config, boot_s, plots, json, print_config } = arguments;
    if print_config {
        print(DEFAULT_CONFIG)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut config = read_config(config.as_deref())?;
    config.cluster.boot_s = boot_s.unwrap_or(config.cluster.boot_s);
    let title = trace
        .as_deref()
        .and_then(Path::file_stem)
        .map_or("a generated day".into(), |name| name.to_string_lossy());
    let title = format!("{title}, boot {} s", config.cluster.boot_s);
    let trace = match &trace {
        Some(path) => read_trace(path)?,
        None => config.day.trace()?,
    };
    let outcomes = outcomes(&trace, &config)?;
    let runs: Vec<Run<'_>> = outcomes.iter().map(|(name, outcome)| Run { name, outcome }).collect();
    if let Some(folder) = &plots {
        plot(folder, &title, &config.currency, &runs)
            .with_context(|| format!("writing plots into {}", folder.display()))?;
    }
    let (input, output) = trace.mean_tokens();
    let (count, hours) = (trace.requests().len(), trace.duration_s() / 3600.0);
    if json {
        let policies: Vec<_> = runs.iter().map(|run| as_json(run)).collect();
        let of_trace = json!({
            "requests": count, "duration_s": trace.duration_s(), "mean_input_tokens": input,
            "mean_output_tokens": output,
        });
        let currency = &config.currency;
        let all = json!({ "trace": of_trace, "currency": currency, "policies": policies });
        print_line(&all.to_string())?;
    } else {
        print_line(&format!(
            "{title}: {count} requests in {hours:.2} h, {input:.0} tokens of prompts and {output:.0} of \
             replies on average; cost in {}\n",
            config.currency
        ))?;
        print(&table(&runs))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read_config(path: Option<&Path>) -> Result<Config> {
    let Some(path) = path else { return Ok(toml::from_str(DEFAULT_CONFIG)?) };
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("reading {shown}"))?;
    let config: Config = toml::from_str(&text).with_context(|| shown.to_string())?;
    ensure!(!config.policies.is_empty(), "{shown}: `policies` is empty: add a [[policies]]");
    Ok(config)
}

fn read_trace(path: &Path) -> Result<Trace> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    Trace::read(BufReader::new(file)).with_context(|| path.display().to_string())
}

/// Returns the result of each policy with its name.
fn outcomes(trace: &Trace, config: &Config) -> Result<Vec<(String, Outcome)>> {
    let of_one = |Candidate { name, on_demand, options }: &Candidate| {
        let spot = config.cluster.spot.clone().filter(|_| !on_demand);
        let cluster = Cluster { spot, ..config.cluster.clone() };
        let outcome = simulate(trace, &cluster, options.clone());
        Ok((name.clone(), outcome.with_context(|| format!("policy {name:?}"))?))
    };
    config.policies.iter().map(of_one).collect()
}

fn plot(folder: &Path, title: &str, currency: &str, runs: &[Run<'_>]) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("waits-and-cost.svg"), frontier(title, currency, runs))?;
    for (number, run) in (1..).zip(runs) {
        fs::write(folder.join(format!("policy-{number}.svg")), series(run))?;
    }
    Ok(())
}

fn as_json(run: &Run<'_>) -> serde_json::Value {
    let Run { name, outcome } = run;
    json!({
        "name": name, "wait_s": outcome.waits, "cost": outcome.cost,
        "on_demand_hours": outcome.on_demand_hours, "spot_hours": outcome.spot_hours,
        "mean_workers": outcome.mean_workers, "interruptions": outcome.interruptions,
        "requests": outcome.requests, "unfinished": outcome.unfinished, "decisions": outcome.decisions,
    })
}
