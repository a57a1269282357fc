//! Configuration with the report of its making, and the file of it.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use tempfile::{NamedTempFile, TempDir};

use crate::draft::Draft;
use crate::report::{Fate, Report};

/// Configuration with the report of its making.
#[derive(Debug)]
pub struct Imported {
    /// Configuration.
    pub draft: Draft,
    /// Report.
    pub report: Report,
}

impl Imported {
    /// Ends a configuration with the options that it does not have.
    pub fn new(mut draft: Draft, report: Report) -> Self {
        end(&mut draft, &report, "At the gateway:", |fate| matches!(fate, Fate::AtGateway(_)));
        end(&mut draft, &report, "Not carried over:", Fate::is_loss);
        Self { draft, report }
    }

    /// Returns the report: a line for each option, and what is left to do.
    pub fn report(&self) -> Vec<String> {
        self.report.lines()
    }

    /// Returns the number of options that are not carried over or not known.
    pub fn losses(&self) -> usize {
        self.report.losses()
    }

    /// Returns the text of a configuration in this folder.
    pub fn text(&self, folder: &Path) -> String {
        self.draft.text(folder)
    }

    /// Writes the file at once, readable by its owner alone: a person will add the broker's password.
    ///
    /// # Errors
    ///
    /// Returns an error if the file exists and is not to be overwritten, or if it cannot be written.
    pub fn write(&self, out: &Path, force: bool) -> Result<()> {
        let absolute = std::path::absolute(out).context("finding the current folder")?;
        let folder = absolute.parent().unwrap_or(Path::new("/"));
        let shown = out.display();
        let failed = || format!("cannot write {shown}");
        let mut file = NamedTempFile::new_in(folder).with_context(failed)?;
        file.write_all(self.text(folder).as_bytes()).with_context(failed)?;
        let kept = if force { file.persist(&absolute) } else { file.persist_noclobber(&absolute) };
        match kept {
            Ok(_) => Ok(()),
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => {
                bail!("{shown} is there already: --force overwrites it")
            }
            Err(error) => Err(error.error).with_context(failed),
        }
    }
}

impl Draft {
    /// Writes the file into a folder of its own, with places that are on this machine, so that it can be held
    /// against the worker's own types.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder or the file cannot be written.
    pub fn write_to_check(&self) -> Result<(TempDir, PathBuf)> {
        let dir = tempfile::tempdir().context("making a folder for the check")?;
        let file = dir.path().join("worker.toml");
        fs::write(&file, self.text_to_check(dir.path()))
            .context("writing the file for the check")?;
        Ok((dir, file))
    }
}

/// Adds the options with such a fate to the end of a configuration, if there are any.
fn end(draft: &mut Draft, report: &Report, title: &str, is_here: impl Fn(&Fate) -> bool) {
    let mut entries = report.entries.iter().filter(|entry| is_here(&entry.fate)).peekable();
    if entries.peek().is_some() {
        draft.end(title);
    }
    entries.for_each(|entry| draft.end(format!("{}: {}", entry.name, entry.fate.text())));
}
