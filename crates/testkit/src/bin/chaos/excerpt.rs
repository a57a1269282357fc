//! What a failed round says where its folder cannot be read, as on a machine that tests and forgets.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::journal::{self, Line, What};

/// Lines of the journal that are shown, from its end.
const EVENTS: usize = 80;

/// Lines of each process's log that are shown, from its end.
const WORDS: usize = 30;

/// Columns of a line that are shown.
const WIDTH: usize = 240;

/// Prints what happened last in the round in `dir`: to whom, and what the processes said.
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

/// Whether a line tells of something that happens seldom.
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
