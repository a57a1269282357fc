//! `cargo xtask fresh`: the artefacts of `cargo xtask dist` on systems without Rust.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::cargo::{self, cache, in_root, root};
use crate::machine;

/// Arguments of `cargo xtask fresh`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Scenarios to run, such as `deb` or `deb-trixie`; all but those from source if none is named.
    scenarios: Vec<String>,
    /// Folder of the artefacts.
    #[arg(long, value_name = "FOLDER", default_value = "target/dist")]
    dist: PathBuf,
}

/// Runs the scenarios. The report is target/fresh/report.json.
///
/// # Errors
///
/// Returns an error if this process does not run as root, if a tool is missing and may not be installed, or
/// if a scenario fails.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let dist = root().join(&arguments.dist);
    ensure!(dist.join("SHA256SUMS").is_file(), "{}: run `cargo xtask dist` first", dist.display());
    machine::fresh()?;
    let mut script = in_root("python3");
    script.arg("crates/dev/xtask/src/fresh/run.py");
    script.arg("--dist").arg(dist).arg("--cache").arg(cache()?.join("fresh"));
    script.arg("--out").arg(root().join("target/fresh")).args(&arguments.scenarios);
    ensure!(cargo::run(script)?, "a scenario failed; it says why above");
    Ok(())
}
