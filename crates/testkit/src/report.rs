//! The file that a suite of `cargo xtask bench` leaves behind.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

/// What was measured, on what, when.
#[derive(Debug, Serialize)]
pub struct Report {
    suite: &'static str,
    machine: String,
    /// As ISO 8601 writes it, UTC.
    date: String,
    rows: Vec<Row>,
}

/// One figure beside its peer's; a `ratio` above 1 means that ours is better.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The suite's name, a dot, what was measured; behind another dot, beside whom.
    pub name: String,
    /// Ours.
    pub value: f64,
    /// Of both values.
    pub unit: &'static str,
    /// `higher` or `lower`.
    pub better: &'static str,
    /// Who, and how; or why there is no value of theirs. `None` where nobody compares.
    pub peer: Option<String>,
    /// Theirs.
    pub peer_value: Option<f64>,
    /// The median of the rounds' ratios.
    pub ratio: Option<f64>,
}

impl Report {
    /// An empty one, of now and here.
    ///
    /// # Errors
    ///
    /// The machine does not say what day it is.
    pub fn new(suite: &'static str) -> Result<Self> {
        let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]).output()?;
        let date = String::from_utf8(date.stdout)?.trim().to_owned();
        Ok(Self { suite, machine: machine(), date, rows: Vec::new() })
    }

    /// One more row.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Writes the file, and the folders above it.
    ///
    /// # Errors
    ///
    /// It could not be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }
}

/// The value in the middle.
pub fn median(values: &mut [f64]) -> f64 {
    percentile(values, 0.5)
}

/// The value below which this share of them lies.
pub fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share).round() as usize]
}

/// The processor's name and how many of it there are.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = name.map_or("unknown processor", |(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} x {name}")
}
