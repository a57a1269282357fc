//! Configuration of a worker from the options of another program: `nsbridge import-djl` and `import-vllm`.

pub(crate) mod djl;
pub(crate) mod vllm;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use nsbridge_import::Imported;

use crate::failure::note;
use crate::terminal::print;

/// Place of the configuration, and what it may lack.
#[derive(Debug, clap::Args)]
struct Output {
    /// File to write instead of stdout; an existing file is not overwritten.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Overwrites the file of --out.
    #[arg(long, requires = "out")]
    force: bool,
    /// Writes nothing, and exits with code 1, if an option is not carried over or not known.
    #[arg(long)]
    strict: bool,
}

impl Output {
    /// Prints the report, and writes the configuration.
    fn write(&self, imported: &Imported) -> Result<ExitCode> {
        imported.report().iter().for_each(|line| note(line));
        let losses = imported.losses();
        if self.strict && losses > 0 {
            bail!(
                "{losses} options are not carried over, and --strict allows none: nothing was written"
            );
        }
        match &self.out {
            Some(out) => {
                imported.write(out, self.force)?;
                note(&format!("{}: written", out.display()));
            }
            None => print(&imported.text(&std::env::current_dir()?))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
