//! Benchmark of the LLM engine, with peers on the same weights in the same run.
//!
//! `cargo xtask bench engine` prepares the Python environment of the peers, runs this program, and
//! prints the rows. `docs/benchmarks.md` defines them. Each engine is a process of its own that
//! keeps its weights in memory and waits for questions. The engines run in turns, never two at
//! once.

#![expect(clippy::disallowed_methods, reason = "a chore is an edge")]
#![expect(clippy::print_stdout, reason = "an engine prints its answers")]
#![expect(clippy::print_stderr, reason = "progress is for the person who waits")]

mod bandwidth;
mod contexts;
mod engine;
mod kept;
mod ours;
mod ranks;
mod rounds;
mod served;
mod serving;
mod shape;
mod speculating;
mod timed;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use nsbridge_bench::report::{Report, Row, median};
use nsbridge_llama::{Arithmetic, Config, Format, Mix, Tier};

use bandwidth::Bandwidth;
use engine::Engine;
use kept::{Kept, Kind};
use rounds::{Group, Seen};
use serving::Serving;
use shape::Shape;

/// Number of threads of every engine.
const THREADS: usize = 2;

/// Number of rounds of a comparison with peers, and of those of concurrent requests.
const ROUNDS: usize = 6;
const SERVED_ROUNDS: usize = 2;

/// Suffix of the names of rows with the CPU's products in bf16. A CPU without them has no such rows.
const NATIVE: &str = "_native";

/// Number of turns of a comparison with another build, each with one round. Processes of one build
/// differ more than the rounds of one process.
const TURNS: usize = 10;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", model, threads, ranks] => {
            let arithmetic = Arithmetic::Portable;
            ours::serve(Path::new(model), threads.parse()?, ranks.parse()?, arithmetic)
        }
        ["serve", model, threads, ranks, "native"] => {
            let arithmetic = Arithmetic::Native;
            ours::serve(Path::new(model), threads.parse()?, ranks.parse()?, arithmetic)
        }
        [] => suite("engine", &Part::All),
        ["serving"] => suite("serving", &Part::Serving),
        ["of", model] => suite(model, &Part::Of(model)),
        ["before", binary, models @ ..] => before(Path::new(binary), models),
        ["speculating"] => {
            let mut report = Report::new("engine")?;
            speculating::measure(&pair())?.into_iter().for_each(|row| report.push(row));
            report.write(Path::new("target/bench/speculating.json"))
        }
        ["contexts"] => {
            let mut report = Report::new("engine")?;
            contexts::measure(None)?.into_iter().for_each(|row| report.push(row));
            report.write(Path::new("target/bench/contexts.json"))
        }
        ["contexts", "before", binary] => {
            let mut report = Report::new("engine")?;
            let rows = contexts::measure(Some(Path::new(binary)))?;
            rows.into_iter().for_each(|row| report.push(row));
            report.write(Path::new("target/bench/contexts-before.json"))
        }
        ["ranks"] => {
            let folder = Path::new("target/bench/models");
            let random = random(folder, shape::LARGE_SHAPE)?;
            let mut report = Report::new("engine")?;
            ranks::measure(&random, folder)?.into_iter().for_each(|row| report.push(row));
            report.write(Path::new("target/bench/ranks.json"))
        }
        _ => {
            bail!(
                "usage: bench-engine [serving | speculating | ranks | contexts [before BINARY] | of MODEL \
                 | before BINARY [MODEL..]]"
            )
        }
    }
}

/// Returns the folder of the bundled models.
fn pair() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models")
}

/// Returns the model of random weights, and creates it if it does not exist.
fn random(folder: &Path, shape: Shape) -> Result<PathBuf> {
    let random = folder.join(shape.name);
    eprintln!("models in {}", folder.display());
    shape::make(&random, shape)?;
    Ok(random)
}

/// Part of the benchmark.
#[derive(PartialEq)]
enum Part<'a> {
    All,
    /// Concurrent requests.
    Serving,
    /// All rows of one model.
    Of(&'a str),
}

