//! Scheduler of a load: one schedule over all files of a model.
//!
//! Chunks are fetched concurrently in the order in which their extents (ranges of files that a
//! reader needs) are wanted, as far ahead of the reader as the memory limit allows. An extent that
//! a reader waits for goes first.

mod plan;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use nsbridge_handler::buffer::{Filling, Segment};
use nsbridge_handler::source::Stream;
use nsbridge_handler::{Buffer, Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio_util::sync::CancellationToken;

pub(crate) use self::plan::Plan;
use self::plan::Stretch;
use crate::chunk_writer::{ChunkWriter, Destination};
use crate::contents::Contents;
use crate::error::{Failure, StoreError};
use crate::fetch::Chunk;

/// Running load. Dropping it ends the load.
pub(crate) struct Load {
    shared: Arc<Shared>,
    /// Cancels the fetching tasks.
    ended: CancellationToken,
}

struct Shared {
    contents: Arc<Contents>,
    plan: Plan,
    memory: u64,
    state: Mutex<State>,
    /// Notified when an extent is ready or the load has failed.
    ready: Condvar,
    /// Notified when another chunk may be started.
    work: Notify,
}

struct State {
    extents: Vec<Progress>,
    /// True for each chunk that was started.
    begun: Vec<bool>,
    /// Index below which all chunks were started.
    next: usize,
    /// Chunks of extents that a reader waits for.
    urgent: VecDeque<usize>,
    /// Bytes of extents that are being filled or not taken yet.
    held: u64,
    failed: Option<Arc<StoreError>>,
}

enum Progress {
    Waiting,
    /// Some of its chunks are being fetched. The segments of the others are kept here, by their
    /// position in the extent.
    Filling {
        filling: Filling,
        segments: Vec<Option<Segment>>,
        missing: usize,
    },
    Ready(Buffer),
    Taken,
}

impl Load {
    /// Starts fetching on this runtime.
    pub(crate) fn start(
        runtime: &Handle,
        contents: Arc<Contents>,
        plan: Plan,
        memory: u64,
    ) -> Self {
        let state = State {
            extents: plan.extents.iter().map(|_| Progress::Waiting).collect(),
            begun: vec![false; plan.chunks.len()],
            next: 0,
            urgent: VecDeque::new(),
            held: 0,
            failed: None,
        };
        let (state, ready, work) = (Mutex::new(state), Condvar::new(), Notify::new());
        let shared = Arc::new(Shared { contents, plan, memory, state, ready, work });
        let ended = CancellationToken::new();
        runtime.spawn(
            ended.clone().run_until_cancelled_owned(dispatch(shared.clone(), ended.clone())),
        );
        Self { shared, ended }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Load({} chunks)", self.shared.plan.chunks.len())
    }
}

impl Stream for Load {
    fn take(&self, extent: usize) -> Result<Buffer> {
        let shared = &*self.shared;
        let mut state = shared.lock();
        let mut asked = false;
        loop {
            if let Some(error) = &state.failed {
                return Err(Error::fatal(error.clone()));
            }
            match &mut state.extents[extent] {
                place @ Progress::Ready(_) => {
                    let taken = std::mem::replace(place, Progress::Taken);
                    let Progress::Ready(buffer) = taken else { continue };
                    state.held -= buffer.len() as u64;
                    shared.work.notify_one();
                    return Ok(buffer);
                }
                Progress::Taken => return Err(Error::fatal("a part of a model was taken twice")),
                Progress::Waiting | Progress::Filling { .. } if !asked => {
                    asked = true;
                    shared.ask_for(&mut state, extent)?;
                }
                Progress::Waiting | Progress::Filling { .. } => {
                    shared.ready.wait(&mut state);
                }
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Moves the chunks of an extent to the front of the schedule.
    fn ask_for(&self, state: &mut State, extent: usize) -> Result<()> {
        let wanted = &self.plan.extents[extent];
        if wanted.chunks.is_empty() {
            let (filling, _) = Buffer::filled_by(0, wanted.align, &[])?;
            let empty = filling.finish().map_err(|_| Error::fatal("an empty tensor was not"))?;
            state.extents[extent] = Progress::Ready(empty);
            return Ok(());
        }
        let not_begun = wanted.chunks.iter().filter(|&&chunk| !state.begun[chunk]);
        state.urgent.extend(not_begun);
        self.work.notify_one();
        Ok(())
    }

    /// Returns the next chunk to fetch and its writer, if a chunk is left and the memory limit allows
    /// it.
    fn next(&self, state: &mut State) -> Result<Option<(usize, ChunkWriter)>> {
        while let Some(chunk) = state.urgent.pop_front() {
            if !state.begun[chunk] {
                return self.begin(state, chunk).map(Some);
            }
        }
        while state.begun.get(state.next) == Some(&true) {
            state.next += 1;
        }
        let chunk = state.next;
        if chunk == self.plan.chunks.len() {
            return Ok(None);
        }
        let new = self.plan.chunks[chunk].stretches.iter().filter_map(|stretch| match stretch {
            Stretch::Extent { extent, .. }
                if matches!(state.extents[*extent], Progress::Waiting) =>
            {
                Some(self.plan.extents[*extent].len)
            }
            _ => None,
        });
        let more: u64 = new.sum();
        if more > 0 && state.held > 0 && state.held + more > self.memory {
            return Ok(None);
        }
        self.begin(state, chunk).map(Some)
    }

    fn begin(&self, state: &mut State, chunk: usize) -> Result<(usize, ChunkWriter)> {
        state.begun[chunk] = true;
        let planned = &self.plan.chunks[chunk];
        let mut pieces = Vec::with_capacity(planned.stretches.len());
        for stretch in &planned.stretches {
            pieces.push(match *stretch {
                Stretch::Skip(len) => Destination::Skip(len),
                Stretch::Extent { extent, part } => {
                    Destination::Into(self.segment(state, extent, part)?)
                }
            });
        }
        let hasher = self.contents.hasher(planned.file, planned.number);
        Ok((chunk, ChunkWriter::new(pieces, hasher)))
    }

    fn segment(&self, state: &mut State, extent: usize, part: usize) -> Result<Segment> {
        if matches!(state.extents[extent], Progress::Waiting) {
            let wanted = &self.plan.extents[extent];
            let len = usize::try_from(wanted.len).map_err(Error::fatal)?;
            let (filling, segments) = Buffer::filled_by(len, wanted.align, &wanted.cuts)?;
            let missing = wanted.chunks.len();
            let segments = segments.into_iter().map(Some).collect();
            state.extents[extent] = Progress::Filling { filling, segments, missing };
            state.held += wanted.len;
        }
        match &mut state.extents[extent] {
            Progress::Filling { segments, .. } => segments[part].take(),
            _ => None,
        }
        .ok_or_else(|| Error::fatal("two chunks were to fill the same bytes"))
    }

    fn finish(&self, chunk: usize, fetched: std::result::Result<ChunkWriter, StoreError>) {
        let mut state = self.lock();
        match fetched {
            // The segments are dropped with the writer, which lets the buffers be finished.
            Ok(writer) => drop(writer),
            Err(error) => {
                state.failed.get_or_insert(Arc::new(error));
                self.ready.notify_all();
                return;
            }
        }
        for stretch in &self.plan.chunks[chunk].stretches {
            let Stretch::Extent { extent, .. } = *stretch else { continue };
            let place = &mut state.extents[extent];
            let Progress::Filling { missing, .. } = place else { continue };
            *missing -= 1;
            if *missing == 0
                && let Progress::Filling { filling, segments, .. } =
                    std::mem::replace(place, Progress::Taken)
            {
                drop(segments);
                match filling.finish() {
                    Ok(buffer) => *place = Progress::Ready(buffer),
                    Err(_) => {
                        state.failed.get_or_insert(Arc::new(StoreError::GivenUp));
                    }
                }
            }
        }
        self.ready.notify_all();
        self.work.notify_one();
    }

    fn fail(&self, error: StoreError) {
        self.lock().failed.get_or_insert(Arc::new(error));
        self.ready.notify_all();
    }

    fn chunk(&self, index: usize) -> Chunk {
        let planned = &self.plan.chunks[index];
        self.contents.chunk(planned.file, planned.number, planned.range.clone())
    }
}

/// Guard that fails the load if a task panics or its runtime shuts down. Without it a waiting
/// reader would hang.
struct Duty(Option<Arc<Shared>>);

impl Duty {
    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.fail(StoreError::GivenUp);
        }
    }
}

/// Starts chunk after chunk, as many at once as the store's semaphore permits.
async fn dispatch(shared: Arc<Shared>, ended: CancellationToken) {
    let duty = Duty(Some(shared.clone()));
    let gate = shared.contents.fetcher().gate.clone();
    loop {
        let work = shared.work.notified();
        let Ok(permit) = gate.clone().acquire_owned().await else { return };
        let next = shared.next(&mut shared.lock());
        match next {
            Err(error) => {
                let place = shared.contents.place();
                return shared.fail(StoreError::unusable(place, Failure::of_buffer(error)));
            }
            Ok(None) => {
                drop(permit);
                if shared.lock().begun.iter().all(|begun| *begun) {
                    return duty.done();
                }
                work.await;
            }
            Ok(Some((index, writer))) => {
                let fetching = fetch(shared.clone(), index, writer, permit);
                tokio::spawn(ended.clone().run_until_cancelled_owned(fetching));
            }
        }
    }
}

async fn fetch(
    shared: Arc<Shared>,
    index: usize,
    writer: ChunkWriter,
    permit: OwnedSemaphorePermit,
) {
    let duty = Duty(Some(shared.clone()));
    let chunk = shared.chunk(index);
    let file = shared.plan.chunks[index].file;
    let fetched = shared.contents.fetch(file, &chunk, writer).await;
    drop(permit);
    shared.finish(index, fetched);
    duty.done();
}
