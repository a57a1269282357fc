//! Cost of a client: processor time, memory and wall time of its own process.

use std::time::Instant;

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Result of one load.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Outcome {
    pub(crate) cpu_s: f64,
    pub(crate) wall_s: f64,
    /// Peak resident memory of the process, in MB.
    pub(crate) peak_mb: f64,
    /// Size of the loaded tensors in bytes.
    pub(crate) bytes: u64,
    /// Wrapping sum of the tensors' 64-bit words, independent of their order.
    pub(crate) words: u64,
}

/// Runs `load`, records its cost, and then sums its result, which consists of pieces of whole
/// words.
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

/// Returns the wrapping sum of the 64-bit words.
pub(crate) fn sum_of_words(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Returns the processor time of all threads of this process in seconds, ended threads included.
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
