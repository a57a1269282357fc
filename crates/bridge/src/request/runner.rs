//! Threads of the handler, apart from the bridge's, so that no model can stop the bridge.
//!
//! A call that does not return can be given up: its caller drops the future of [`Runner::call`].
//! The future of an asynchronous handler is then dropped at its next await point. A call that blocks
//! cannot be ended from outside. It keeps its slot and counts in [`Runner::leftover`]; if it blocks
//! the thread of all calls, [`Runner::pulse`] stands still.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use nsbridge_handler::erased::{AnyHandler, Call, Servable, Slots};
use nsbridge_handler::{Error, Finish, Health, Models, Result};
use nsbridge_protocol::Fingerprint;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tracing::{Instrument as _, Span};

use crate::observability::metrics::{Metrics, Phase};
use crate::request::slots::SlotPermit;
use crate::timing::Timing;

/// Outcome of a call.
#[derive(Debug)]
pub(crate) enum CallEnd {
    /// Return value of the handler.
    Returned(Result<Finish>),
    /// Call that ignored its stop and is not waited for any longer.
    GivenUp,
    /// Failure of the handler itself, with its reason.
    Broke(&'static str),
}

impl CallEnd {
    /// Panic of the handler, or loss of its thread. The panic message is not kept, as it may quote
    /// input.
    pub(crate) const PANICKED: Self = Self::Broke("it panicked");

