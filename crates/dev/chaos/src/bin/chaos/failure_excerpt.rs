//! Console excerpt of a failed round, for machines that keep no files, such as CI runners.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::journal::{self, Line, What};

/// Maximum number of journal lines shown, from the end.
const EVENTS: usize = 80;

/// Maximum number of lines shown per process log, from the end.
const WORDS: usize = 30;

/// Maximum number of characters shown per line.
const WIDTH: usize = 240;

/// Prints the end of the journal of the round in `dir`, and of each process log.
pub(crate) fn print(dir: &Path) -> Result<()> {
    let lines = journal::read(dir)?;
    let began = lines.first().map_or(0, |line| line.at);
    let events: Vec<_> = lines.iter().filter(|line| is_event(line)).collect();
    eprintln!("-- {}: the end of its journal", dir.display());
    for line in last(&events, EVENTS) {
        let seconds = line.at.saturating_sub(began) as f64 / 1e9;
        eprintln!("{seconds:9.3} {}", cut(&serde_json::to_string(&line.what)?));
    }
    let log = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    let entries = dir.read_dir().with_context(|| format!("reading {}", dir.display()))?;
    let mut logs: Vec<_> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(log).collect();
    logs.sort();
    for path in logs {
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let text = String::from_utf8_lossy(&text);
        let words: Vec<_> = text.lines().collect();
        eprintln!("-- {}: the last of {} lines", path.display(), words.len());
        last(&words, WORDS).iter().for_each(|line| eprintln!("{}", cut(line)));
    }
    Ok(())
}

/// Returns true if a line records a rare event.
fn is_event(line: &Line) -> bool {
    !matches!(
        line.what,
        What::Plan(_)
            | What::Piece { .. }
            | What::Frame { open: None, .. }
            | What::Sample { .. }
            | What::Enqueue { .. }
    )
}

fn last<T>(all: &[T], most: usize) -> &[T] {
    &all[all.len().saturating_sub(most)..]
}

fn cut(line: &str) -> &str {
    let end = line.char_indices().nth(WIDTH).map_or(line.len(), |(at, _)| at);
    &line[..end]
}