/// Measures a part and writes its report.
fn suite(name: &str, part: &Part<'_>) -> Result<()> {
    let folder = Path::new("target/bench/models");
    let random = random(folder, shape::LARGE_SHAPE)?;
    let pair = pair();
    let mut report = Report::new("engine")?;
    let (large, small) = (pair.join("tale-7m"), pair.join("tale-1m"));
    for (model, name, kind) in [
        (&random, "q8_0", Kind::Mix(Mix::Q8_0)),
        (&random, "bf16", Kind::Mix(Mix::Bf16)),
        (&random, "bf16_native", Kind::Mix(Mix::Bf16)),
        (&random, "q4_k_m", Kind::Mix(Mix::Q4KM)),
        (&random, "q4_0", Kind::All(Format::Q4_0)),
        (&random, "q4_1", Kind::All(Format::Q4_1)),
        (&random, "q5_0", Kind::All(Format::Q5_0)),
        (&random, "q5_1", Kind::All(Format::Q5_1)),
        (&random, "iq4_nl", Kind::All(Format::Iq4Nl)),
        (&random, "iq4_xs", Kind::All(Format::Iq4Xs)),
        (&random, "mxfp4", Kind::All(Format::Mxfp4)),
        (&random, "q2_k", Kind::All(Format::Q2K)),
        (&random, "q3_k", Kind::All(Format::Q3K)),
        (&random, "q5_k", Kind::All(Format::Q5K)),
        (&random, "q6_k", Kind::All(Format::Q6K)),
        (&large, "tale_7m", Kind::Mix(Mix::Bf16)),
        (&large, "tale_7m_native", Kind::Mix(Mix::Bf16)),
        (&small, "tale_1m", Kind::Mix(Mix::Bf16)),
    ] {
        let (is_random, steps) = (model == &random, *part != Part::Serving);
        // Requests cost the same steps in any format, so the others do without these rows.
        let is_served = is_random && matches!(kind, Kind::Mix(_));
        let arithmetic = match name.ends_with(NATIVE) {
            true if Tier::best().bf16_order().is_none() => continue,
            true => Arithmetic::Native,
            false => Arithmetic::Portable,
        };
        match part {
            Part::Of(only) if name != *only => continue,
            Part::Serving if !is_served => continue,
            _ => {}
        }
        let bandwidth = if is_random { Some(Bandwidth::new(THREADS)?) } else { None };
        let mut group = group(folder, model, kind, arithmetic)?;
        group.compare_logits()?;
        if steps {
            group.measure(ROUNDS, bandwidth.as_ref())?;
            for row in rows(&group, name) {
                report.push(row);
            }
            if is_random {
                for row in roofline(&group, name, bytes_of_a_step(folder, model, kind)?)? {
                    report.push(row);
                }
            }
        }
        if is_served {
            let mut serving = Serving::new(&group);
            serving.measure(&mut group, 0..SERVED_ROUNDS)?;
            serving.rows(&group, name).into_iter().for_each(|row| report.push(row));
        }
    }
    if *part == Part::All {
        ranks::measure(&random, folder)?.into_iter().for_each(|row| report.push(row));
        contexts::measure(None)?.into_iter().for_each(|row| report.push(row));
        speculating::measure(&pair)?.into_iter().for_each(|row| report.push(row));
    }
    report.write(&Path::new("target/bench").join(name).with_extension("json"))
}

/// Measures this build and `binary`, another build of this benchmark, on the named models, or on all.
///
/// Each turn starts both programs anew, in alternating order: the place of the weights in memory
/// decides some per cent of the speed of a process.
fn before(binary: &Path, models: &[&str]) -> Result<()> {
    let folder = Path::new("target/bench/models");
    let random = random(folder, shape::LARGE_SHAPE)?;
    let pair = pair();
    let mut report = Report::new("engine")?;
    for (model, name, mix) in [
        (&random, "q8_0", Mix::Q8_0),
        (&random, "bf16", Mix::Bf16),
        (&random, "q4_k_m", Mix::Q4KM),
        (&pair.join("tale-7m"), "tale_7m", Mix::Bf16),
    ] {
        if !models.is_empty() && !models.contains(&name) {
            continue;
        }
        let dir = Kept::of(model, mix, folder)?.dir;
        let start = |turn: usize| {
            let ours = || Engine::ours(&dir, THREADS, 1, Arithmetic::Portable);
            let earlier = || Engine::before(binary, &dir, THREADS);
            if turn.is_multiple_of(2) {
                return Ok((ours()?, vec![earlier()?]));
            }
            let earlier = earlier()?;
            anyhow::Ok((ours()?, vec![earlier]))
        };
        let (ours, peers) = start(0)?;
        let mut group = Group::new(ours, peers);
        let mut serving = Serving::new(&group);
        for turn in 0..TURNS {
            if turn > 0 {
                group.start_again(|| start(turn))?;
            }
            eprintln!("{name}: turn {} of {TURNS}", turn + 1);
            group.compare_logits()?;
            group.measure_in_blocks(name == "tale_7m")?;
            // Requests cost the same steps in any format.
            if name == "q8_0" {
                serving.measure_turn(&mut group, turn)?;
            }
        }
        rows(&group, name).into_iter().for_each(|row| report.push(row));
        serving.rows(&group, name).into_iter().for_each(|row| report.push(row));
    }
    report.write(Path::new("target/bench/engine-before.json"))
}

