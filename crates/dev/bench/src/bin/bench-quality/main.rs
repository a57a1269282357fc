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
use nsbridge_llama::testing::Tokens;
use nsbridge_llama::{KvFormat, parity};

/// Number of tokens in a sequence. The divergence is that of the first sequence.
const WINDOW: usize = 500;

/// Number of sequences for the perplexity.
const WINDOWS: usize = 6;

/// Sources of the text: documents of this project.
const TEXTS: [&str; 3] = ["docs/architecture.md", "docs/protocol.md", "docs/security.md"];

const PEER: &str = "llama.cpp as llama-cpp-python 0.3.36 carries it, without AMX, the same file";

/// Sums over the positions of all windows so far.
#[derive(Default)]
struct Sums {
    /// Kullback-Leibler divergence from llama.cpp's distributions, in nats.
    divergence: f64,
    /// Number of positions at which another token is the likeliest.
    mismatches: usize,
    /// Negative log-likelihood of the next token, ours and llama.cpp's, in nats.
    ours: f64,
    theirs: f64,
    positions: usize,
    predicted: usize,
}

fn main() -> Result<()> {
    let file = std::env::var("NSBRIDGE_BENCH_SMOLLM2")
        .context("NSBRIDGE_BENCH_SMOLLM2 names no file: run `cargo xtask bench quality`")?;
    let mut report = Report::new("quality")?;
    let tokens = tokens(Path::new(&file))?;
    let logits = match logits_of_the_peer(&file, &tokens) {
        Ok(logits) => Some(logits),
        Err(why) => {
            eprintln!("not measured: {why:#}");
            None
        }
    };
    let files = Model::at(&file);
    let mut theirs = logits.map(File::open).transpose()?;
    let (mut sums, mut first) = (Sums::default(), None);
    for window in tokens.chunks_exact(WINDOW) {
        let mut model = parity::open(&files, WINDOW, None, KvFormat::F32)?;
        let recorded = parity::Reference::record(&mut model, window);
        let ours = recorded.map_err(|error| anyhow!("{error}"))?.logits;
        let theirs = theirs.as_mut().map(|file| read(file, ours.len())).transpose()?;
        sums.add(window, &ours, theirs.as_deref());
        first.get_or_insert((sums.divergence / sums.positions as f64, sums.mismatches));
        eprintln!("perplexity so far: {:.4}", perplexity(sums.ours, sums.predicted));
    }
    let (divergence, mismatches) = first.context("the text is shorter than a window")?;
    let measured = theirs.is_some();
    let peer = |about: &str| Some(format!("{PEER}; {about}"));
    for (name, value, unit, peer, peer_value, lower_is_equal) in [
        ("kl", divergence, "nats", peer("mean divergence from its distributions"), None, false),
        (
            "likeliest_differs",
            mismatches as f64,
            "positions of 500",
            peer("positions at which another token is the likeliest"),
            None,
            false,
        ),
        (
            "perplexity",
            perplexity(sums.ours, sums.predicted),
            "tokens",
            peer("its perplexity on the same tokens"),
            Some(perplexity(sums.theirs, sums.predicted)),
            true,
        ),
    ] {
        if !measured && !lower_is_equal {
            continue;
        }
        let peer_value = peer_value.filter(|_| measured);
        report.push(Row {
            name: format!("quality.{name}.smollm2_q4_1"),
            value,
            unit,
            better: "lower",
            peer,
            peer_value,
            ratio: peer_value.map(|theirs| theirs / value),
        });
    }
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

impl Sums {
    fn add(&mut self, tokens: &[u32], ours: &[f32], theirs: Option<&[f32]>) {
        let vocabulary = ours.len() / tokens.len();
        let row = |logits: &[f32], at: usize| log_softmax(&logits[at * vocabulary..][..vocabulary]);
        for at in 0..tokens.len() {
            let mine = row(ours, at);
            let peers = theirs.map(|logits| row(logits, at));
            self.positions += 1;
            if let Some(peers) = &peers {
                self.divergence +=
                    peers.iter().zip(&mine).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
                self.mismatches += usize::from(likeliest(peers) != likeliest(&mine));
            }
            if let Some(&next) = tokens.get(at + 1) {
                self.predicted += 1;
                self.ours -= mine[next as usize];
                self.theirs -= peers.map_or(0.0, |peers| peers[next as usize]);
            }
        }
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    let log = sum.ln() + f64::from(most);
    logits.iter().map(|logit| f64::from(*logit) - log).collect()
}

fn likeliest(row: &[f64]) -> Option<usize> {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]))
}

fn perplexity(negative_log_likelihood: f64, positions: usize) -> f64 {
    (negative_log_likelihood / positions.max(1) as f64).exp()
}
