//! Reader that follows the journal of a running round, so that a scenario can react to events.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nsbridge_handler::Stop;

use crate::journal::{FILE, Line, Run, What};

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Incremental reader of a growing journal.
#[derive(Debug)]
pub(crate) struct Follow {
    file: File,
    rest: Vec<u8>,
    /// Lines read so far, in the order in which they were written.
    pub(crate) lines: Vec<Line>,
}

impl Follow {
    pub(crate) fn in_dir(dir: &Path) -> Result<Self> {
        let file = File::open(dir.join(FILE)).context("opening the journal")?;
        Ok(Self { file, rest: Vec::new(), lines: Vec::new() })
    }

    /// Waits until `found` returns a value for the lines so far; `what` describes it in the error
    /// message.
    pub(crate) fn wait<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut found: impl FnMut(&[Line]) -> Option<T>,
    ) -> Result<T> {
        let began = Instant::now();
        loop {
            self.read()?;
            if let Some(found) = found(&self.lines) {
                return Ok(found);
            }
            if began.elapsed() > limit {
                bail!("waited {} s in vain for {what}", limit.as_secs());
            }
            sleep(LOOK_EVERY);
        }
    }

    /// Reads the lines that were written since the last read.
    pub(crate) fn read(&mut self) -> Result<()> {
        self.file.read_to_end(&mut self.rest).context("reading the journal")?;
        let Some(last) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        let whole: Vec<u8> = self.rest.drain(..=last).collect();
        for line in whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            self.lines.push(serde_json::from_slice(line).context("a line of the journal")?);
        }
        Ok(())
    }
}

/// Requests that wait in a worker to run alone.
#[derive(Debug, Default)]
pub(crate) struct WaitingAlone {
    /// Process and identifier of each request.
    waiting: BTreeSet<(u32, String)>,
}

impl WaitingAlone {
    /// Takes the next event of the journal. Returns true if it is the end of a process in which
    /// requests waited.
    pub(crate) fn follow(&mut self, what: &What) -> bool {
        match what {
            What::Alone { pid, request } => {
                self.waiting.insert((*pid, request.clone()));
            }
            What::Start { run, .. } => {
                self.waiting.remove(&(run.pid, run.request.clone()));
            }
            What::Gone { pid, .. } => {
                return self.waiting.extract_if(.., |(of, _)| of == pid).count() > 0;
            }
            _ => {}
        }
        false
    }

    /// Returns true if a request waits in this process.
    pub(crate) fn any_in(&self, pid: u32) -> bool {
        self.waiting.iter().any(|(of, _)| *of == pid)
    }
}

/// Returns the number of pieces that callers of request `n` received, over all clients.
pub(crate) fn pieces(lines: &[Line], n: usize) -> usize {
    let of = |line: &&Line| matches!(&line.what, What::Piece { n: other, .. } if *other == n);
    lines.iter().filter(of).count()
}

/// Returns true if the caller of request `n` received the end of the reply.
pub(crate) fn is_over(lines: &[Line], n: usize) -> bool {
    lines.iter().any(|line| ends(&line.what) == Some(n))
}

/// Returns the index of the request that this event ends for its caller.
pub(crate) fn ends(what: &What) -> Option<usize> {
    match what {
        What::Done { n, .. } | What::Failed { n, .. } | What::Cancelled { n, .. } => Some(*n),
        _ => None,
    }
}

/// Returns the latest run of request `n` that is still running, according to the journal.
pub(crate) fn running(lines: &[Line], n: usize) -> Option<Run> {
    let mut latest = None;
    for line in lines {
        match &line.what {
            What::Start { run, n: other, .. } if *other == n => latest = Some(run.clone()),
            What::End { run, .. } if latest.as_ref() == Some(run) => latest = None,
            What::Gone { pid, .. } => latest = latest.filter(|run| run.pid != *pid),
            _ => {}
        }
    }
    latest
}

/// Returns the run of request `n` that began last.
pub(crate) fn last_run(lines: &[Line], n: usize) -> Option<Run> {
    lines.iter().rev().find_map(|line| match &line.what {
        What::Start { run, n: other, .. } if *other == n => Some(run.clone()),
        _ => None,
    })
}

/// Returns the number of runs of these requests.
pub(crate) fn runs(lines: &[Line], asks: &[usize]) -> usize {
    let of = |line: &&Line| matches!(&line.what, What::Start { n, .. } if asks.contains(n));
    lines.iter().filter(of).count()
}

/// Returns true if the caller of one of these requests has an id.
pub(crate) fn has_id(lines: &[Line], asks: &[usize]) -> bool {
    lines.iter().any(|line| matches!(&line.what, What::Asked { n, .. } if asks.contains(n)))
}

/// Returns true if a run of request `n` emitted all its pieces.
pub(crate) fn was_said(lines: &[Line], n: usize) -> bool {
    let said =
        |what: &What| matches!(what, What::End { n: other, how, .. } if *other == n && how == "ok");
    lines.iter().any(|line| said(&line.what))
}

/// Returns true if a run that ended with `how` was stopped because its client was gone.
pub(crate) fn client_was_gone(how: &str) -> bool {
    how == Stop::ClientGone.to_string()
}

/// Returns true if a run that ended with `how` was canceled by its client.
pub(crate) fn was_canceled(how: &str) -> bool {
    how == Stop::Cancelled.to_string()
}

/// Returns true if a run of request `n` was stopped because its client canceled it.
pub(crate) fn was_stopped(lines: &[Line], n: usize) -> bool {
    let stopped = |what: &What| matches!(what, What::End { n: other, how, .. } if *other == n && was_canceled(how));
    lines.iter().any(|line| stopped(&line.what))
}

/// Returns true if this process has subscribed to its queue.
pub(crate) fn takes(lines: &[Line], pid: u32) -> bool {
    lines.iter().any(|line| matches!(line.what, What::Taking { pid: other } if other == pid))
}

/// Returns the address at which this gateway's process takes requests.
pub(crate) fn serves(lines: &[Line], pid: u32) -> Option<SocketAddr> {
    lines.iter().find_map(|line| match &line.what {
        What::Serving { pid: other, address } if *other == pid => address.parse().ok(),
        _ => None,
    })
}

/// Returns true if a process with this name has ended with success.
pub(crate) fn left_in_order(lines: &[Line], name: &str) -> bool {
    left_with(lines, name, "exit status: 0")
}

/// Returns true if a process with this name has ended with the status `how`.
pub(crate) fn left_with(lines: &[Line], name: &str, how: &str) -> bool {
    let left = |what: &What| matches!(what, What::Gone { name: other, status, .. } if other == name && status == how);
    lines.iter().any(|line| left(&line.what))
}

/// Returns true if a process with this name has ended at least this many times.
pub(crate) fn gone(lines: &[Line], name: &str, times: usize) -> bool {
    let of = |line: &&Line| matches!(&line.what, What::Gone { name: other, .. } if other == name);
    lines.iter().filter(of).count() >= times
}