/// Starts our engine and its peers on one model.
fn group(folder: &Path, model: &Path, kind: Kind, arithmetic: Arithmetic) -> Result<Group> {
    let kept = Kept::of(model, kind, folder)?;
    let threads = THREADS.to_string();
    let mut peers = vec![llama_cpp(&kept)?];
    let openvino = match kind {
        Kind::Mix(Mix::Q8_0) => {
            Some(("int8", "OpenVINO 2026.4.1, int8 a channel, as optimum-intel exports"))
        }
        Kind::Mix(Mix::Bf16) if model.ends_with("random-1b1") => {
            Some(("bf16", "OpenVINO 2026.4.1, bf16, as optimum-intel exports"))
        }
        _ => None,
    };
    if let Some((theirs, about)) = openvino {
        let exported = folder.join(format!("openvino-{theirs}"));
        let arguments = [path(model)?, theirs, &threads, path(&exported)?];
        peers.push(Engine::peer(about, ".vs_openvino", "openvino_peer.py", &arguments));
    }
    Ok(Group::new(Engine::ours(&kept.dir, THREADS, 1, arithmetic)?, peers))
}

/// Starts llama.cpp on the same file.
fn llama_cpp(kept: &Kept) -> Result<Engine> {
    Ok(Engine::peer(
        "llama.cpp as llama-cpp-python 0.3.36 carries it, without AMX, the same file",
        "",
        "llama_cpp_peer.py",
        &[path(&kept.file())?, &THREADS.to_string()],
    ))
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}

/// Returns the weight bytes that a decode step of one token reads: the file's size, less an untied
/// embedding table.
fn bytes_of_a_step(folder: &Path, model: &Path, kind: Kind) -> Result<f64> {
    let config = Config::read(&nsbridge_handler::Model::in_dir(model))?;
    let looked_up = if config.tied { 0 } else { config.vocab_size * config.hidden_size };
    let file = std::fs::metadata(Kept::of(model, kind, folder)?.file())?.len();
    Ok(file as f64 - looked_up as f64 * kind.of_embedding())
}

fn rows(group: &Group, name: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for peer in &group.peers {
        let mut push = |what: &str, unit, higher, of: &dyn Fn(&Seen) -> f64| {
            rows.push(row(format!("engine.{what}.{name}"), unit, higher, group, peer, of));
        };
        push("decode", "tokens/s", true, &|seen| seen.decode);
        push("prefill", "tokens/s", true, &|seen| seen.prefill);
        push("verify_cost_4", "steps", false, &|seen| seen.verify_cost);
        push("streams16", "tokens/s", true, &|seen| seen.streams);
    }
    rows
}

/// Builds the rows of the share of memory bandwidth that decode uses.
///
/// # Errors
///
/// Returns an error if an engine reads faster than the measured bandwidth.
fn roofline(group: &Group, name: &str, bytes: f64) -> Result<Vec<Row>> {
    let share = |seen: &Seen| seen.decode * bytes / seen.bandwidth;
    let of = |peer| row(format!("engine.roofline.{name}"), "share", true, group, peer, &share);
    let rows: Vec<Row> = group.peers.iter().map(of).collect();
    for row in &rows {
        let share = row.value.max(row.peer_value.unwrap_or_default());
        ensure!(
            share <= 1.0,
            "{}: decoding reads {share:.2} of the measured bandwidth, which is therefore not the machine's",
            row.name
        );
    }
    Ok(rows)
}

/// Builds the row of a value of the rounds.
fn row(
    name: String,
    unit: &'static str,
    higher_is_better: bool,
    group: &Group,
    peer: &rounds::Measured,
    of: &dyn Fn(&Seen) -> f64,
) -> Row {
    let values = |rounds: &[Seen]| rounds.iter().map(of).collect::<Vec<_>>();
    let (mine, theirs) = (values(&group.ours.rounds), values(&peer.rounds));
    compared(name, (unit, higher_is_better), &peer.engine, mine, theirs)
}

/// Builds a row with our median, the peer's median, and the median of the rounds' ratios.
fn compared(
    name: String,
    (unit, higher_is_better): (&'static str, bool),
    peer: &Engine,
    mut mine: Vec<f64>,
    mut theirs: Vec<f64>,
) -> Row {
    let ratio = |(mine, theirs): (&f64, &f64)| {
        if higher_is_better { mine / theirs } else { theirs / mine }
    };
    let mut ratios: Vec<_> = mine.iter().zip(&theirs).map(ratio).collect();
    Row {
        name: name + peer.suffix,
        value: median(&mut mine),
        unit,
        better: if higher_is_better { "higher" } else { "lower" },
        peer: Some(peer.says()),
        peer_value: (!theirs.is_empty()).then(|| median(&mut theirs)),
        ratio: (!ratios.is_empty()).then(|| median(&mut ratios)),
    }
}
