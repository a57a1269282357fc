//! Result file of a `cargo xtask bench` suite.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

/// Results of a suite, with the machine and the date.
#[derive(Debug, Serialize)]
pub struct Report {
    suite: &'static str,
    machine: String,
    /// Start of the run, ISO 8601 in UTC.
    date: String,
    rows: Vec<Row>,
}

/// Measured value beside its peer's; a `ratio` above 1 means that ours is better.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Name of the suite, a dot, the measured quantity; for a comparison, another dot and the peer.
    pub name: String,
    /// Our value.
    pub value: f64,
    /// Unit of both values.
    pub unit: &'static str,
    /// Better direction: `higher` or `lower`.
    pub better: &'static str,
    /// Peer and its method, or the reason why it has no value. `None` for a row without a
    /// comparison.
    pub peer: Option<String>,
    /// Value of the peer.
    pub peer_value: Option<f64>,
    /// Median of the rounds' ratios.
    pub ratio: Option<f64>,
}

impl Report {
    /// Creates an empty report with the current time and this machine.
    ///
    /// # Errors
    ///
    /// Returns an error if `date` cannot be run or its output is not UTF-8.
    pub fn new(suite: &'static str) -> Result<Self> {
        let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]).output()?;
        let date = String::from_utf8(date.stdout)?.trim().to_owned();
        Ok(Self { suite, machine: machine(), date, rows: Vec::new() })
    }

    /// Appends a row.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Writes the report as JSON, and creates the folders above it.
    ///
    /// # Errors
    ///
    /// Returns an error if the file or its folder cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }
}

/// Returns the median, the mean of the two values in the middle if their number is even; sorts the
/// values.
///
/// # Panics
///
/// Panics if `values` is empty.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    }
}

/// Returns the percentile at `share` (0 to 1), by nearest rank; sorts the values.
///
/// # Panics
///
/// Panics if `values` is empty.
pub fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share).round() as usize]
}

/// Returns the number of cores and the name of the processor.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = name.map_or("unknown processor", |(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} x {name}")
}
