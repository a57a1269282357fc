//! The handler's own threads: nothing that a model does can stop the bridge.
//!
//! A call that does not return can be given up: its caller drops the future of [`Runner::call`].
//! The handler's future is dropped then as soon as it next waits for something. One that computes
//! without end cannot be ended from outside: it keeps its place, and is told by [`Runner::leftover`]
//! and, where it holds the thread of all calls, by [`Runner::pulse`].

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use nsbridge_handler::erased::{AnyHandler, Call};
use nsbridge_handler::{Error, Finish, Handler, Health, Models, Result, Slots};
use nsbridge_protocol::Fingerprint;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tracing::{Instrument as _, Span};

use crate::metrics::{Metrics, Phase};
use crate::room::Permit;

/// How often the handler is asked whether it is well.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(5);

/// Time between two beats of the thread of [`Slots::Tasks`].
const BEAT: Duration = Duration::from_millis(500);

/// How a call ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The handler returned.
    Returned(Result<Finish>),
    /// The call was told to stop, took no notice, and was not waited for any longer.
    GivenUp,
    /// The handler panicked, or its thread is gone. What it said is not kept: it may quote input.
    Panicked,
}

impl Outcome {
    /// Returns true if the handler is of no use after it.
    pub(crate) fn broke(&self) -> bool {
        matches!(self, Self::Panicked | Self::Returned(Err(Error::Fatal(_))))
    }
}

/// A loaded handler, reached from any thread.
#[derive(Clone)]
pub(crate) struct Runner {
    handler: Arc<dyn AnyHandler>,
    calls: mpsc::Sender<Work>,
    /// Calls that were given up and have not ended.
    leftover: Arc<AtomicUsize>,
    /// Beats of the thread that all calls share, if they share one.
    pulse: Option<Arc<AtomicU64>>,
}

struct Work {
    call: Call,
    /// The span that the handler's own log lines and spans belong to.
    span: Span,
    done: oneshot::Sender<Outcome>,
    /// Dropped when the call has ended, whoever still waits for it.
    held: Held,
}

/// What a call holds until it has ended.
struct Held {
    phase: Arc<Mutex<CallPhase>>,
    leftover: Arc<AtomicUsize>,
    _place: Option<Arc<Permit>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if *phase == CallPhase::GivenUp {
            self.leftover.fetch_sub(1, Ordering::Relaxed);
        }
        *phase = CallPhase::Ended;
    }
}

/// The caller's side of a call.
struct Caller {
    phase: Arc<Mutex<CallPhase>>,
    leftover: Arc<AtomicUsize>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
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
    /// What the handler says, or that it panicked.
    pub(crate) async fn load<H: Handler>(
        options: H::Options,
        models: Models,
        metrics: Metrics,
    ) -> Result<Self> {
        let (loaded, ready) = oneshot::channel::<Result<Arc<H>>>();
        let load = move || {
            let _ = loaded.send(block_on(async {
                let started = Instant::now();
                let handler = H::load(options, models).await?;
                let (load, warm) = (started.elapsed(), Instant::now());
                tokio::select! {
                    warm = handler.warm_up() => warm?,
                    why = broken(&handler) => return Err(Error::fatal(why)),
                }
                let warm_up = warm.elapsed();
                metrics.phase(Phase::Load, load);
                metrics.phase(Phase::WarmUp, warm_up);
                tracing::info!(?load, ?warm_up, "the handler is loaded");
                Ok(Arc::new(handler))
            }));
        };
        spawn("nsbridge-load", load)?;
        let panicked = || Error::fatal("the handler panicked while it loaded");
        Self::start(ready.await.map_err(|_| panicked())??)
    }

