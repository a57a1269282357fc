//! Processes that a driver starts: their end with it, and their memory.

use std::io::{Read as _, stdin};
use std::thread;

use anyhow::{Context as _, Result};

/// Exits this process when its standard input closes, because its parent process has ended in
/// whatever way.
pub fn leave_with_the_starter() {
    thread::spawn(|| {
        let _ = stdin().lock().read_to_end(&mut Vec::new());
        leave();
    });
}

#[expect(clippy::exit, reason = "whatever it is doing, nothing may outlive the driver")]
fn leave() -> ! {
    std::process::exit(3)
}

/// Returns the resident memory of a process, in KiB.
///
/// # Errors
///
/// Returns an error if the process has ended.
pub fn resident_kib(pid: u32) -> Result<u64> {
    memory_kib(pid, "VmRSS:")
}

/// Returns the largest resident memory that a process has had so far, in KiB.
///
/// # Errors
///
/// Returns an error if the process has ended.
pub fn peak_kib(pid: u32) -> Result<u64> {
    memory_kib(pid, "VmHWM:")
}

fn memory_kib(pid: u32, field: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let text = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = text.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.with_context(|| format!("/proc/{pid}/status has no {field}"))
}
