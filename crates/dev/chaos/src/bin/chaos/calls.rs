//! Record of the calls of a worker's handler in the journal.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::panicking;

use nsbridge_handler::{Error, JobInfo, Result};

use crate::journal::{Journal, Run, What};

/// Recorder of the calls of a handler.
#[derive(Debug)]
pub(crate) struct Runs {
    journal: Journal,
    worker: String,
    calls: AtomicU64,
}

impl Runs {
    pub(crate) fn in_dir(dir: &Path, worker: String) -> Result<Self> {
        let journal = Journal::in_dir(dir).map_err(Error::fatal)?;
        Ok(Self { journal, worker, calls: AtomicU64::new(0) })
    }

    pub(crate) fn begin(&self, n: usize, info: &JobInfo, resumed: usize) -> Call<'_> {
        let run = Run {
            pid: std::process::id(),
            call: self.calls.fetch_add(1, Ordering::Relaxed),
            worker: self.worker.clone(),
            request: info.id.to_string(),
            attempt: info.attempt.0,
        };
        let _ = self.journal.note(What::Start { run: run.clone(), n, resumed });
        Call { journal: &self.journal, run, n, pieces: resumed, how: "dropped".to_owned() }
    }
}

/// Guard that records the end of a call however it ends, except by the death of the process.
pub(crate) struct Call<'a> {
    journal: &'a Journal,
    run: Run,
    n: usize,
    pub(crate) pieces: usize,
    pub(crate) how: String,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let how = if panicking() { "panicked".to_owned() } else { self.how.clone() };
        let (run, n, pieces) = (self.run.clone(), self.n, self.pieces);
        let _ = self.journal.note(What::End { run, n, pieces, how });
    }
}
