//! Test handler that follows a script in its input.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nsbridge_crypto::{Entry, Key, Keyring, RequestHead, Sealed, State, seal_request};
use nsbridge_handler::{
    Error as HandlerError, Fingerprint, Finish, Handler, Health, Job, Models, Result,
};
use nsbridge_protocol::{RequestId, Uuid};
use nsbridge_queue::Broker;
use nsbridge_testkit::system::client::{Client, Error, Reply, Request};
use nsbridge_testkit::system::{Running, Setup};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::time::sleep;

/// Actions of the test handler.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Script {
    /// Emits this many pieces at this interval; resumes from pieces of an earlier attempt.
    Say { pieces: usize, every_ms: u64 },
    /// Emits one piece, then sleeps without checking for a stop.
    Sleep { ms: u64 },
    /// Emits one piece, then waits for [`release`] without checking for a stop.
    Hold,
    /// Rejects the input with this message.
    Refuse(String),
    /// Fails on every try, and permits another one.
    Fail,
    /// Fails by `?` on an error of a library.
    FailForGood,
    /// Emits one piece and reports that the handler is broken.
    Break,
    /// Emits one piece and panics in the first run; emits two in the next.
    PanicOnce,
    /// Emits a piece of this many bytes.
    Big { bytes: usize },
    /// Emits the scope within which its work may be shared.
    Scope,
    /// Emits the account that its work is charged to.
    Account,
}

/// Test handler with this many slots; `WELL` is its health.
#[derive(Debug)]
pub(crate) struct Actor<const SLOTS: usize, const WELL: bool>;

pub(crate) type Scripted = Actor<1, true>;

/// Handler with two slots.
pub(crate) type Two = Actor<2, true>;

/// Handler that reports a failure while it is idle.
pub(crate) type Sick = Actor<1, false>;

impl<const SLOTS: usize, const WELL: bool> Handler for Actor<SLOTS, WELL> {
    type Options = ();
    type Input = Script;
    type Output = String;

    fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    fn handle(&self, script: Script, job: &mut Job<String>) -> Result<Finish> {
        let run = Run::start(job.info().seed);
        tracing::info!("the handler was called");
        match script {
            Script::Say { pieces, every_ms } => {
                let resumed = job.accept_resume().len();
                run.resumed(resumed);
                job.set_max_pieces(pieces);
                for i in resumed..pieces {
                    std::thread::sleep(Duration::from_millis(every_ms));
                    job.emit(piece(job.info().seed, i))?;
                }
            }
            Script::Sleep { ms } => {
                job.emit("sleeping".into())?;
                std::thread::sleep(Duration::from_millis(ms));
                job.emit("awake".into())?;
            }
            Script::Hold => {
                job.emit("holding".into())?;
                wait_for_release(job.info().seed);
                job.emit("released".into())?;
            }
            Script::Refuse(why) => return Err(HandlerError::bad_input(why)),
            Script::Fail => return Err(HandlerError::retry("the model is out of sorts")),
            Script::FailForGood => {
                "SECRET".parse::<u8>()?;
            }
            Script::Break => {
                job.emit("one".into())?;
                return Err(HandlerError::fatal("SECRET"));
            }
            Script::PanicOnce => {
                job.emit("one".into())?;
                assert!(runs(job.info().seed).len() > 1, "as the script says");
                job.emit("two".into())?;
            }
            Script::Big { bytes } => job.emit("x".repeat(bytes))?,
            Script::Scope => job.emit(job.info().scope.to_string())?,
            Script::Account => job.emit(job.info().account.to_string())?,
        }
        Ok(Finish::STOP)
    }

    fn threads(&self) -> usize {
        SLOTS
    }

    fn health(&self) -> Health {
        if WELL { Health::Ok } else { Health::Failed("the device is gone".into()) }
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(Fingerprint(*b"scripted handler"))
    }
}

/// Runs of this process by the seed of their request.
static RUNS: Mutex<Option<HashMap<u64, Vec<Ran>>>> = Mutex::new(None);

/// Start and end of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    pub(crate) from: Instant,
    pub(crate) until: Option<Instant>,
    /// Number of pieces of an earlier attempt that the run continued from.
    pub(crate) resumed: usize,
}

/// Returns the runs of the request with this seed, in the order of their start.
pub(crate) fn runs(seed: u64) -> Vec<Ran> {
    let runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    runs.as_ref().and_then(|runs| runs.get(&seed).cloned()).unwrap_or_default()
}

/// Guard that records a run's start, and its end on drop.
struct Run {
    seed: u64,
    index: usize,
}

