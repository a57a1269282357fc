//! Durations that a mutation test changes in the workers and clients of a scenario.

use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Environment variable with one changed duration in seconds: `worker.NAME=N` or `client.NAME=N`.
const VARIABLE: &str = "CHAOS_TIMING";

/// Returns the durations of a worker.
pub(crate) fn of_worker() -> Result<nsbridge::worker::Timing> {
    let mut timing = nsbridge::worker::Timing::default();
    if let Some((name, duration)) = change("worker")? {
        match &*name {
            "adopt_window" => timing.adopt_window = duration,
            "max_orphan_time" => timing.max_orphan_time = duration,
            "max_publish_outage" => timing.max_publish_outage = duration,
            _ => bail!("{VARIABLE} cannot change `{name}` of a worker"),
        }
    }
    Ok(timing)
}

/// Returns the durations of a client.
pub(crate) fn of_client() -> Result<nsbridge_client::Timing> {
    let mut timing = nsbridge_client::Timing::default();
    if let Some((name, duration)) = change("client")? {
        match &*name {
            "silent_after_open" => timing.silent_after_open = duration,
            _ => bail!("{VARIABLE} cannot change `{name}` of a client"),
        }
    }
    Ok(timing)
}

/// Returns the change for this kind of process, if there is one.
#[expect(clippy::disallowed_methods, reason = "the mutation test sets it for the driver")]
fn change(kind: &str) -> Result<Option<(String, Duration)>> {
    let Ok(text) = std::env::var(VARIABLE) else { return Ok(None) };
    let (field, seconds) = text.split_once('=').with_context(|| unclear(&text))?;
    let (process, name) = field.split_once('.').with_context(|| unclear(&text))?;
    let seconds = seconds.parse().with_context(|| unclear(&text))?;
    match process {
        _ if process == kind => Ok(Some((name.to_owned(), Duration::from_secs(seconds)))),
        "worker" | "client" => Ok(None),
        _ => bail!(unclear(&text)),
    }
}

fn unclear(text: &str) -> String {
    format!("{VARIABLE} is {text:?}, not `worker.NAME=SECONDS` or `client.NAME=SECONDS`")
}
