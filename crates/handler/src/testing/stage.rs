//! Runner that makes calls as the bridge does: on separate threads, observed from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt as _;
use futures_util::future::{Either, join_all, select};
use nsbridge_protocol::Pieces;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use super::{AFTERMATH, Breach};
use crate::erased::{AnyHandler, Call, Servable, Slots};
use crate::error::{Error, Result};
use crate::job::JobInfo;
use crate::transcript::{Cursor, ROOM_BYTES, Reader, StartAt, Stop, transcript};
use nsbridge_protocol::{Finish, RequestId};

const TICK: Duration = Duration::from_millis(10);
/// Poll interval of an observed call.
const GLANCE: Duration = Duration::from_millis(1);

/// Way in which a call was given up.
pub(super) enum GivenUp {
    /// Future that is dropped the next time it yields.
    Dropped,
    /// Stop, because a call that blocks cannot be dropped.
    Stopped,
}

/// Parameters of a call.
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) resume: Option<Vec<Vec<u8>>>,
    pub(super) room: Room,
}

impl Plan {
    pub(super) fn plain(seed: u64) -> Self {
        Self { seed, resume: None, room: Room::Free }
    }
}

/// Amount that the call can emit before it is held back until the pieces are read.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Room {
    Free,
    OnePiece,
    None,
}

impl Room {
    /// Returns the piece that fills the transcript up to this amount.
    fn filler(self) -> Option<Vec<u8>> {
        match self {
            Self::Free => None,
            Self::OnePiece => Some(vec![b' '; ROOM_BYTES - 4]),
            Self::None => Some(vec![b' '; ROOM_BYTES]),
        }
    }
}

/// Handler, the input of all its calls, and the time for which it blocks its thread.
pub(super) struct Stage {
    handler: Arc<dyn AnyHandler>,
    input: Vec<u8>,
    /// Longest time in ms for which the thread of an `AsyncHandler` was blocked.
    gap: Arc<AtomicU64>,
}

impl Stage {
    pub(super) fn new<H: Servable<K>, K>(handler: &Arc<H>, input: &Value) -> Self {
        let input = input.to_string().into_bytes();
        Self { handler: H::erase(handler.clone()), input, gap: Arc::default() }
    }

    /// Starts these calls, as many at once as the handler has slots.
    pub(super) fn start(&self, plans: Vec<Plan>) -> Result<Vec<Watch>, Breach> {
        let slots = self.handler.slots();
        let mut lanes: Vec<Vec<Run>> = Vec::new();
        lanes.resize_with(slots.count().min(plans.len()), Vec::new);
        let mut watches = Vec::new();
        for (at, plan) in plans.into_iter().enumerate() {
            let (run, watch) = self.prepare(at, plan);
            let lane = at % lanes.len();
            lanes[lane].push(run);
            watches.push(watch);
        }
        match slots {
            Slots::Threads(_) => lanes.into_iter().try_for_each(|lane| self.thread(lane)),
            Slots::Tasks(_) => self.tasks(lanes),
        }?;
        Ok(watches)
    }

    /// Returns the time for which the thread was blocked, if longer than `limit`.
    pub(super) fn blocked(&self, limit: Duration) -> Option<Duration> {
        let gap = Duration::from_millis(self.gap.load(Ordering::Relaxed));
        (gap > limit).then_some(gap)
    }

    fn prepare(&self, at: usize, plan: Plan) -> (Run, Watch) {
        let (writer, reader) = transcript();
        let filler = plan.room.filler();
        if let Some(filler) = &filler {
            writer.try_push(filler);
        }
        let resume = plan.resume.map(|pieces| Pieces { first: 0, pieces });
        let call = Call { input: self.input.clone(), info: info(at, plan.seed), resume, writer };
        let (ended, end) = sync_channel(1);
        let (dropper, dropped) = oneshot::channel();
        // Skips the filler, which is no piece of the call and stays unsent until the first read.
        let mut cursor = reader.cursor(StartAt::PieceZero);
        cursor.read(usize::MAX, &mut Vec::new());
        let watch = Watch {
            reader,
            cursor,
            end,
            dropper: Some(dropper),
            room: plan.room,
            pieces: Vec::new(),
        };
        (Run { call, ended, dropped }, watch)
    }

    /// Gives up a call as the worker does: drops its future, or stops it if it cannot be dropped.
    pub(super) fn give_up(&self, watch: &mut Watch) -> GivenUp {
        match self.handler.slots() {
            Slots::Threads(_) => {
                watch.stop();
                GivenUp::Stopped
            }
            Slots::Tasks(_) => {
                watch.dropper = None;
                GivenUp::Dropped
            }
        }
    }

    /// Runs calls that block, one after the other on a new thread.
    fn thread(&self, lane: Vec<Run>) -> Result<(), Breach> {
        let handler = self.handler.clone();
        let body = move || {
            for Run { call, ended, dropped: _ } in lane {
                let writer = call.writer.clone();
                let result = handler.call(call).now_or_never();
                writer.close();
                // The observer may have finished already.
                drop(result.map(|result| ended.try_send(End::Returned(result))));
            }
        };
        thread::Builder::new().name("handler".into()).spawn(body).map_err(|error| setup(&error))?;
        Ok(())
    }

