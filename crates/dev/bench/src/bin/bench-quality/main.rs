//! Benchmark of the quality of a real model's answers: logits and perplexity beside llama.cpp.
//!
//! `cargo xtask bench quality` fetches SmolLM2-135M-Instruct, prepares the Python environment of the
//! peer, runs this program, and prints the rows. `docs/benchmarks.md` defines them.

#![expect(clippy::disallowed_methods, reason = "a chore is an edge")]
#![expect(clippy::print_stderr, reason = "progress is for the person who waits")]

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nsbridge_bench::report::{Report, Row};
use nsbridge_handler::{Model, TextInput};
use nsbridge_llama::parity::{self, Reference};
use nsbridge_llama::testing::Tokens;
use nsbridge_llama::{KvFormat, Scratch, logprobs};

/// Number of tokens in a sequence. The divergence is that of the first sequence.
const WINDOW: usize = 500;

/// Number of sequences for the perplexity.
const WINDOWS: usize = 6;

/// Sources of the text: documents of this project.
const TEXTS: [&str; 3] = ["docs/architecture.md", "docs/protocol.md", "docs/security.md"];

const PEER: &str = "llama.cpp as llama-cpp-python 0.3.36 carries it, without AMX, the same file";

fn main() -> Result<()> {
    let file = std::env::var("NSBRIDGE_BENCH_SMOLLM2")
        .context("NSBRIDGE_BENCH_SMOLLM2 names no file: run `cargo xtask bench quality`")?;
    let mut report = Report::new("quality")?;
    let tokens = tokens(Path::new(&file))?;
    let (mut theirs, about) = match logits_of_the_peer(&file, &tokens) {
        Ok(logits) => (Some(File::open(logits)?), PEER.to_owned()),
        Err(why) => (None, format!("{PEER}; not measured: {why:#}")),
    };
    let mut model = parity::open(&Model::at(&file), WINDOW, None, KvFormat::F32)?;
    let (mut ours, mut peers) = (Likelihood::default(), Likelihood::default());
    let mut parity = None;
    for window in tokens.chunks_exact(WINDOW) {
        let recorded = Reference::record(&mut model, window).map_err(|error| anyhow!("{error}"))?;
        ours.add(window, &recorded.logits)?;
        if let Some(file) = &mut theirs {
            let logits = read(file, recorded.logits.len())?;
            peers.add(window, &logits)?;
            if parity.is_none() {
                let reference = Reference::new(window.to_vec(), logits);
                let held = reference.check_against(&mut model);
                parity = Some(held.map_err(|error| anyhow!("{error}"))?);
            }
        }
        eprintln!("perplexity so far: {:.4}", ours.perplexity());
    }
    let mut push = |name: &str, value: f64, unit, peer_value: Option<f64>| {
        report.push(Row {
            name: format!("quality.{name}.smollm2_q4_1"),
            value,
            unit,
            better: "lower",
            peer: Some(about.clone()),
            peer_value,
            ratio: peer_value.map(|theirs| theirs / value),
        });
    };
    if let Some(parity) = parity {
        push("kl", parity.divergence, "nats", None);
        push("likeliest_differs", parity.mismatches as f64, "positions of 500", None);
    }
    let peer_value = theirs.is_some().then(|| peers.perplexity());
    push("perplexity", ours.perplexity(), "tokens", peer_value);
    report.write(Path::new("target/bench/quality.json"))
}

/// Returns the first tokens of the text, whole windows.
fn tokens(file: &Path) -> Result<Vec<u32>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut text = String::new();
    for path in TEXTS {
        text += &fs::read_to_string(root.join(path)).with_context(|| format!("reading {path}"))?;
    }
    let tokenizer = Tokens::read(&Model::at(file), 1 << 18).map_err(|error| anyhow!("{error}"))?;
    let input = TextInput { prompt: Some(text), ..TextInput::default() };
    let mut tokens = tokenizer.of(&input, 1 << 20).map_err(|error| anyhow!("{error}"))?;
    ensure!(tokens.len() >= WINDOW * WINDOWS, "the text has only {} tokens", tokens.len());
    tokens.truncate(WINDOW * WINDOWS);
    Ok(tokens)
}

/// Computes the logits of llama.cpp and returns the file that has them.
fn logits_of_the_peer(model: &str, tokens: &[u32]) -> Result<PathBuf> {
    if let Ok(why) = std::env::var("NSBRIDGE_BENCH_NO_PEERS") {
        bail!("{why}");
    }
    let python = std::env::var("NSBRIDGE_BENCH_PYTHON")
        .context("NSBRIDGE_BENCH_PYTHON names no Python: run `cargo xtask bench quality`")?;
    let folder = Path::new("target/bench/quality");
    fs::create_dir_all(folder)?;
    let (list, out) = (folder.join("tokens.json"), folder.join("logits"));
    fs::write(&list, serde_json::to_vec(tokens)?)?;
    let script = "src/bin/bench-quality/peers/llama_cpp_logits.py";
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(script)).arg(model).arg(&list);
    let done = command.arg(WINDOW.to_string()).arg(&out).status()?;
    ensure!(done.success(), "llama.cpp failed; it says why above");
    Ok(out)
}

fn read(file: &mut File, numbers: usize) -> Result<Vec<f32>> {
    let mut bytes = vec![0; numbers * 4];
    file.read_exact(&mut bytes).context("llama.cpp wrote fewer logits than ours has")?;
    Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// Likelihood of the tokens that follow others.
#[derive(Default)]
struct Likelihood {
    /// Sum of their log-probabilities, in nats.
    logprobs: f64,
    predicted: usize,
}

impl Likelihood {
    /// Adds the tokens of a sequence after its first, given the logits after each token.
    fn add(&mut self, tokens: &[u32], logits: &[f32]) -> Result<()> {
        let rows = logits.chunks_exact(logits.len() / tokens.len());
        let mut scratch = Scratch::default();
        for (row, &next) in rows.zip(&tokens[1..]) {
            let found = logprobs(row, next, 0, &mut scratch).context("a logit is no number")?;
            self.logprobs += f64::from(found.chosen);
            self.predicted += 1;
        }
        Ok(())
    }

    fn perplexity(&self) -> f64 {
        (-self.logprobs / self.predicted.max(1) as f64).exp()
    }
}
