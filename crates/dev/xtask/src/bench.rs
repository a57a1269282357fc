//! `cargo xtask bench SUITE`: benchmarks compared with other systems.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::broker::Broker;
use crate::cargo::{self, Cargo, root};
use crate::{machine, output};

/// Folder of the suites: one binary `bench-SUITE` each.
const FOLDER: &str = "crates/dev/bench/src/bin";

/// Suites that need RabbitMQ.
const ON_A_BROKER: [&str; 3] = ["batch", "bridge", "gateway"];

/// Suites that start a node of RabbitMQ themselves.
const WITH_THEIR_OWN_BROKER: [&str; 1] = ["start"];

/// Suites that start the program.
const WITH_THE_PROGRAM: [&str; 3] = ["batch", "gateway", "start"];

/// Suites that need the real model.
const ON_A_REAL_MODEL: [&str; 3] = ["gateway", "quality", "start"];

/// Number of rounds of a comparison of the gateway with another build. Each build is first in every
/// second round.
const GATEWAY_ROUNDS: usize = 6;

/// Parts of the suite `gateway` that are compared with another build: those without other systems. The
/// first is run in each round, the others, which differ little, in the first round.
const GATEWAY_PARTS: [&str; 3] = ["own", "held", "crowd"];

/// Part of the name of a row that has what this project adds to its peer.
const ADDED: &str = "_added_";

/// Result file of a suite.
#[derive(Debug, Deserialize, Serialize)]
struct Figures {
    suite: String,
    machine: serde_json::Value,
    date: String,
    rows: Vec<Row>,
}

/// Figure of a suite. A `ratio` above 1 means that this project is better, whatever the unit.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Row {
    name: String,
    value: Option<f64>,
    unit: String,
    better: String,
    peer: Option<String>,
    peer_value: Option<f64>,
    ratio: Option<f64>,
}

pub(crate) fn run(cargo: &Cargo, suite: &str) -> Result<()> {
    let known = suites()?;
    ensure!(
        known.iter().any(|name| name == suite),
        "there is no suite `{suite}`; there is: {}",
        if known.is_empty() { "none yet".to_owned() } else { known.join(", ") }
    );
    let written = root().join("target/bench").join(format!("{suite}.json"));
    match fs::remove_file(&written) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", written.display()));
        }
        _ => {}
    }
    let peers = machine::peers(suite);
    let is_on_a_broker = ON_A_BROKER.contains(&suite);
    if is_on_a_broker || WITH_THEIR_OWN_BROKER.contains(&suite) {
        machine::rabbitmq::ready()?;
    }
    let broker = if is_on_a_broker { Some(Broker::start(cargo)?) } else { None };
    output::step(&format!("bench {suite}"));
    let binary = format!("bench-{suite}");
    let mut command = cargo.command(&["run", "--release", "--package", "nsbridge-bench"]);
    command.args(["--features", suite, "--bin", &binary]);
    match peers {
        Ok(python) => command.env("NSBRIDGE_BENCH_PYTHON", python),
        // The rows of the missing systems state this reason.
        Err(why) => command.env("NSBRIDGE_BENCH_NO_PEERS", format!("{why:#}")),
    };
    if ON_A_REAL_MODEL.contains(&suite) {
        command.env("NSBRIDGE_BENCH_SMOLLM2", machine::models::smollm2()?);
    }
    if WITH_THE_PROGRAM.contains(&suite) {
        command.env("NSBRIDGE_BENCH_NSBRIDGE", cargo.release()?);
    }
    if let Some(broker) = &broker {
        command = broker.tell(command);
    }
    let done = cargo::run(command)?;
    drop(broker);
    ensure!(done, "the suite `{suite}` failed");
    output::line(&table(&figures(&written)?));
    Ok(())
}