    /// Runs each lane's calls one after the other, with all lanes on one new thread.
    fn tasks(&self, lanes: Vec<Vec<Run>>) -> Result<(), Breach> {
        let runtime = runtime().map_err(|error| setup(&error))?;
        let (handler, gap) = (self.handler.clone(), self.gap.clone());
        let body = move || {
            LocalSet::new().block_on(&runtime, async move {
                let ticker = Ticker { gap, last: Instant::now() };
                let ticker = spawn_local(ticker.run());
                let lanes = lanes.into_iter().map(|lane| spawn_local(run(handler.clone(), lane)));
                join_all(lanes).await;
                ticker.abort();
            });
        };
        thread::Builder::new().name("handler".into()).spawn(body).map_err(|error| setup(&error))?;
        Ok(())
    }
}

fn setup(error: &std::io::Error) -> Breach {
    Breach::Setup(error.to_string())
}

pub(super) fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Creates the call of a first attempt with this input, and the reader of its pieces. For tests
/// that read the pieces themselves or change the scope.
pub fn call(input: &Value, seed: u64) -> (Call, Reader) {
    let (writer, reader) = transcript();
    let input = input.to_string().into_bytes();
    (Call { input, info: info(0, seed), resume: None, writer }, reader)
}

/// Decodes all pieces that a call has emitted.
///
/// # Errors
///
/// Returns an error if a piece does not decode as `O`.
pub fn pieces<O: DeserializeOwned>(reader: &Reader) -> Result<Vec<O>> {
    let pieces = reader.pieces().pieces;
    pieces.iter().map(|piece| serde_json::from_slice(piece).map_err(Error::fatal)).collect()
}

pub(super) fn info(at: usize, seed: u64) -> JobInfo {
    let submitted_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let tenant = "check".parse().expect("`check` is a tenant's name");
    let id = RequestId::from_bytes([at as u8; 16]);
    JobInfo { submitted_at, ..JobInfo::new(id, tenant, seed) }
}

/// Handler's side of a call.
struct Run {
    call: Call,
    ended: SyncSender<End>,
    dropped: oneshot::Receiver<()>,
}

/// End of a call.
pub(super) enum End {
    Returned(Result<Finish>),
    Dropped,
}

async fn run(handler: Arc<dyn AnyHandler>, lane: Vec<Run>) {
    for Run { call, ended, dropped } in lane {
        let writer = call.writer.clone();
        let end = match select(handler.call(call), dropped).await {
            Either::Left((result, _)) => End::Returned(result),
            Either::Right((_, call)) => {
                drop(call);
                End::Dropped
            }
        };
        writer.close();
        // The ticker must record how long this call blocked before the observer reads the value.
        tokio::time::sleep(2 * TICK).await;
        // The observer may have finished already.
        drop(ended.try_send(end));
    }
}

/// Task on the thread of the calls that measures how long the thread is blocked.
struct Ticker {
    gap: Arc<AtomicU64>,
    last: Instant,
}

impl Ticker {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(TICK).await;
            let gap = self.last.elapsed().as_millis() as u64;
            self.gap.fetch_max(gap, Ordering::Relaxed);
            self.last = Instant::now();
        }
    }
}

/// Observer's side of a call.
pub(super) struct Watch {
    reader: Reader,
    cursor: Cursor,
    end: Receiver<End>,
    dropper: Option<oneshot::Sender<()>>,
    room: Room,
    /// Pieces read so far.
    pub(super) pieces: Vec<Vec<u8>>,
}

impl Watch {
    /// Reads the new pieces and frees their space.
    pub(super) fn read(&mut self) {
        let mut list = Vec::new();
        self.cursor.read(usize::MAX, &mut list);
        self.cursor.mark_sent();
        // Without a new piece there is no list.
        self.pieces.extend(Pieces::decode(&list).unwrap_or_default().pieces);
    }

    /// Returns true if a piece was emitted after the call had returned.
    pub(super) fn late(&self) -> bool {
        self.reader.late()
    }

    /// Reads until the call has ended.
    pub(super) fn end(&mut self, limit: Duration) -> Result<End, Breach> {
        self.end_while(limit, || {})
    }

    /// Reads, and runs `more`, until the call has ended.
    pub(super) fn end_while(
        &mut self,
        limit: Duration,
        mut more: impl FnMut(),
    ) -> Result<End, Breach> {
        let end = self.wait(limit, |watch| {
            watch.read();
            more();
        })?;
        self.read();
        Ok(end)
    }

    /// Waits until the call has ended, without reading.
    pub(super) fn end_unread(&mut self, limit: Duration) -> Result<End, Breach> {
        self.wait(limit, |_| {})
    }

    fn wait(&mut self, limit: Duration, mut work: impl FnMut(&mut Self)) -> Result<End, Breach> {
        let started = Instant::now();
        loop {
            work(self);
            match self.end.recv_timeout(GLANCE) {
                Ok(end) => return Ok(end),
                Err(RecvTimeoutError::Disconnected) => return Err(Breach::Panicked),
                Err(RecvTimeoutError::Timeout) if started.elapsed() > limit => {
                    return Err(Breach::Hangs(limit));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits until the call has used up its space and has had time to try another piece.
    pub(super) fn until_held_back(&self, limit: Duration) -> Result<(), Breach> {
        let used = self.cursor.position() + usize::from(self.room == Room::OnePiece);
        let started = Instant::now();
        while self.reader.len() < used {
            if started.elapsed() > limit {
                return Err(Breach::Hangs(limit));
            }
            thread::sleep(GLANCE);
        }
        thread::sleep(AFTERMATH);
        Ok(())
    }

    pub(super) fn stop(&self) {
        self.reader.stop(Stop::Cancelled);
    }
}
