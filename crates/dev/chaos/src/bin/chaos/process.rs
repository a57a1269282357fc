//! Functions for the processes that the driver starts, and for reading their resource use.

use std::io::{BufRead, Read, stdin};
use std::thread;

use anyhow::{Context, Result};

/// Exits this process when its standard input closes, because its parent process has ended in
/// whatever way.
pub(crate) fn leave_with_the_starter() {
    thread::spawn(|| {
        let _ = stdin().lock().read_to_end(&mut Vec::new());
        leave();
    });
}

/// Waits for the driver's start signal, a line on standard input.
pub(crate) fn wait_for_the_driver() -> Result<()> {
    let mut line = String::new();
    stdin().lock().read_line(&mut line).context("reading the driver's word")?;
    anyhow::ensure!(!line.is_empty(), "the driver is gone");
    Ok(())
}

#[expect(clippy::exit, reason = "whatever it is doing, nothing may outlive the driver")]
fn leave() -> ! {
    std::process::exit(3)
}

/// Returns the resident memory of a process in KiB and its number of open file descriptors.
pub(crate) fn held(pid: u32) -> Result<(u64, usize)> {
    Ok((memory_kib(pid, "VmRSS:")?, std::fs::read_dir(format!("/proc/{pid}/fd"))?.count()))
}

/// Returns the largest resident memory that a process has had so far, in KiB.
pub(crate) fn peak_kib(pid: u32) -> Result<u64> {
    memory_kib(pid, "VmHWM:")
}

fn memory_kib(pid: u32, field: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let text = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = text.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.with_context(|| format!("/proc/{pid}/status has no {field}"))
}
