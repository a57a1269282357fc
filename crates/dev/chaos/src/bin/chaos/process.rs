//! Functions for the processes that the driver starts, and for reading their resource use.

use std::io::{BufRead, stdin};

use anyhow::{Context, Result};
use nsbridge_chaos::process::resident_kib;

/// Waits for the driver's start signal, a line on standard input.
pub(crate) fn wait_for_the_driver() -> Result<()> {
    let mut line = String::new();
    stdin().lock().read_line(&mut line).context("reading the driver's word")?;
    anyhow::ensure!(!line.is_empty(), "the driver is gone");
    Ok(())
}

/// Returns the resident memory of a process in KiB and its number of open file descriptors.
pub(crate) fn held(pid: u32) -> Result<(u64, usize)> {
    Ok((resident_kib(pid)?, std::fs::read_dir(format!("/proc/{pid}/fd"))?.count()))
}
