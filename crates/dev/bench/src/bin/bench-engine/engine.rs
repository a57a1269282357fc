//! Engine in a process of its own that answers one question after another.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nsbridge_llama::Arithmetic;
use serde::{Deserialize, Serialize};

/// Question to an engine; the answer is a list of numbers.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Question {
    /// Duration in seconds of each of `rounds` steps, each with `tokens` tokens of each of
    /// `sequences` sequences. More than 64 tokens are a prompt: each round restarts the sequences,
    /// and only the last logits are computed.
    Steps { sequences: usize, tokens: usize, rounds: usize },
    /// Runs a prompt of one sequence up to each of these lengths, in steps of 256 tokens. For each
    /// length the answer has the mean duration in seconds of the last two of these steps and of a
    /// step of one token.
    Contexts { lengths: [usize; LENGTHS] },
    /// Logits after eight known tokens.
    Logits,
    /// Concurrent requests, each with a prompt of `prompt` tokens and a reply of `tokens` tokens.
    /// The answer is the mean time to first token, the mean time per output token, and the total
    /// time, in seconds.
    Serve { streams: usize, prompt: usize, tokens: usize },
    /// Time to first token, in seconds, of a prompt of `tokens` and 24 more tokens, and of a second
    /// prompt that shares the first `tokens` tokens.
    Prefix { tokens: usize },
}

/// Number of contexts in a question.
pub(crate) const LENGTHS: usize = 6;

/// Suffix of the rows of another build of this benchmark.
const BEFORE: &str = ".vs_before";

/// Running engine, or the reason why there is none.
pub(crate) struct Engine {
    /// Name and method.
    pub(crate) about: String,
    /// Suffix of the row names; empty for the main peer.
    pub(crate) suffix: &'static str,
    process: Result<Process, String>,
}

struct Process {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Engine {
    /// Starts our engine with `threads` threads and `ranks` ranks.
    pub(crate) fn ours(
        model: &Path,
        threads: usize,
        ranks: usize,
        arithmetic: Arithmetic,
    ) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(model).args([threads.to_string(), ranks.to_string()]);
        command.args((arithmetic == Arithmetic::Native).then_some("native"));
        let process = Ok(Process::start(command).context("starting our engine")?);
        Ok(Self { about: "ours".into(), suffix: "", process })
    }

    /// Starts the engine of another build of this benchmark.
    pub(crate) fn before(binary: &Path, model: &Path, threads: usize) -> Result<Self> {
        let mut command = Command::new(binary);
        command.arg("serve").arg(model).args([threads.to_string(), "1".to_owned()]);
        let process = Process::start(command)
            .with_context(|| format!("starting {} as the engine before", binary.display()))?;
        let about = format!("the build {}", binary.display());
        Ok(Self { about, suffix: BEFORE, process: Ok(process) })
    }

    /// Starts a peer, a script in `peers/`.
    pub(crate) fn peer(
        about: &str,
        suffix: &'static str,
        script: &str,
        arguments: &[&str],
    ) -> Self {
        let process = python().and_then(|python| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/bench-engine/peers");
            let mut command = Command::new(python);
            command.arg(folder.join(script)).args(arguments).env("PYTHONDONTWRITEBYTECODE", "1");
            Process::start(command)
        });
        let process = process.map_err(|error| format!("{error:#}"));
        Self { about: about.into(), suffix, process }
    }

    /// Returns the description for a row, with the reason if the engine was not measured.
    pub(crate) fn says(&self) -> String {
        match &self.process {
            Ok(_) => self.about.clone(),
            Err(why) => format!("{}; not measured: {why}", self.about),
        }
    }

    /// Asks a question. Returns `None` for a peer that is missing or has failed; a build of this
    /// project must answer.
    pub(crate) fn ask(&mut self, question: Question) -> Result<Option<Vec<f64>>> {
        let Ok(process) = &mut self.process else { return Ok(None) };
        match process.ask(question) {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if self.about == "ours" || self.suffix == BEFORE => Err(error),
            Err(error) => {
                self.process = Err(format!("{error:#}"));
                Ok(None)
            }
        }
    }

    /// Excludes the engine from now on.
    pub(crate) fn refuse(&mut self, why: String) {
        self.process = Err(why);
    }
}

impl Process {
    fn start(mut command: Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let questions = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        let mut process = Self { child, questions, answers };
        // Lines before `ready` are output of libraries.
        while process.line()?.trim() != "ready" {}
        Ok(process)
    }

    fn ask(&mut self, question: Question) -> Result<Vec<f64>> {
        let questions = self.questions.as_mut().context("it takes questions until it ends")?;
        writeln!(questions, "{}", serde_json::to_string(&question)?)?;
        Ok(serde_json::from_str(&self.line()?)?)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.answers.read_line(&mut line)? > 0, "it ended; it says why above");
        Ok(line)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.questions.take());
        let _ = self.child.wait();
    }
}

fn python() -> Result<String> {
    if let Ok(why) = std::env::var("NSBRIDGE_BENCH_NO_PEERS") {
        bail!("{why}");
    }
    let python = std::env::var("NSBRIDGE_BENCH_PYTHON");
    python.context("NSBRIDGE_BENCH_PYTHON names no Python: run `cargo xtask bench engine`")
}
