//! What every process that the driver starts has in common.

use std::io::{BufRead, Read, stdin};
use std::thread;

use anyhow::{Context, Result};

/// Ends this process when its standard input ends: when whoever started it is gone, however it went.
pub(crate) fn leave_with_the_starter() {
    thread::spawn(|| {
        let _ = stdin().lock().read_to_end(&mut Vec::new());
        leave();
    });
}

/// Waits for the driver's word.
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