    /// Returns true if the request may be the cause of a broken handler.
    pub(crate) fn is_suspect(&self) -> bool {
        matches!(self, Self::Broke(_) | Self::Returned(Err(Error::Fatal(_))))
    }
}

/// Handle to a loaded handler, usable from any thread.
#[derive(Clone)]
pub(crate) struct Runner {
    handler: Arc<dyn AnyHandler>,
    calls: mpsc::Sender<Work>,
    /// Number of calls that were given up and have not ended.
    leftover: Arc<AtomicUsize>,
    /// Heartbeat counter of the thread that all calls share, if they share one.
    pulse: Option<Arc<AtomicU64>>,
}

struct Work {
    call: Call,
    /// Parent of the handler's own log lines and spans.
    span: Span,
    done: oneshot::Sender<CallEnd>,
    /// Dropped when the call has ended, even if it was given up before.
    resources: CallResources,
}

/// Resources that a call holds until it has ended.
struct CallResources {
    phase: Arc<Mutex<CallPhase>>,
    leftover: Arc<AtomicUsize>,
    _slot: Option<Arc<SlotPermit>>,
}

impl Drop for CallResources {
    fn drop(&mut self) {
        let mut phase = self.phase.lock();
        if *phase == CallPhase::GivenUp {
            self.leftover.fetch_sub(1, Ordering::Relaxed);
        }
        *phase = CallPhase::Ended;
    }
}

/// Caller's side of a call. Dropping it before the call has ended gives the call up.
struct Caller {
    phase: Arc<Mutex<CallPhase>>,
    leftover: Arc<AtomicUsize>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut phase = self.phase.lock();
        if *phase == CallPhase::Awaited {
            self.leftover.fetch_add(1, Ordering::Relaxed);
            *phase = CallPhase::GivenUp;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CallPhase {
    Awaited,
    GivenUp,
    Ended,
}

impl Runner {
    /// Loads a handler and warms it up, on a thread of its own.
    ///
    /// # Errors
    ///
    /// Returns an error if the handler's load or warm-up fails, if it reports a failure while it
    /// warms up, or if it panics.
    pub(crate) async fn load<H: Servable<K>, K>(
        options: H::Options,
        models: Models,
        metrics: Metrics,
        timing: &Timing,
    ) -> Result<Self> {
        let (loaded, ready) = oneshot::channel::<Result<Arc<dyn AnyHandler>>>();
        let (mut warmed, warm) = oneshot::channel::<Result<()>>();
        let started = Instant::now();
        let load = async move || {
            let handler = match H::load(options, models).await {
                Ok(handler) => H::erase(Arc::new(handler)),
                Err(error) => return drop(loaded.send(Err(error))),
            };
            if loaded.send(Ok(handler.clone())).is_err() {
                return;
            }
            let warm = tokio::select! {
                biased;
                () = warmed.closed() => return,
                warm = handler.warm_up() => warm,
            };
            let _ = warmed.send(warm);
        };
        spawn("nsbridge-load", move || drive(H::BLOCKS, load()))?;
        let panicked = |_| Error::fatal("the handler panicked while it loaded");
        let handler = ready.await.map_err(panicked)??;
        let (load, began) = (started.elapsed(), Instant::now());
        tokio::select! {
            warm = warm => warm.map_err(panicked)??,
            why = broken(&handler, timing.health_interval) => return Err(Error::fatal(why)),
        }
        let warm_up = began.elapsed();
        metrics.phase(Phase::Load, load);
        metrics.phase(Phase::WarmUp, warm_up);
        tracing::info!(?load, ?warm_up, "the handler is loaded");
        Self::start(handler, timing)
    }

    /// Starts the threads of a loaded handler.
    pub(crate) fn start(handler: Arc<dyn AnyHandler>, timing: &Timing) -> Result<Self> {
        let slots = handler.slots();
        let (calls, work) = mpsc::channel(slots.count());
        let pulse = match slots {
            Slots::Threads(_) => {
                let work = Arc::new(Mutex::new(work));
                for i in 0..slots.count() {
                    let (handler, work) = (handler.clone(), work.clone());
                    spawn(&format!("nsbridge-slot-{i}"), move || one_by_one(&*handler, &work))?;
                }
                None
            }
            Slots::Tasks(_) => {
                let (handler, pulse) = (handler.clone(), Arc::new(AtomicU64::new(0)));
                let (beats, every) = (pulse.clone(), timing.pulse_interval);
                spawn("nsbridge-slots", move || interleaved(&handler, work, &beats, every))?;
                Some(pulse)
            }
        };
        Ok(Self { handler, calls, leftover: Arc::default(), pulse })
    }

    /// Starts a call and waits for its outcome. The call holds its permit until it has ended, even
    /// if this future is dropped before.
    pub(crate) async fn call(&self, call: Call, slot: Option<Arc<SlotPermit>>) -> CallEnd {
        let (done, outcome) = oneshot::channel();
        let phase = Arc::new(Mutex::new(CallPhase::Awaited));
        let leftover = self.leftover.clone();
        let resources =
            CallResources { phase: phase.clone(), leftover: leftover.clone(), _slot: slot };
        let _caller = Caller { phase, leftover };
        let span = Span::current();
        if self.calls.send(Work { call, span, done, resources }).await.is_err() {
            return CallEnd::PANICKED;
        }
        outcome.await.unwrap_or(CallEnd::PANICKED)
    }

    /// Returns the number of calls that were given up and have not ended.
    pub(crate) fn leftover(&self) -> usize {
        self.leftover.load(Ordering::Relaxed)
    }

    /// Returns a counter that rises while the thread of all calls makes progress; `None` if each
    /// call has a thread of its own.
    pub(crate) fn pulse(&self) -> Option<u64> {
        self.pulse.as_ref().map(|pulse| pulse.load(Ordering::Relaxed))
    }

    /// Returns the maximum number of concurrent calls.
    pub(crate) fn slots(&self) -> usize {
        self.handler.slots().count()
    }

    /// Makes the handler drop what it keeps of ended requests.
    pub(crate) fn forget(&self) {
        self.handler.forget();
    }

    pub(crate) fn health(&self) -> Health {
        self.handler.health()
    }

    /// Returns the handler.
    pub(crate) fn handler(&self) -> Arc<dyn AnyHandler> {
        self.handler.clone()
    }

    /// Returns the fingerprint of everything that the handler's pieces depend on.
    pub(crate) fn fingerprint(&self) -> Option<Fingerprint> {
        self.handler.fingerprint()
    }
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("slots", &self.slots()).finish_non_exhaustive()
    }
}

/// Waits until the handler reports that it has failed, and returns its reason.
async fn broken(handler: &Arc<dyn AnyHandler>, every: Duration) -> String {
    loop {
        tokio::time::sleep(every).await;
        let handler = handler.clone();
        let health = tokio::task::spawn_blocking(move || handler.health());
        if let Ok(Health::Failed(why)) = health.await {
            return why;
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(Error::fatal)?;
    Ok(())
}

/// Runs one call after another: the body of a thread of [`Slots::Threads`].
fn one_by_one(handler: &dyn AnyHandler, work: &Mutex<mpsc::Receiver<Work>>) {
    loop {
        let next = work.lock().blocking_recv();
        let Some(work) = next else { return };
        drive(true, run(handler, work));
    }
}

/// Runs calls concurrently: the body of the thread of [`Slots::Tasks`].
fn interleaved(
    handler: &Arc<dyn AnyHandler>,
    mut work: mpsc::Receiver<Work>,
    pulse: &Arc<AtomicU64>,
    every: Duration,
) {
    let local = LocalSet::new();
    let beat = async {
        loop {
            pulse.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(every).await;
        }
    };
    let accept = local.run_until(async {
        while let Some(work) = work.recv().await {
            let handler = handler.clone();
            tokio::task::spawn_local(async move { run(&*handler, work).await });
        }
    });
    let both = async {
        tokio::select! {
            () = accept => {}
            () = beat => {}
        }
    };
    drive(false, both);
}

/// Runs a call to its end, or until its caller gives it up.
async fn run(handler: &dyn AnyHandler, work: Work) {
    let Work { call, span, mut done, resources } = work;
    let answer = async {
        tokio::select! {
            biased;
            () = done.closed() => None,
            returned = handler.call(call) => Some(returned),
        }
    };
    // After a panic the worker requeues its jobs and exits, so no later call sees a broken handler.
    let answer = AssertUnwindSafe(answer.instrument(span)).catch_unwind().await;
    let outcome = match answer {
        Ok(Some(returned)) => CallEnd::Returned(returned),
        Ok(None) => return,
        Err(_) => CallEnd::PANICKED,
    };
    drop(resources);
    let _ = done.send(outcome);
}

/// Runs a future of the handler on this thread. One that awaits gets timers and sockets, for handlers
/// that call other services. One that blocks gets no runtime, so that its handler may use its own.
fn drive(blocks: bool, future: impl Future<Output = ()>) {
    if blocks {
        let ended = future.now_or_never();
        debug_assert!(ended.is_some(), "the future of a handler that blocks never awaits");
        return;
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a current-thread runtime needs only memory and one epoll descriptor")
        .block_on(future);
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::{
        AsyncHandler, AsyncJob, Error, Finish, Handler, Health, Job, Models, Result,
    };

    use std::time::Duration;

    use super::{Runner, Servable};
    use crate::observability::metrics::Metrics;
    use crate::timing::Timing;

    /// Handler that never finishes its warm-up and reports that it has failed.
    struct Cold;

    impl AsyncHandler for Cold {
        type Input = ();
        type Output = ();
        type Options = ();

        async fn load((): (), _: Models) -> Result<Self> {
            Ok(Self)
        }

        async fn handle(&self, (): (), _: &mut AsyncJob<()>) -> Result<Finish> {
            Err(Error::retry("never asked"))
        }

        fn tasks(&self) -> usize {
            1
        }

        async fn warm_up(&self) -> Result<()> {
            std::future::pending().await
        }

        fn health(&self) -> Health {
            Health::Failed("frozen".to_owned())
        }
    }

    /// Handler whose warm-up blocks its thread, and that reports that it has failed.
    struct Frozen;

    impl Handler for Frozen {
        type Input = ();
        type Output = ();
        type Options = ();

        fn load((): (), _: Models) -> Result<Self> {
            Ok(Self)
        }

        fn handle(&self, (): (), _: &mut Job<()>) -> Result<Finish> {
            Err(Error::retry("never asked"))
        }

        fn warm_up(&self) -> Result<()> {
            std::thread::sleep(Duration::from_secs(30));
            Ok(())
        }

        fn health(&self) -> Health {
            Health::Failed("frozen".to_owned())
        }
    }

    #[tokio::test]
    async fn a_handler_that_breaks_while_it_warms_up_is_not_waited_for() {
        breaks_while_it_warms_up::<Cold, _>().await;
    }

    #[tokio::test]
    async fn a_handler_that_breaks_while_its_warm_up_blocks_is_not_waited_for() {
        breaks_while_it_warms_up::<Frozen, _>().await;
    }

    async fn breaks_while_it_warms_up<H: Servable<K, Options = ()>, K>() {
        let metrics = Metrics::new(&"m".parse().unwrap());
        let timing = Timing { health_interval: Duration::from_millis(10), ..Timing::default() };
        let loading = Runner::load::<H, K>((), Models::default(), metrics, &timing);
        let loaded = tokio::time::timeout(Duration::from_secs(20), loading).await;
        let why = loaded.expect("it must not be waited for").err().unwrap().to_string();
        assert!(why.contains("frozen"), "{why}");
    }
}
