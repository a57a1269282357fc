//! Benchmark of model loading from S3, with peers in the same run.
//!
//! `cargo xtask bench load` prepares the Python environment of a peer, runs this program, and
//! prints the rows. `docs/benchmarks.md` defines them. Every participant is a process of its own:
//! the object store, whose cost is not counted, and each client, which measures its own cost.

#![expect(clippy::disallowed_methods, reason = "a chore is an edge")]
#![expect(clippy::print_stdout, reason = "a client prints what it cost")]
#![expect(clippy::print_stderr, reason = "progress is for the person who waits")]

mod checkpoint;
mod measure;
mod naive;
mod ours;
mod peer;
mod raw;
mod serve;

use std::path::Path;

use anyhow::{Context, Result, bail};
use nsbridge_bench::report::{Report, Row, median};

use measure::measure;
use peer::{Loader, Seen};
use serve::{Place, Server};

/// Number of rounds; in each, ours and then every peer. A ratio is the median of the rounds'
/// ratios.
const ROUNDS: usize = 5;

/// Default size of the checkpoint in MiB; `NSBRIDGE_BENCH_LOAD_MB` overrides it.
const MEGABYTES: usize = 1024;

/// Tensor-parallel degrees.
const DEGREES: [usize; 4] = [1, 2, 4, 8];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", megabytes] => serve::run(megabytes.parse()?),
        ["client", name, degree, place] => {
            client(name, degree.parse()?, &serde_json::from_str(place)?)
        }
        [] => suite(Path::new("target/bench/load.json")),
        [out] => suite(Path::new(out)),
        _ => bail!("usage: bench-load [FILE]"),
    }
}

fn client(name: &str, degree: usize, place: &Place) -> Result<()> {
    let outcome = match name {
        "ours" => measure(|| ours::load(place, degree))?,
        "raw" => measure(|| raw::load(place))?,
        "naive" => measure(|| naive::load(place))?,
        _ => bail!("there is no client `{name}`"),
    };
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

fn suite(out: &Path) -> Result<()> {
    let megabytes = std::env::var("NSBRIDGE_BENCH_LOAD_MB").ok();
    let megabytes = megabytes.map_or(Ok(MEGABYTES), |text| text.parse())?;
    let mut report = Report::new("load")?;
    let mut loaders = Loader::all();
    let mut server = Server::start(megabytes)?;
    for round in 1..=ROUNDS {
        for loader in &mut loaders {
            let seen = loader.measure(&mut server)?;
            let cost = seen.map_or("nothing".into(), |seen| format!("{:.3}", seen.cpu_s_per_gb));
            eprintln!("round {round}: {}: {cost} CPU-s/GB", loader.about);
        }
    }
    for degree in &DEGREES[1..] {
        for loader in &mut loaders {
            loader.measure_wire(&mut server, *degree)?;
        }
    }
    let (ours, peers) = loaders.split_first().context("ours is among them")?;
    let cost = |seen: &Seen| seen.cpu_s_per_gb;
    let rate = |seen: &Seen| seen.gb_per_s;
    let memory = |seen: &Seen| seen.peak_memory_mb;
    for peer in peers {
        report.push(row("cpu_s_per_gb", "CPU-s/GB", false, ours, peer, cost));
        report.push(row("gb_per_s", "GB/s", true, ours, peer, rate));
        report.push(row("peak_memory_mb", "MB", false, ours, peer, memory));
        for degree in DEGREES {
            report.push(wire(degree, ours, peer));
        }
    }
    report.write(out)
}

/// Builds a row with our median, the peer's median, and the median of the rounds' ratios.
fn row(
    name: &str,
    unit: &'static str,
    higher_is_better: bool,
    ours: &Loader,
    peer: &Loader,
    of: impl Fn(&Seen) -> f64,
) -> Row {
    let values = |loader: &Loader| loader.rounds.iter().map(&of).collect::<Vec<_>>();
    let (mut mine, mut theirs) = (values(ours), values(peer));
    let ratio = |(mine, theirs): (&f64, &f64)| {
        if higher_is_better { mine / theirs } else { theirs / mine }
    };
    let mut ratios: Vec<_> = mine.iter().zip(&theirs).map(ratio).collect();
    Row {
        name: format!("load.{name}{}", peer.suffix),
        value: median(&mut mine),
        unit,
        better: if higher_is_better { "higher" } else { "lower" },
        peer: Some(peer.says()),
        peer_value: (!theirs.is_empty()).then(|| median(&mut theirs)),
        ratio: (!ratios.is_empty()).then(|| median(&mut ratios)),
    }
}

fn wire(degree: usize, ours: &Loader, peer: &Loader) -> Row {
    let at = |loader: &Loader| {
        let seen = loader.wire.iter().find(|(of, _)| *of == degree);
        seen.map(|(_, ratio)| *ratio)
    };
    let (mine, theirs) = (at(ours).unwrap_or_default(), at(peer));
    Row {
        name: format!("load.wire_ratio_tp{degree}{}", peer.suffix),
        value: mine,
        unit: "bytes/byte",
        better: "lower",
        peer: Some(peer.says()),
        peer_value: theirs,
        ratio: theirs.map(|theirs| theirs / mine),
    }
}
