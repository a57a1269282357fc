//! A handler that does what its input says.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nsbridge_crypto::{Entry, Key, Keyring, RequestHead, Sealed, State, seal_request};
use nsbridge_handler::{
    Error as HandlerError, Finish, Handler, Health, Job, Models, Result, Slots,
};
use nsbridge_protocol::{RequestId, Uuid};
use nsbridge_queue::{Broker, MemoryBroker};
use nsbridge_testkit::system::client::{Ask, Client, Error, Reply};
use nsbridge_testkit::system::{Running, Setup};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::time::sleep;

/// What the handler is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Script {
    /// Say so many pieces, so many milliseconds apart; resumes where it can.
    Say { pieces: usize, every_ms: u64 },
    /// Say one piece, then wait for a stop without looking for it.
    Sleep { ms: u64 },
    /// Refuse the input with this sentence.
    Refuse(String),
    /// Fail, as often as it is tried.
    Fail,
    /// Say a piece and panic in the first run, say two in the next.
    PanicOnce,
    /// Say a piece of so many bytes.
    Big { bytes: usize },
    /// Say whom it may share with.
    Scope,
    /// Say whom its work is charged to.
    Account,
}

/// So many slots, and whether it says that it is well.
#[derive(Debug)]
pub(crate) struct Actor<const SLOTS: usize, const WELL: bool>;

pub(crate) type Scripted = Actor<1, true>;

/// The same with two slots.
pub(crate) type Two = Actor<2, true>;

/// A model that breaks while it is idle.
pub(crate) type Sick = Actor<1, false>;

/// The most pieces that a call of this process went on from.
pub(crate) static RESUMED: AtomicUsize = AtomicUsize::new(0);

impl<const SLOTS: usize, const WELL: bool> Handler for Actor<SLOTS, WELL> {
    type Options = ();
    type Input = Script;
    type Output = String;

    async fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    async fn handle(&self, script: Script, job: &mut Job<String>) -> Result<Finish> {
        let _run = Run::start(job.info().seed);
        tracing::info!("the handler was called");
        match script {
            Script::Say { pieces, every_ms } => {
                let resumed = job.resumed().len();
                RESUMED.fetch_max(resumed, Ordering::SeqCst);
                job.at_most(pieces);
                for i in resumed..pieces {
                    std::thread::sleep(Duration::from_millis(every_ms));
                    job.emit(piece(job.info().seed, i)).await?;
                }
            }
            Script::Sleep { ms } => {
                job.emit("sleeping".into()).await?;
                std::thread::sleep(Duration::from_millis(ms));
                job.emit("awake".into()).await?;
            }
            Script::Refuse(why) => return Err(HandlerError::bad_input(why)),
            Script::Fail => return Err(HandlerError::retry("the model is out of sorts")),
            Script::PanicOnce => {
                job.emit("one".into()).await?;
                assert!(runs(job.info().seed).len() > 1, "as the script says");
                job.emit("two".into()).await?;
            }
            Script::Big { bytes } => job.emit("x".repeat(bytes)).await?,
            Script::Scope => job.emit(job.info().scope.to_string()).await?,
            Script::Account => job.emit(job.info().account.to_string()).await?,
        }
        Ok(Finish::STOP)
    }

    fn slots(&self) -> Slots {
        Slots::Threads(SLOTS)
    }

    fn health(&self) -> Health {
        if WELL { Health::Ok } else { Health::Failed("the device is gone".into()) }
    }

    fn fingerprint(&self) -> Option<[u8; 16]> {
        Some(*b"scripted handler")
    }
}

/// All runs of this process, by their request's seed.
static RUNS: Mutex<Option<HashMap<u64, Vec<Ran>>>> = Mutex::new(None);

/// When a run began and ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    pub(crate) from: Instant,
    pub(crate) until: Option<Instant>,
}

/// The runs so far of the request with this seed, in the order of their start.
pub(crate) fn runs(seed: u64) -> Vec<Ran> {
    let runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    runs.as_ref().and_then(|runs| runs.get(&seed).cloned()).unwrap_or_default()
}

/// Writes a run down, however it ends.
struct Run {
    seed: u64,
    index: usize,
}

impl Run {
    fn start(seed: u64) -> Self {
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = runs.get_or_insert_default().entry(seed).or_default();
        runs.push(Ran { from: Instant::now(), until: None });
        Self { seed, index: runs.len() - 1 }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = runs.get_or_insert_default().entry(self.seed).or_default();
        runs[self.index].until = Some(Instant::now());
    }
}

/// A seed that no other test of this process uses.
pub(crate) fn fresh_seed() -> u64 {
    static NEXT: AtomicU32 = AtomicU32::new(1000);
    NEXT.fetch_add(1, Ordering::SeqCst).into()
}

/// The piece at `index`: depends on the seed, as a model's token does.
pub(crate) fn piece(seed: u64, index: usize) -> String {
    format!("{:x} ", seed.wrapping_mul(6_364_136_223_846_793_005).rotate_left(index as u32 + 7))
}

/// All pieces of a [`Script::Say`].
pub(crate) fn said(seed: u64, pieces: usize) -> Vec<String> {
    (0..pieces).map(|i| piece(seed, i)).collect()
}

/// A worker and a client on `broker`.
pub(crate) async fn system(broker: Arc<dyn Broker>) -> (Setup, Running, Client) {
    let setup = Setup::new().unwrap();
    let worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker).await.unwrap();
    (setup, worker, client)
}

/// A request that must end within ten seconds.
pub(crate) fn ask(setup: &Setup, script: Script, seed: u64) -> Ask<Script> {
    let mut ask = Ask::new(setup.model.clone(), setup.tenant(), script);
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

/// A system whose only key is known.
pub(crate) fn with_key() -> (Setup, Key) {
    let mut setup = Setup::new().unwrap();
    let key = Key::generate().unwrap();
    let entry = Entry::new("test".parse().unwrap(), key.clone(), State::Primary);
    setup.keys = Arc::new(Keyring::of(vec![entry]).unwrap());
    (setup, key)
}

/// A sealed request that must end within a minute.
pub(crate) fn sealed(setup: &Setup, key: &Key, seed: u64, script: &Script) -> Sealed {
    sealed_for(Duration::from_secs(60), setup, key, seed, script)
}

/// A sealed request that must end within so long.
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

/// A worker in a runtime of its own, which stands for a process that is killed.
pub(crate) async fn process<H: Handler<Options = ()>>(
    setup: &Setup,
    broker: &MemoryBroker,
) -> (Runtime, Running) {
    let process = Runtime::new().unwrap();
    let (setup, broker) = (setup.clone(), broker.clone());
    let start = async move { setup.worker::<H>(Arc::new(broker), ()).await };
    let worker = process.spawn(start).await.unwrap().unwrap();
    (process, worker)
}

/// Waits until it is so, for 20 s at most.
pub(crate) async fn until(what: &str, done: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !done().await {
        assert!(started.elapsed() < Duration::from_secs(20), "{what}");
        sleep(Duration::from_millis(5)).await;
    }
}
