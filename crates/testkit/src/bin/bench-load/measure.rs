//! What a client of the bench costs: its own processor time, its own memory, the time on the wall.

use std::time::Instant;

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// How one load went.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Outcome {
    pub(crate) cpu_s: f64,
    pub(crate) wall_s: f64,
    /// The most memory that the process ever had resident.
    pub(crate) peak_mb: f64,
    /// Of the tensors that can be used now.
    pub(crate) bytes: u64,
    /// The sum of the tensors' words, whatever their order.
    pub(crate) words: u64,
}

/// Runs `load`, then looks at what it cost, and only then at what it gave: pieces of tensors, each
/// of whole words.
pub(crate) fn measure<T: AsRef<[u8]>>(load: impl FnOnce() -> Result<Vec<T>>) -> Result<Outcome> {
    let (cpu, wall) = (cpu_s(), Instant::now());
    let pieces = load()?;
    let (cpu_s, wall_s) = (cpu_s() - cpu, wall.elapsed().as_secs_f64());
    let peak_mb = peak_mb()?;
    let pieces = || pieces.iter().map(AsRef::as_ref);
    let bytes = pieces().map(|piece| piece.len() as u64).sum();
    let words = pieces().map(sum_of_words).fold(0, u64::wrapping_add);
    Ok(Outcome { cpu_s, wall_s, peak_mb, bytes, words })
}

/// The sum of the words, over any of its ends.
pub(crate) fn sum_of_words(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Of all threads of this process, those that have ended among them.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn peak_mb() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("asking for the memory")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes: f64 = line
        .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .context("/proc/self/status names no VmHWM")?;
    Ok(kilobytes * 1024.0 / 1e6)
}
