//! What the engine's steps cost, beside others with the same weights in the same run.
//!
//! `cargo xtask bench engine` makes the Python of the peers, runs this, and prints the rows.
//! `docs/benchmarks.md` says what they mean. Each engine is a process of its own that has its
//! weights in memory and waits; they are asked in turns, never two at once.

#![expect(clippy::disallowed_methods, reason = "a chore is an edge")]
#![expect(clippy::print_stdout, reason = "an engine prints its answers")]
#![expect(clippy::print_stderr, reason = "progress is for the person who waits")]

mod bandwidth;
mod engine;
mod gguf;
mod ours;
mod ranks;
mod rounds;
mod served;
mod serving;
mod shape;
mod speculating;
mod timed;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nsbridge_llama::{Config, Format, parameters};
use nsbridge_testkit::report::{Report, Row, median};

use bandwidth::Bandwidth;
use engine::Engine;
use rounds::{Group, Seen};

/// Threads of every engine.
const THREADS: usize = 2;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", model, format, threads, ranks] => {
            ours::serve(Path::new(model), format, threads.parse()?, ranks.parse()?)
        }
        [] => suite(Path::new("target/bench/engine.json"), true),
        ["serving"] => suite(Path::new("target/bench/serving.json"), false),
        ["speculating"] => {
            let mut report = Report::new("engine")?;
            speculating::measure(&pair())?.into_iter().for_each(|row| report.push(row));
            report.write(Path::new("target/bench/speculating.json"))
        }
        ["ranks"] => {
            let random = random(Path::new("target/bench"))?;
            let mut report = Report::new("engine")?;
            ranks::measure(&random)?.into_iter().for_each(|row| report.push(row));
            report.write(Path::new("target/bench/ranks.json"))
        }
        _ => bail!("usage: bench-engine [serving | speculating | ranks]"),
    }
}

/// The bundled models.
fn pair() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models")
}

/// The model of random weights, which is made if it is not there.
fn random(folder: &Path) -> Result<PathBuf> {
    let random = folder.join("models/random-1b1");
    eprintln!("models in {}", folder.join("models").display());
    shape::make(&random)?;
    Ok(random)
}

/// All rows, or without those of single steps.
fn suite(out: &Path, steps: bool) -> Result<()> {
    let folder = out.parent().context("a file in a folder")?.join("models");
    let random = random(out.parent().context("a file in a folder")?)?;
    let pair = pair();
    let mut report = Report::new("engine")?;
    for (model, name, format) in [
        (&random, "q8_0", Format::Q8_0),
        (&random, "bf16", Format::Bf16),
        (&pair.join("tale-7m"), "tale_7m", Format::Bf16),
        (&pair.join("tale-1m"), "tale_1m", Format::Bf16),
    ] {
        let is_random = model == &random;
        if !steps && !is_random {
            continue;
        }
        let bandwidth = if name == "q8_0" { Some(Bandwidth::new(THREADS)?) } else { None };
        let mut group = group(&folder, model, name, format)?;
        group.compare_logits()?;
        if steps {
            group.measure(bandwidth.as_ref())?;
            for row in rows(&group, name) {
                report.push(row);
            }
            if name == "q8_0" {
                let bytes = bytes_of_a_step(model, format)?;
                for row in roofline(&group, bytes) {
                    report.push(row);
                }
            }
        }
        if is_random {
            for row in serving::measure(&mut group, name)? {
                report.push(row);
            }
        }
    }
    if steps {
        ranks::measure(&random)?.into_iter().for_each(|row| report.push(row));
        speculating::measure(&pair)?.into_iter().for_each(|row| report.push(row));
    }
    report.write(out)
}

/// Ours and its peers on one model.
fn group(folder: &Path, model: &Path, name: &str, format: Format) -> Result<Group> {
    let kept = if format == Format::Q8_0 { "q8_0" } else { "bf16" };
    let gguf = folder.join(format!("{name}.gguf"));
    gguf::convert(model, format, &gguf)?;
    let threads = THREADS.to_string();
    let llama = Engine::peer(
        "llama.cpp as llama-cpp-python 0.3.36 carries it, without AMX, the same weights as GGUF",
        "",
        "llama_cpp_peer.py",
        &[path(&gguf)?, &threads],
    );
    let mut peers = vec![llama];
    if !name.starts_with("tale") {
        let (theirs, about) = match format {
            Format::Q8_0 => ("int8", "OpenVINO 2026.4.1, int8 a channel, as optimum-intel exports"),
            _ => ("bf16", "OpenVINO 2026.4.1, bf16, as optimum-intel exports"),
        };
        let exported = folder.join(format!("openvino-{theirs}"));
        let arguments = [path(model)?, theirs, &threads, path(&exported)?];
        peers.push(Engine::peer(about, ".vs_openvino", "openvino_peer.py", &arguments));
    }
    Ok(Group::new(Engine::ours(model, kept, THREADS, 1)?, peers))
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}

/// Bytes of weights that a step of one token reads: all but the rows of the embedding.
fn bytes_of_a_step(model: &PathBuf, format: Format) -> Result<f64> {
    let config = Config::read(&nsbridge_handler::Model::in_dir(model))?;
    let embedding = config.vocab_size * config.hidden_size;
    let read = parameters(&config) - if config.tied { 0 } else { embedding as u64 };
    let width = if format == Format::Q8_0 { 34.0 / 32.0 } else { 2.0 };
    Ok(read as f64 * width)
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

/// The share of the memory's speed that decoding uses.
fn roofline(group: &Group, bytes: f64) -> Vec<Row> {
    let share = |seen: &Seen| seen.decode * bytes / seen.bandwidth;
    let of = |peer| row("engine.roofline.q8_0".into(), "share", true, group, peer, &share);
    group.peers.iter().map(of).collect()
}

/// Ours beside a peer's, and the median of the rounds' ratios.
fn row(
    name: String,
    unit: &'static str,
    higher_is_better: bool,
    group: &Group,
    peer: &rounds::Measured,
    of: &dyn Fn(&Seen) -> f64,
) -> Row {
    let values = |rounds: &[Seen]| rounds.iter().map(of).collect::<Vec<_>>();
    let (mut mine, mut theirs) = (values(&group.ours.rounds), values(&peer.rounds));
    let ratio = |(mine, theirs): (&f64, &f64)| {
        if higher_is_better { mine / theirs } else { theirs / mine }
    };
    let mut ratios: Vec<_> = mine.iter().zip(&theirs).map(ratio).collect();
    Row {
        name: name + peer.engine.suffix,
        value: median(&mut mine),
        unit,
        better: if higher_is_better { "higher" } else { "lower" },
        peer: Some(peer.engine.says()),
        peer_value: (!theirs.is_empty()).then(|| median(&mut theirs)),
        ratio: (!ratios.is_empty()).then(|| median(&mut ratios)),
    }
}
