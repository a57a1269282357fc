//! `cargo xtask bench SUITE`: benchmarks compared with other systems.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::broker::Broker;
use crate::cargo::{self, Cargo, root};
use crate::{machine, say};

/// Folder of the suites: one binary `bench-SUITE` each.
const FOLDER: &str = "crates/dev/bench/src/bin";

/// Suites that need RabbitMQ.
const ON_A_BROKER: [&str; 3] = ["batch", "bridge", "gateway"];

/// Suites that start the program.
const WITH_THE_PROGRAM: [&str; 2] = ["batch", "gateway"];

/// Suites that need the real model.
const ON_A_REAL_MODEL: [&str; 2] = ["gateway", "quality"];

/// Seconds that a build may take for a turn of the suite `bridge`; a turn takes about 30.
const TURN_S: u32 = 300;

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
    say::step(&format!("bench {suite}"));
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
    say::line(&table(&figures(&written)?));
    Ok(())
}

/// Compares the suite with `binary`, the same suite built from another commit. The suite `bridge`
/// runs in `turns` turns of both builds.
pub(crate) fn against(cargo: &Cargo, suite: &str, binary: &Path, turns: usize) -> Result<()> {
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
            let mut runs = Vec::new();
            for turn in 1..=turns {
                let mut order = [("ours", &ours), ("before", &binary)];
                // The second place may be the better one.
                if turn % 2 == 0 {
                    order.reverse();
                }
                let mut whole = true;
                for (which, program) in order {
                    say::step(&format!("turn {turn} of {turns}: {which}"));
                    // An old build may have a defect that hangs. Such a turn has no figures.
                    let mut command = broker.tell(Command::new("timeout"));
                    command.arg(TURN_S.to_string()).arg(program);
                    command.arg(folder.join(format!("bridge-{which}.json"))).arg("queue");
                    command.env("NSBRIDGE_BENCH_NO_PEERS", "only two builds are compared");
                    command.current_dir(root());
                    if !cargo::run(command)? {
                        ensure!(which == "before", "{} failed", program.display());
                        say::line(&format!("{} failed: the turn is left out", program.display()));
                        whole = false;
                    }
                }
                if whole {
                    let of = |which| figures(&folder.join(format!("bridge-{which}.json")));
                    runs.push([of("ours")?, of("before")?]);
                }
            }
            let compared = compared(&runs, &binary)?;
            fs::write(&written, serde_json::to_string_pretty(&compared)? + "\n")?;
            compared
        }
        _ => bail!("only `engine` and `bridge` can be compared with another build"),
    };
    say::line(&table(&compared));
    Ok(())
}

/// Returns the rows of this build beside the other's. A ratio is the median of the turns' ratios.
fn compared(turns: &[[Figures; 2]], binary: &Path) -> Result<Figures> {
    let [first, _] = turns.first().context("there was no turn")?;
    let value = |figures: &Figures, name: &str| {
        figures.rows.iter().find(|row| row.name == name).and_then(|row| row.value)
    };
    let mut rows = Vec::new();
    for row in &first.rows {
        // The rows of other systems repeat the value of the first.
        if row.name.contains(".vs_") {
            continue;
        }
        let pairs: Vec<(f64, f64)> = turns
            .iter()
            .filter_map(|[mine, theirs]| Some((value(mine, &row.name)?, value(theirs, &row.name)?)))
            .collect();
        let ratio = |&(mine, theirs): &(f64, f64)| {
            if row.better == "higher" { mine / theirs } else { theirs / mine }
        };
        rows.push(Row {
            name: format!("{}.vs_before", row.name),
            value: median(pairs.iter().map(|pair| pair.0)),
            peer: Some(format!("the build {}", binary.display())),
            peer_value: median(pairs.iter().map(|pair| pair.1)),
            ratio: median(pairs.iter().map(ratio)),
            ..row.clone()
        });
    }
    let Figures { suite, machine, date, .. } = first;
    Ok(Figures { suite: suite.clone(), machine: machine.clone(), date: date.clone(), rows })
}

/// Returns the median, the mean of the two values in the middle if their number is even.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (below, above) = (values.len().saturating_sub(1) / 2, values.len() / 2);
    Some(f64::midpoint(*values.get(below)?, *values.get(above)?))
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
