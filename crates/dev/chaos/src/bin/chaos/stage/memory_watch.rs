//! Watch over the peak memory of the processes of a round.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use anyhow::{Context, Result};

use super::Stage;
use super::supervised_process::SupervisedProcess;
use crate::journal::{Journal, What};
use nsbridge_chaos::process::peak_kib;

/// Interval between two looks. The peak of a process that ends between them is that of the last look.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Watch over one process. Its end writes what was seen into the journal.
#[derive(Debug)]
pub(crate) struct MemoryWatch {
    over: Arc<AtomicBool>,
    watch: Option<JoinHandle<()>>,
}

impl Stage {
    /// Watches the memory of a gateway or of the client that was started last, from now on. Its peak may
    /// grow by `most_kib`.
    pub(crate) fn watch_memory(&self, name: &str, most_kib: u64) -> Result<MemoryWatch> {
        let process = self.workers.get(name).map_or_else(|| self.client(), Ok)?;
        MemoryWatch::start(name, most_kib, process, &self.journal)
    }
}

impl MemoryWatch {
    pub(super) fn start(
        name: &str,
        most_kib: u64,
        process: &SupervisedProcess,
        journal: &Arc<Journal>,
    ) -> Result<Self> {
        let pid = process.pid().with_context(|| format!("{name} has ended"))?;
        let (name, journal, over) = (name.to_owned(), journal.clone(), Arc::default());
        let first_kib = peak_kib(pid)?;
        let ended: Arc<AtomicBool> = Arc::clone(&over);
        let watch = thread::spawn(move || {
            let mut last_kib = first_kib;
            while !ended.load(Ordering::Relaxed) {
                // The process may have ended by itself.
                let Ok(kib) = peak_kib(pid) else { break };
                last_kib = kib;
                sleep(LOOK_EVERY);
            }
            let _ = journal.note(What::Peak { name, first_kib, last_kib, most_kib });
        });
        Ok(Self { over, watch: Some(watch) })
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}
