//! The handler's own threads: nothing that a model does can stop the bridge.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use futures_util::FutureExt;
use nsbridge_handler::erased::{AnyHandler, Call};
use nsbridge_handler::{Error, Finish, Handler, Health, Models, Result, Slots};
use nsbridge_protocol::Fingerprint;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tracing::{Instrument as _, Span};

use crate::metrics::{Metrics, Phase};
use crate::vitals::ASK_EVERY;

/// How a call ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The handler returned.
    Returned(Result<Finish>),
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
}

struct Work {
    call: Call,
    /// The span that the handler's own log lines and spans belong to.
    span: Span,
    done: oneshot::Sender<Outcome>,
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
        match slots {
            Slots::Threads(_) => {
                let work = Arc::new(Mutex::new(work));
                for i in 0..slots.count() {
                    let (handler, work) = (handler.clone(), work.clone());
                    spawn(&format!("nsbridge-slot-{i}"), move || one_by_one(&*handler, &work))?;
                }
            }
            Slots::Tasks(_) => {
                let handler = handler.clone();
                spawn("nsbridge-slots", move || interleaved(&handler, work))?;
            }
        }
        Ok(Self { handler, calls })
    }

    /// Starts a call; the answer comes when it has ended.
    pub(crate) async fn call(&self, call: Call) -> Outcome {
        let (done, outcome) = oneshot::channel();
        let span = Span::current();
        if self.calls.send(Work { call, span, done }).await.is_err() {
            return Outcome::Panicked;
        }
        outcome.await.unwrap_or(Outcome::Panicked)
    }

    /// How many calls run at once.
    pub(crate) fn slots(&self) -> usize {
        self.handler.slots().count()
    }

    /// What the handler says of itself. May block.
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
        let Some(Work { call, span, done }) = next else { return };
        let _ = done.send(block_on(run(handler, call).instrument(span)));
    }
}

/// The thread of [`Slots::Tasks`]: as many calls at once as there is work.
fn interleaved(handler: &Arc<dyn AnyHandler>, mut work: mpsc::Receiver<Work>) {
    let local = LocalSet::new();
    let accept = local.run_until(async {
        while let Some(Work { call, span, done }) = work.recv().await {
            let handler = handler.clone();
            let call = async move {
                let _ = done.send(run(&*handler, call).await);
            };
            tokio::task::spawn_local(call.instrument(span));
        }
    });
    block_on(accept);
}

async fn run(handler: &dyn AnyHandler, call: Call) -> Outcome {
    // After a panic the worker gives its jobs back and leaves: nobody sees a broken handler.
    match AssertUnwindSafe(handler.call(call)).catch_unwind().await {
        Ok(returned) => Outcome::Returned(returned),
        Err(_) => Outcome::Panicked,
    }
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

    use super::Runner;
    use crate::metrics::Metrics;
    use crate::vitals::ASK_EVERY;

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
