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

/// Suites that start the program.
const WITH_THE_PROGRAM: [&str; 2] = ["batch", "gateway"];

/// Suites that need the real model.
const ON_A_REAL_MODEL: [&str; 2] = ["gateway", "quality"];

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
    let broker = if ON_A_BROKER.contains(&suite) {
        machine::rabbitmq::ready()?;
        Some(Broker::start(cargo)?)
    } else {
        None
    };
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
        _ => bail!("only `engine` and `bridge` can be compared with another build"),
    };
    output::line(&table(&compared));
    Ok(())
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
    use super::{Figures, table};

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