    /// Starts the threads of a loaded handler.
    pub(crate) fn start(handler: Arc<dyn AnyHandler>) -> Result<Self> {
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
                let beats = pulse.clone();
                spawn("nsbridge-slots", move || interleaved(&handler, work, &beats))?;
                Some(pulse)
            }
        };
        Ok(Self { handler, calls, leftover: Arc::default(), pulse })
    }

    /// Starts a call; the answer comes when it has ended. The call holds its place until then, also
    /// when this future is dropped before.
    pub(crate) async fn call(&self, call: Call, place: Option<Arc<Permit>>) -> Outcome {
        let (done, outcome) = oneshot::channel();
        let phase = Arc::new(Mutex::new(CallPhase::Awaited));
        let leftover = self.leftover.clone();
        let held = Held { phase: phase.clone(), leftover: leftover.clone(), _place: place };
        let _caller = Caller { phase, leftover };
        let span = Span::current();
        if self.calls.send(Work { call, span, done, held }).await.is_err() {
            return Outcome::Panicked;
        }
        outcome.await.unwrap_or(Outcome::Panicked)
    }

    /// How many calls were given up and have not ended.
    pub(crate) fn leftover(&self) -> usize {
        self.leftover.load(Ordering::Relaxed)
    }

    /// A number that rises as long as the thread of all calls gets to its work; `None` if each call
    /// has a thread of its own.
    pub(crate) fn pulse(&self) -> Option<u64> {
        self.pulse.as_ref().map(|pulse| pulse.load(Ordering::Relaxed))
    }

    /// How many calls run at once.
    pub(crate) fn slots(&self) -> usize {
        self.handler.slots().count()
    }

    /// Has the handler drop what it keeps of requests that have ended.
    pub(crate) fn forget(&self) {
        self.handler.forget();
    }

    pub(crate) fn health(&self) -> Health {
        self.handler.health()
    }

    /// The handler itself.
    pub(crate) fn handler(&self) -> Arc<dyn AnyHandler> {
        self.handler.clone()
    }

    /// What the handler's tokens depend on.
    pub(crate) fn fingerprint(&self) -> Option<Fingerprint> {
        self.handler.fingerprint()
    }
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("slots", &self.slots()).finish_non_exhaustive()
    }
}

/// Waits until the handler says that it cannot answer any more, and gives its reason.
async fn broken(handler: &impl Handler) -> String {
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        if let Health::Failed(why) = handler.health() {
            return why;
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(Error::fatal)?;
    Ok(())
}

/// A thread of [`Slots::Threads`]: takes a call, ends it, takes the next.
fn one_by_one(handler: &dyn AnyHandler, work: &Mutex<mpsc::Receiver<Work>>) {
    loop {
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        let Some(work) = next else { return };
        block_on(run(handler, work));
    }
}

/// The thread of [`Slots::Tasks`]: as many calls at once as there is work.
fn interleaved(
    handler: &Arc<dyn AnyHandler>,
    mut work: mpsc::Receiver<Work>,
    pulse: &Arc<AtomicU64>,
) {
    let local = LocalSet::new();
    let beat = async {
        loop {
            pulse.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(BEAT).await;
        }
    };
    let accept = local.run_until(async {
        while let Some(work) = work.recv().await {
            let handler = handler.clone();
            tokio::task::spawn_local(async move { run(&*handler, work).await });
        }
    });
    block_on(async {
        tokio::select! {
            () = accept => {}
            () = beat => {}
        }
    });
}

/// Runs a call to its end, or until nobody waits for it any more.
async fn run(handler: &dyn AnyHandler, work: Work) {
    let Work { call, span, mut done, held } = work;
    let answer = async {
        tokio::select! {
            biased;
            () = done.closed() => None,
            returned = handler.call(call) => Some(returned),
        }
    };
    // After a panic the worker gives its jobs back and leaves: nobody sees a broken handler.
    let answer = AssertUnwindSafe(answer.instrument(span)).catch_unwind().await;
    let outcome = match answer {
        Ok(Some(returned)) => Outcome::Returned(returned),
        Ok(None) => return,
        Err(_) => Outcome::Panicked,
    };
    drop(held);
    let _ = done.send(outcome);
}

/// Runs a handler's future here, with timers and sockets for handlers that wait for others.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a current-thread runtime needs only memory and one epoll descriptor")
        .block_on(future)
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::{Error, Finish, Handler, Health, Job, Models, Result};

    use super::{ASK_EVERY, Runner};
    use crate::metrics::Metrics;

    /// Never warm, and says so.
    struct Cold;

    impl Handler for Cold {
        type Input = ();
        type Output = ();
        type Options = ();

        async fn load((): (), _: Models) -> Result<Self> {
            Ok(Self)
        }

        async fn handle(&self, (): (), _: &mut Job<()>) -> Result<Finish> {
            Err(Error::retry("never asked"))
        }

        async fn warm_up(&self) -> Result<()> {
            std::future::pending().await
        }

        fn health(&self) -> Health {
            Health::Failed("frozen".to_owned())
        }
    }

    #[tokio::test]
    async fn a_handler_that_breaks_while_it_warms_up_is_not_waited_for() {
        let metrics = Metrics::new(&"m".parse().unwrap());
        let loading = Runner::load::<Cold>((), Models::default(), metrics);
        let loaded = tokio::time::timeout(10 * ASK_EVERY, loading).await;
        let why = loaded.expect("it must not be waited for").err().unwrap().to_string();
        assert!(why.contains("frozen"), "{why}");
    }
}
