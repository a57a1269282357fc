//! An engine in a process of its own, which is asked one question after another.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// What can be asked; the answer is a list of numbers.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Question {
    /// Seconds of each of so many steps, each of so many tokens of so many sequences. More than 64
    /// tokens are a prompt: each round begins anew, and only its last logits are wanted.
    Steps { sequences: usize, tokens: usize, rounds: usize },
    /// The logits after eight known tokens.
    Logits,
    /// Of so many requests that come at once, each with a prompt and a reply of so many tokens:
    /// seconds to the first token and for each after it, as means; seconds of all.
    Serve { streams: usize, prompt: usize, tokens: usize },
    /// Seconds to the first token of a prompt of so many tokens and 24 more; and of another one
    /// that begins alike.
    Prefix { tokens: usize },
}

/// A running engine, or why there is none.
pub(crate) struct Engine {
    /// Who, and how.
    pub(crate) about: String,
    /// Behind the rows' names; empty where it is the one to beat.
    pub(crate) suffix: &'static str,
    process: Result<Process, String>,
}

struct Process {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Engine {
    /// Ours, with so many threads on so many ranks.
    pub(crate) fn ours(model: &Path, threads: usize, ranks: usize) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(model).args([threads.to_string(), ranks.to_string()]);
        let process = Ok(Process::start(command).context("starting our engine")?);
        Ok(Self { about: "ours".into(), suffix: "", process })
    }

    /// A peer, a script in `peers/`.
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

    /// What a row says of it.
    pub(crate) fn says(&self) -> String {
        match &self.process {
            Ok(_) => self.about.clone(),
            Err(why) => format!("{}; not measured: {why}", self.about),
        }
    }

    /// The answer; none of a peer that could not be had.
    pub(crate) fn ask(&mut self, question: Question) -> Result<Option<Vec<f64>>> {
        let Ok(process) = &mut self.process else { return Ok(None) };
        match process.ask(question) {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if self.about == "ours" => Err(error),
            Err(error) => {
                self.process = Err(format!("{error:#}"));
                Ok(None)
            }
        }
    }

    /// Leaves it out from now on.
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
        // What it prints before is a library's.
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