/// Compares the suite with `binary`, the same suite built from another commit.
pub(crate) fn against(cargo: &Cargo, suite: &str, binary: &Path) -> Result<()> {
    let binary = binary.canonicalize().with_context(|| format!("finding {}", binary.display()))?;
    let name = format!("bench-{suite}");
    let package = ["build", "--release", "--package", "nsbridge-bench", "--features", suite];
    let mut build = cargo.command(&package);
    build.args(["--bin", &name]);
    ensure!(cargo::run(build)?, "the suite `{suite}` does not build");
    let ours = cargo.target_dir().join("release").join(&name);
    let folder = root().join("target/bench");
    let written = folder.join(format!("{suite}-before.json"));
    let compared = match suite {
        "engine" => {
            let mut command = Command::new(&ours);
            command.arg("before").arg(&binary).current_dir(root());
            ensure!(cargo::run(command)?, "the comparison failed");
            figures(&written)?
        }
        "bridge" => {
            machine::rabbitmq::ready()?;
            let broker = Broker::start(cargo)?;
            let mut command = broker.tell(Command::new(&ours));
            command.arg(&written).arg("before").arg(&binary).current_dir(root());
            ensure!(cargo::run(command)?, "the comparison failed");
            figures(&written)?
        }
        "gateway" => {
            machine::rabbitmq::ready()?;
            let broker = Broker::start(cargo)?;
            cargo.release()?;
            let compared = compare_gateways(&broker, [&ours, &binary])?;
            fs::write(&written, serde_json::to_string_pretty(&compared)? + "\n")?;
            compared
        }
        _ => bail!("only `engine`, `bridge` and `gateway` can be compared with another build"),
    };
    output::line(&table(&compared));
    Ok(())
}

/// Runs the suite `gateway` of this build and of another one in turns. The program `nsbridge` of each is
/// beside its benchmark.
fn compare_gateways(broker: &Broker, builds: [&Path; 2]) -> Result<Figures> {
    let written = root().join("target/bench/gateway.json");
    let model = machine::models::smollm2()?;
    let mut rounds: [Vec<Figures>; 2] = [Vec::new(), Vec::new()];
    for round in 0..GATEWAY_ROUNDS {
        output::step(&format!("bench gateway, round {} of {GATEWAY_ROUNDS}", round + 1));
        for which in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let mut command = broker.tell(Command::new(builds[which]));
            let parts = if round == 0 { &GATEWAY_PARTS[..] } else { &GATEWAY_PARTS[..1] };
            command.args(parts).current_dir(root());
            command.env("NSBRIDGE_BENCH_NSBRIDGE", builds[which].with_file_name("nsbridge"));
            command.env("NSBRIDGE_BENCH_SMOLLM2", &model);
            command.env("NSBRIDGE_BENCH_NO_PEERS", "another build is the peer");
            ensure!(cargo::run(command)?, "{} failed", builds[which].display());
            rounds[which].push(figures(&written)?);
        }
    }
    let [ours, theirs] = rounds;
    paired(&ours, &theirs, &format!("the build {}", builds[1].display()))
}

/// Returns the medians of the rows of two builds, whose rounds are in pairs. A ratio is the median of the
/// rounds' ratios; `peer` names the least and the greatest of them.
///
/// A row of an added time is compared with its peer's time included, because the added time alone can be
/// near zero and then has no ratio.
fn paired(ours: &[Figures], theirs: &[Figures], about: &str) -> Result<Figures> {
    let value = |figures: &Figures, name: &str| -> Option<f64> {
        let row = figures.rows.iter().find(|row| row.name == name)?;
        let base = if name.contains(ADDED) { row.peer_value? } else { 0.0 };
        Some(base + row.value?)
    };
    let first = ours.first().context("no round ran")?;
    let mut rows = Vec::new();
    for row in &first.rows {
        let pair = |(ours, theirs)| value(ours, &row.name).zip(value(theirs, &row.name));
        let pairs: Vec<_> = ours.iter().zip(theirs).filter_map(pair).collect();
        if pairs.is_empty() {
            continue;
        }
        let higher = row.better == "higher";
        let ratio = |(mine, theirs)| if higher { mine / theirs } else { theirs / mine };
        let mut ratios: Vec<f64> = pairs.iter().copied().map(ratio).collect();
        let ratio = median(&mut ratios);
        let (mut mine, mut theirs): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        rows.push(Row {
            name: format!("{}.vs_before", row.name.replace(ADDED, "_")),
            value: Some(median(&mut mine)),
            unit: row.unit.clone(),
            better: row.better.clone(),
            peer: Some(format!("{about}, {:.2} to {:.2}", ratios[0], ratios[ratios.len() - 1])),
            peer_value: Some(median(&mut theirs)),
            ratio: Some(ratio),
        });
    }
    let suite = first.suite.clone();
    Ok(Figures { suite, machine: first.machine.clone(), date: first.date.clone(), rows })
}