impl Run {
    fn start(seed: u64) -> Self {
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = runs.get_or_insert_default().entry(seed).or_default();
        runs.push(Ran { from: Instant::now(), until: None, resumed: 0 });
        Self { seed, index: runs.len() - 1 }
    }

    fn resumed(&self, pieces: usize) {
        self.change(|ran| ran.resumed = pieces);
    }

    fn change(&self, change: impl FnOnce(&mut Ran)) {
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut runs.get_or_insert_default().entry(self.seed).or_default()[self.index]);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.change(|ran| ran.until = Some(Instant::now()));
    }
}

/// Seeds of the requests whose [`Script::Hold`] may return.
static RELEASED: (Mutex<Vec<u64>>, Condvar) = (Mutex::new(Vec::new()), Condvar::new());

/// Lets the [`Script::Hold`] of the request with this seed return.
pub(crate) fn release(seed: u64) {
    RELEASED.0.lock().unwrap_or_else(PoisonError::into_inner).push(seed);
    RELEASED.1.notify_all();
}

fn wait_for_release(seed: u64) {
    let held = RELEASED.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(RELEASED.1.wait_while(held, |released| !released.contains(&seed)));
}

/// Returns a seed that no other test of this process uses.
pub(crate) fn fresh_seed() -> u64 {
    static NEXT: AtomicU32 = AtomicU32::new(1000);
    NEXT.fetch_add(1, Ordering::SeqCst).into()
}

/// Returns the piece at `index`. It depends on the seed, like a model's token.
pub(crate) fn piece(seed: u64, index: usize) -> String {
    format!("{:x} ", seed.wrapping_mul(6_364_136_223_846_793_005).rotate_left(index as u32 + 7))
}

/// Returns all pieces of a [`Script::Say`].
pub(crate) fn said(seed: u64, pieces: usize) -> Vec<String> {
    (0..pieces).map(|i| piece(seed, i)).collect()
}

/// Starts a worker and a client on `broker`.
pub(crate) async fn system(broker: Arc<dyn Broker>) -> (Setup, Running, Client) {
    let setup = Setup::new().unwrap();
    let worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker).await.unwrap();
    (setup, worker, client)
}

/// Creates a request with a deadline of 10 s.
pub(crate) fn ask(setup: &Setup, script: Script, seed: u64) -> Request<Script> {
    let mut ask = Request::new(setup.model.clone(), setup.tenant()).input(script);
    ask.seed = Some(seed);
    ask.timeout = Duration::from_secs(10);
    ask
}

pub(crate) async fn submit(
    client: &Client,
    setup: &Setup,
    script: Script,
) -> Result<Reply<String>, Error> {
    client.submit(ask(setup, script, 7)).await
}

/// Creates a setup with a known key as its only one.
pub(crate) fn with_key() -> (Setup, Key) {
    let mut setup = Setup::new().unwrap();
    let key = Key::generate().unwrap();
    let entry = Entry::new("test".parse().unwrap(), key.clone(), State::Primary);
    setup.keys = Arc::new(Keyring::of(vec![entry]).unwrap());
    (setup, key)
}

/// Seals a request with a deadline of one minute.
pub(crate) fn sealed(setup: &Setup, key: &Key, seed: u64, script: &Script) -> Sealed {
    sealed_for(Duration::from_secs(60), setup, key, seed, script)
}

/// Seals a request with this deadline.
pub(crate) fn sealed_for(
    time: Duration,
    setup: &Setup,
    key: &Key,
    seed: u64,
    script: &Script,
) -> Sealed {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let head = RequestHead {
        id: RequestId(Uuid::from_u128(now.as_nanos())),
        created_at_ms: now.as_millis() as u64,
        expires_at_ms: (now + time).as_millis() as u64,
        model: setup.model.clone(),
        tenant: setup.tenant(),
        key_id: "test".parse().unwrap(),
    };
    let content = serde_json::json!({ "seed": seed, "input": script }).to_string();
    seal_request(key, &head, content.as_bytes()).unwrap()
}

/// Starts a worker on a runtime of its own. Shutting the runtime down stands for killing a process.
pub(crate) async fn process<H: Handler<Options = ()>>(
    setup: &Setup,
    broker: Arc<dyn Broker>,
) -> (Runtime, Running) {
    let process = Runtime::new().unwrap();
    let setup = setup.clone();
    let start = async move { setup.worker::<H>(broker, ()).await };
    let worker = process.spawn(start).await.unwrap().unwrap();
    (process, worker)
}

/// Polls until the condition holds, for at most 20 s.
pub(crate) async fn until(what: &str, done: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !done().await {
        assert!(started.elapsed() < Duration::from_secs(20), "{what}");
        sleep(Duration::from_millis(5)).await;
    }
}
