//! `cargo xtask templates`: compares chat templates with transformers.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::cargo::{Cargo, root, run as succeeded};
use crate::{machine, output};

/// Program that writes the cases.
const WRITER: &str = "crates/handlers/llama/tests/templates/record.py";

/// Writes the cases, and compares each text.
///
/// # Errors
///
/// Returns an error if a text differs, or if the templates could not be fetched.
pub(crate) fn run(cargo: &Cargo) -> Result<()> {
    let python = machine::templates()?;
    let folder = root().join("target/templates");
    output::step("texts by transformers");
    let mut command = Command::new(python);
    command.arg(root().join(WRITER)).arg(&folder);
    ensure!(succeeded(command)?, "the cases were not written; they need pip");
    output::step("texts by nsbridge");
    let mut command = cargo.command(&["run", "--release", "-p", "nsbridge-llama"]);
    command.args(["--features", "testing", "--example", "templates", "--"]).arg(&folder);
    ensure!(succeeded(command)?, "a text differs");
    Ok(())
}
