//! Recorded launches of steps, by the shape of the step.

#![expect(unsafe_code, reason = "recorded launches have addresses of buffers")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nsbridge_gpu::Result;
use nsbridge_gpu::device::{Device, Graph};

/// Numbers of rows for which launches are recorded. A step runs the launches of the next larger one.
const BUCKETS: [usize; 16] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

/// Largest number of shapes whose launches are kept: each takes some megabytes.
const KEPT: usize = 64;

/// Shape of a step, on which its launches depend besides its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Launches {
    /// Largest number of rows.
    pub(super) rows: usize,
    /// Largest number of rows that need logits.
    pub(super) wanted: usize,
    /// Largest number of rows of an item of attention.
    pub(super) rows_at_once: usize,
}

impl Launches {
    /// Returns the launches to record for a step, or `None` if it is too large for it to pay.
    pub(super) fn bucket(self) -> Option<Self> {
        let next = |rows: usize| BUCKETS.into_iter().find(|bucket| *bucket >= rows);
        let wanted = if self.wanted == 0 { 0 } else { next(self.wanted)? };
        Some(Self { rows: next(self.rows)?, wanted, ..self })
    }
}

/// Recorded launches. They are for buffers in their present places.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    /// `None` for launches that ran once: those of a rare shape are not worth recording.
    graphs: HashMap<Launches, Option<Box<dyn Graph>>>,
    /// False if launches are not to be recorded.
    recorded: Arc<AtomicBool>,
}

impl Graphs {
    pub(super) fn new(recorded: Arc<AtomicBool>) -> Self {
        Self { recorded, ..Self::default() }
    }

    /// Forgets all launches, before a buffer is freed.
    pub(super) fn clear(&mut self) {
        self.graphs.clear();
    }

    /// Runs recorded launches; `record` enqueues those that are recorded first.
    pub(super) fn run(
        &mut self,
        launches: Launches,
        device: &Arc<dyn Device>,
        record: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        if !self.recorded.load(Ordering::Relaxed) {
            return record();
        }
        let graph = match self.graphs.get_mut(&launches) {
            // The first time.
            None => {
                if self.graphs.len() >= KEPT {
                    self.graphs.clear();
                }
                self.graphs.insert(launches, None);
                return record();
            }
            Some(Some(graph)) => graph,
            Some(empty) => empty.insert(device.capture(record)?),
        };
        // SAFETY: the launches are forgotten before their buffers are freed.
        unsafe { graph.launch() }
    }
}
