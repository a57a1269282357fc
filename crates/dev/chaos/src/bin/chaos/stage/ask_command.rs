//! The command `nsbridge ask`, as a client of a round.

use std::io::{BufRead, BufReader, PipeReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::memory_watch::MemoryWatch;
use super::supervised_process::SupervisedProcess;
use super::{KEYRING, STEP_TIMEOUT, Stage};
use crate::follow::last_run;
use crate::gate::Gate;
use crate::journal::{Journal, What};

impl Stage {
    /// Starts `nsbridge ask` for request `n` of a plan that is in the journal. Its output is a pipe
    /// that is not read before the gate is open. Returns the watch over its memory,
    /// which may grow by `most_kib`.
    pub(crate) fn start_ask(&mut self, n: usize, most_kib: u64) -> Result<MemoryWatch> {
        let program = env::current_exe()?.with_file_name("nsbridge");
        ensure!(program.exists(), "{} does not exist: build nsbridge-cli", program.display());
        let ask = &self.plan.asks[n];
        let arguments = [
            "ask".to_owned(),
            format!("--model={}", self.model),
            "--tenant=chaos".to_owned(),
            format!("--broker={}", self.addresses.text("")),
            format!("--keyring={}", self.dir.join(KEYRING).display()),
            format!("--timeout={}", ask.timeout_ms / 1000),
            "--chat".to_owned(),
            "--json".to_owned(),
            serde_json::to_string(&ask.order)?,
        ];
        let (output, input) = std::io::pipe()?;
        let dir = self.dir.clone();
        let command = move |name: &str| {
            let mut command = Command::new(&program);
            command.args(&arguments).stdin(Stdio::piped()).stdout(input.try_clone()?);
            command.stderr(fs::File::create(dir.join(format!("{name}.log")))?);
            Ok(command)
        };
        let process = SupervisedProcess::start("ask", &self.journal, false, command)?;
        // The command does not tell the id of its request, and its worker does.
        let run =
            self.follow.wait("the run of `nsbridge ask`", STEP_TIMEOUT, |lines| last_run(lines, n));
        let request = run?.request;
        let memory = MemoryWatch::start("ask", most_kib, &process, &self.journal)?;
        self.clients.push(process);
        self.journal.note(What::Asked { n, request: request.clone() })?;
        let (journal, gate) = (Arc::clone(&self.journal), Gate::in_dir(&self.dir));
        self.runtime.spawn(async move {
            gate.opened().await;
            let reading = tokio::task::spawn_blocking(move || {
                if let Err(error) = read(&output, &journal, n, &request) {
                    let (code, message) = ("violation".to_owned(), format!("{error:#}"));
                    let _ = journal.note(What::Failed { n, request, code, message });
                }
            });
            let _ = reading.await;
        });
        Ok(memory)
    }
}

/// Reads the lines of `nsbridge ask --json` to the last one.
fn read(output: &PipeReader, journal: &Journal, n: usize, request: &str) -> Result<()> {
    let (mut index, mut whole) = (0, String::new());
    for line in BufReader::new(output).lines() {
        let line: Value = serde_json::from_str(&line?)?;
        let text = line["text"].as_str().with_context(|| format!("{line} has no text"))?;
        let (request, text) = (request.to_owned(), text.to_owned());
        match line["type"].as_str() {
            Some("piece") => {
                whole.push_str(&text);
                let (choice, finish_reason) = (0, None);
                journal.note(What::Piece { n, request, index, text, choice, finish_reason })?;
                index += 1;
            }
            Some("summary") => {
                ensure!(text == whole, "the summary has another text than the pieces");
                return Ok(journal.note(What::Done { n, request })?);
            }
            _ => bail!("an unexpected line: {line}"),
        }
    }
    bail!("the output ended without a summary")
}
