//! Reply with its request, and the replies that a gateway knows.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use nsbridge_protocol::{Fingerprint, RequestId};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::run::{Change, Ending, Run};
use crate::store::{Kept, Record};

/// Replies that a gateway has in memory.
#[derive(Default)]
pub(super) struct Known {
    pub(super) entries: HashMap<RequestId, Arc<Entry>>,
    pub(super) joins: HashMap<[u8; 32], RequestId>,
    /// Replies to lines of batches, by the name of the line.
    pub(super) lines: HashMap<String, HashSet<RequestId>>,
}

/// Reply with its request.
pub(crate) struct Entry {
    pub(crate) run: Arc<Run>,
    pub(crate) record: Record,
    /// True if another replica has it, and this one only knows what is shared of it.
    pub(super) elsewhere: bool,
    /// Name of the replica that received the request, if it is another one.
    pub(super) owner: Mutex<Option<String>>,
    /// Time of the end.
    pub(super) ended: Mutex<Option<Instant>>,
    /// Fingerprint that other replicas know.
    pub(super) marked: Mutex<Option<Fingerprint>>,
}

impl Known {
    pub(super) fn insert(&mut self, entry: &Arc<Entry>) {
        self.entries.insert(entry.record.id, entry.clone());
        self.joins.insert(entry.record.join, entry.record.id);
    }
}

impl Entry {
    pub(super) fn new(record: Record, elsewhere: bool) -> Arc<Self> {
        let run = Run::new(record.id, record.created_at, record.background);
        let run = Arc::new(run.seeded(record.seed, record.clients));
        let (ended, marked, owner) = (Mutex::new(None), Mutex::new(None), Mutex::new(None));
        Arc::new(Self { run, record, elsewhere, owner, ended, marked })
    }

    /// Returns an entry with what was stored of it.
    pub(super) fn restored(kept: Kept, elsewhere: bool) -> Arc<Self> {
        let entry = Self::new(kept.record, elsewhere);
        if kept.ending.is_some() {
            *entry.ended.lock() = Some(Instant::now());
        }
        entry.run.restore(kept.pieces, kept.fingerprint, kept.ending);
        entry
    }

    /// Returns true if a change is the end of a reply that only its connections or this process gave
    /// up.
    pub(super) fn is_interrupted_by(&self, change: &Change<'_>) -> bool {
        let given_up = self.run.is_released() || self.run.is_cancelled() && !self.record.background;
        given_up && matches!(change, Change::Ended(Ending::Failed(_)))
    }

    /// Returns true if this process computes the reply.
    pub(super) fn is_live(&self) -> bool {
        !self.elsewhere && self.run.ending().is_none() && !self.run.is_cancelled()
    }
}

impl fmt::Debug for Entry {
    /// Omits the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("run", &self.run).finish_non_exhaustive()
    }
}