/// Returns the median of at least one value, and sorts the values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
}

fn figures(written: &Path) -> Result<Figures> {
    let text = fs::read_to_string(written)
        .with_context(|| format!("the suite did not write {}", written.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not what a suite writes", written.display()))
}

fn suites() -> Result<Vec<String>> {
    let Ok(entries) = root().join(FOLDER).read_dir() else { return Ok(Vec::new()) };
    let mut suites = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        suites
            .extend(name.strip_prefix("bench-").map(|suite| suite.trim_end_matches(".rs").into()));
    }
    suites.sort();
    Ok(suites)
}

fn table(figures: &Figures) -> String {
    let number = |number: Option<f64>| number.map_or("-".to_owned(), short);
    let mut lines =
        vec![["name", "value", "unit", "peer", "peer_value", "ratio"].map(str::to_owned)];
    for Row { name, value, unit, peer, peer_value, ratio, .. } in &figures.rows {
        let peer = peer.clone().unwrap_or_else(|| "-".to_owned());
        let (value, peer_value, ratio) = (number(*value), number(*peer_value), number(*ratio));
        lines.push([name.clone(), value, unit.clone(), peer, peer_value, ratio]);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: [usize; 6] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let machine = figures.machine.as_str().map_or(figures.machine.to_string(), str::to_owned);
    let title = format!("{}, {}, {machine}", figures.suite, figures.date);
    let rows = lines.iter().map(|line| {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    std::iter::once(title).chain(rows).collect::<Vec<_>>().join("\n")
}

/// Formats a number with four significant digits, or all digits before the point if there are more.
fn short(number: f64) -> String {
    let digits = match number.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{number:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::{Figures, paired, table};

    /// Returns a round; the first piece comes 2 ms after that of the client alone.
    fn round(streams: f64, first: f64) -> Figures {
        serde_json::from_value(serde_json::json!({
            "suite": "gateway", "machine": "a shelf", "date": "2026-11-28", "rows": [
                { "name": "streams", "value": streams, "unit": "1/s", "better": "higher",
                  "peer": null, "peer_value": null, "ratio": null },
                { "name": "first_added_p50", "value": first - 2.0, "unit": "ms", "better": "lower",
                  "peer": "the client", "peer_value": 2.0, "ratio": null }
            ]
        }))
        .unwrap()
    }

    #[test]
    fn a_ratio_of_two_builds_is_the_median_of_the_rounds_and_above_one_if_this_build_is_better() {
        let ours = [round(200.0, 2.0), round(100.0, 4.0), round(300.0, 1.0)];
        let theirs = [round(100.0, 1.0), round(100.0, 1.0), round(100.0, 1.0)];
        let compared = paired(&ours, &theirs, "another build").unwrap();
        let of = |name: &str| compared.rows.iter().find(|row| row.name == name).unwrap();
        let streams = of("streams.vs_before");
        assert_eq!((streams.value, streams.peer_value), (Some(200.0), Some(100.0)));
        assert_eq!(streams.ratio, Some(2.0));
        assert_eq!(streams.peer.as_deref(), Some("another build, 1.00 to 3.00"));
        assert_eq!(of("first_p50.vs_before").ratio, Some(0.5));
    }

    #[test]
    fn a_table_has_a_row_for_each_figure_and_a_dash_for_what_is_not_there() {
        let figures: Figures = serde_json::from_value(serde_json::json!({
            "suite": "bridge", "machine": "a shelf", "date": "2026-11-21", "rows": [
                { "name": "chunks", "value": 25123.4, "unit": "1/s", "better": "higher",
                  "peer": "raw", "peer_value": 29000.0, "ratio": 0.8663 },
                { "name": "ttft", "value": 1.5, "unit": "ms", "better": "lower",
                  "peer": null, "peer_value": null, "ratio": null }
            ]
        }))
        .unwrap();
        let expected = "\
bridge, 2026-11-21, a shelf
name    value  unit  peer  peer_value  ratio
chunks  25123  1/s   raw   29000       0.866
ttft    1.500  ms    -     -           -";
        assert_eq!(table(&figures), expected);
    }
}
