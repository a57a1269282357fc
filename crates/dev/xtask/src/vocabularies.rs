//! `cargo xtask vocabularies`: compares tokenizers from GGUF files with the `tokenizers` package.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::cargo::{Cargo, root, run as succeeded};
use crate::{machine, output};

/// Program that writes the cases.
const WRITER: &str = "crates/handlers/llama/tests/vocabularies/full.py";

/// Number of texts, and a selection of cases.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Compares only these cases, such as `qwen3`.
    cases: Vec<String>,
    /// Number of texts of each case.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    texts: u32,
}

/// Writes the cases, and compares the ids of each text.
///
/// # Errors
///
/// Returns an error if an id differs, or if a vocabulary could not be fetched.
pub(crate) fn run(cargo: &Cargo, arguments: &Arguments) -> Result<()> {
    let python = machine::vocabularies()?;
    let folder = root().join("target/vocabularies");
    output::step("ids by the tokenizers package");
    let mut command = Command::new(python);
    command.arg(root().join(WRITER)).arg(&folder).arg(arguments.texts.to_string());
    command.args(&arguments.cases);
    ensure!(succeeded(command)?, "the cases were not written; they need pip and npm");
    output::step("ids by GGUF files");
    let mut command = cargo.command(&["run", "--release", "-p", "nsbridge-llama"]);
    command.args(["--features", "testing", "--example", "vocabularies", "--"]).arg(&folder);
    ensure!(succeeded(command)?, "an id differs");
    Ok(())
}
