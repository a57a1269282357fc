//! Policies side by side on one trace: a table on stdout, and plots in a folder.
//!
//! ```sh
//! cargo run --release -p nsbridge-scaling --example compare -- day 180 plots
//! cargo run --release -p nsbridge-scaling --example compare -- trace.csv 180
//! ```
//!
//! The first argument is a file with a trace, or `day` for a generated one. The second is the boot time in seconds.

use std::fs::{self, File};
use std::io::{self, BufReader, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use nsbridge_scaling::policy::{BacklogSeconds, Fixed, Options, PerWorker, Rule};
use nsbridge_scaling::report::{Run, frontier, series, table};
use nsbridge_scaling::simulate::{Cluster, Outcome, Spot, WorkerSpec, simulate};
use nsbridge_scaling::trace::{Day, Trace};

/// Most workers of a policy that scales.
const MAX_WORKERS: u32 = 24;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (trace, boot_s, plots) = match &arguments[..] {
        [trace, boot_s] => (trace, boot_s, None),
        [trace, boot_s, plots] => (trace, boot_s, Some(plots)),
        _ => bail!("give a trace or `day`, the boot time in seconds, and maybe a folder for plots"),
    };
    let boot_s = boot_s.parse().with_context(|| format!("{boot_s} is no number of seconds"))?;
    let title =
        format!("{}, boot {boot_s} s", Path::new(trace).file_stem().unwrap_or_default().display());
    let trace = read(trace)?;
    let outcomes = outcomes(&trace, boot_s)?;
    let runs: Vec<Run<'_>> = outcomes.iter().map(|(name, outcome)| Run { name, outcome }).collect();
    let mut out = io::stdout().lock();
    let (input, output) = trace.mean_tokens();
    let hours = trace.duration_s() / 3600.0;
    let count = trace.requests().len();
    writeln!(
        out,
        "{title}: {count} requests in {hours:.2} h, {input:.0} and {output:.0} tokens\n"
    )?;
    write!(out, "{}", table(&runs))?;
    if let Some(plots) = plots {
        fs::create_dir_all(plots)?;
        fs::write(Path::new(plots).join("frontier.svg"), frontier(&title, "USD", &runs))?;
        for (number, run) in runs.iter().enumerate() {
            fs::write(Path::new(plots).join(format!("series-{number}.svg")), series(run))?;
        }
    }
    Ok(())
}

fn read(trace: &str) -> Result<Trace> {
    if trace == "day" {
        return Ok(Day::default().trace()?);
    }
    let file = File::open(trace).with_context(|| format!("opening {trace}"))?;
    Trace::read(BufReader::new(file)).with_context(|| format!("reading {trace}"))
}

fn outcomes(trace: &Trace, boot_s: f64) -> Result<Vec<(String, Outcome)>> {
    // A worker and prices of inf2.48xlarge, on demand and at 35 % of that as spot.
    let worker = WorkerSpec {
        places: 8,
        tokens_per_s: 160.0,
        stream_tokens_per_s: 40.0,
        prefill_tokens_per_s: 8000.0,
    };
    let spot = Spot { per_hour: 19.47 * 0.35, mean_hours: 3.0, notice_s: 120.0 };
    let on_demand = Cluster {
        worker,
        boot_s,
        on_demand_per_hour: 19.47,
        on_demand_base: 1,
        ..Cluster::default()
    };
    let with_spot = Cluster { spot: Some(spot), ..on_demand.clone() };
    let scaled = |rule| Options { min: 1, ..Options::new(MAX_WORKERS, rule) };
    let fixed = |workers| Options::new(MAX_WORKERS, Rule::Fixed(Fixed { workers }));
    let backlog = |target_s| {
        let worker_tokens_per_s = 160.0;
        let rule = BacklogSeconds { worker_tokens_per_s, target_s, ..BacklogSeconds::default() };
        scaled(Rule::BacklogSeconds(rule))
    };
    let per_worker = |target_requests| PerWorker { target_requests };
    let policies = [
        ("fixed 4", &on_demand, fixed(4)),
        ("fixed 8", &on_demand, fixed(8)),
        ("fixed 15", &on_demand, fixed(15)),
        ("KEDA queue length 5, spot", &with_spot, scaled(Rule::QueueLength(per_worker(5.0)))),
        (
            "requests per worker 4, spot",
            &with_spot,
            scaled(Rule::RequestsPerWorker(per_worker(4.0))),
        ),
        (
            "requests per worker 8, spot",
            &with_spot,
            scaled(Rule::RequestsPerWorker(per_worker(8.0))),
        ),
        ("backlog 15 s, on demand", &on_demand, backlog(15.0)),
        ("backlog 5 s, spot", &with_spot, backlog(5.0)),
        ("backlog 15 s, spot", &with_spot, backlog(15.0)),
        ("backlog 30 s, spot", &with_spot, backlog(30.0)),
    ];
    policies
        .into_iter()
        .map(|(name, cluster, options)| Ok((name.to_owned(), simulate(trace, cluster, options)?)))
        .collect()
}
