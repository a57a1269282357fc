//! Model that follows its inputs and records its batches, and calls that the test observes.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use nsbridge_handler::erased::{AnyHandler, Call};
use nsbridge_handler::transcript::Reader;
use nsbridge_handler::{
    AsyncHandler, Batch, BatchLimits, BatchOptions, Batched, Error, Fingerprint, Finish, Item,
    Models, Result, Stop, testing,
};
use nsbridge_protocol::Pieces;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::task::{JoinHandle, spawn_local, yield_now};
use tokio::time::{sleep, timeout};

/// Time limit of a test for an event that must happen.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay in ms that no test waits for.
pub(crate) const LONG_DELAY_MS: f64 = 3_600_000.0;

/// Effect of an input on its batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Ask {
    Double(u64),
    /// Holds the batch until the gate opens.
    Hold,
    Bad,
    /// Fails the whole batch, even if the input is alone in it.
    Spoils,
    /// Fails the whole batch after the gate has opened.
    HoldsAndSpoils,
    Panics,
    LosesAResult,
    SaysBroken,
    BreaksAll,
}

/// Instructions for a model, and a record of its work. Created by the test, never deserialized.
#[derive(Clone, Default)]
pub(crate) struct Script(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    open: bool,
    batches: Vec<Vec<Ask>>,
    threads: Vec<ThreadId>,
    gone: bool,
    load: Option<Load>,
}

/// Fault before the first batch.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Load {
    Fails,
    Panics,
    NoBatch,
    WarmUpPanics,
}

impl<'de> Deserialize<'de> for Script {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("a script is made by a test"))
    }
}

impl Script {
    pub(crate) fn that(load: Load) -> Self {
        let script = Self::default();
        script.0.state.lock().unwrap().load = Some(load);
        script
    }

    pub(crate) fn open_the_gate(&self) {
        self.0.state.lock().unwrap().open = true;
        self.0.changed.notify_all();
    }

    pub(crate) fn batches(&self) -> Vec<Vec<Ask>> {
        self.0.state.lock().unwrap().batches.clone()
    }

    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.batches().iter().map(Vec::len).collect()
    }

    pub(crate) fn threads(&self) -> Vec<ThreadId> {
        self.0.state.lock().unwrap().threads.clone()
    }

    /// Waits until `batches` batches have begun.
    pub(crate) async fn begun(&self, batches: usize) {
        self.until("a batch begins", |state| state.batches.len() >= batches).await;
    }

    /// Waits until the model is dropped.
    pub(crate) async fn gone(&self) {
        self.until("the model is dropped", |state| state.gone).await;
    }

    async fn until(&self, what: &str, is_so: impl Fn(&State) -> bool) {
        let poll = async {
            while !is_so(&self.0.state.lock().unwrap()) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(timeout(TEST_TIMEOUT, poll).await.is_ok(), "{what}: it does not");
    }

    fn here(&self) {
        self.0.state.lock().unwrap().threads.push(thread::current().id());
    }
}

/// Model that is not `Send`, as a type from a library may not be.
pub(crate) struct Probe(Script, #[expect(dead_code, reason = "its type is all")] *const u8);

impl Batch for Probe {
    type Options = Script;
    type Input = Ask;
    type Output = (u64, u64);

    fn load(script: Script, _models: Models) -> Result<Self> {
        script.here();
        let load = script.0.state.lock().unwrap().load;
        match load {
            Some(Load::Fails) => Err(Error::fatal("there are no weights")),
            Some(Load::Panics) => panic!("a bug in load"),
            _ => Ok(Self(script, std::ptr::null())),
        }
    }

    /// Returns each number doubled, with the seed of the request.
    fn run(&mut self, batch: &[Item<Ask>]) -> Result<Vec<Result<(u64, u64)>>> {
        self.0.here();
        let asked: Vec<Ask> = batch.iter().map(|item| item.input).collect();
        let mut state = self.0.0.state.lock().unwrap();
        state.batches.push(asked.clone());
        if asked.contains(&Ask::Hold) || asked.contains(&Ask::HoldsAndSpoils) {
            state = self.0.0.changed.wait_while(state, |state| !state.open).unwrap();
        }
        drop(state);
        if asked.contains(&Ask::Spoils) || asked.contains(&Ask::HoldsAndSpoils) {
            return Err(Error::bad_input("it cannot be put into one matrix"));
        }
        if asked.contains(&Ask::BreaksAll) {
            return Err(Error::fatal("the device is lost"));
        }
        let mut results: Vec<_> = batch.iter().map(one).collect();
        if asked.contains(&Ask::LosesAResult) {
            results.pop();
        }
        Ok(results)
    }

    fn limits(&self) -> BatchLimits {
        let none = self.0.0.state.lock().unwrap().load == Some(Load::NoBatch);
        let batch_size = if none { 0 } else { 3 };
        BatchLimits { batch_size, max_batch_delay: Duration::ZERO }
    }

    fn warm_up(&mut self) -> Result<()> {
        self.0.here();
        let load = self.0.0.state.lock().unwrap().load;
        assert!(load != Some(Load::WarmUpPanics), "a bug in warm_up");
        Ok(())
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(Fingerprint([7; 16]))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.here();
        self.0.0.state.lock().unwrap().gone = true;
    }
}

fn one(item: &Item<Ask>) -> Result<(u64, u64)> {
    match item.input {
        Ask::Double(number) => Ok((2 * number, item.info.seed)),
        Ask::Bad => Err(Error::bad_input("no number")),
        Ask::Panics => panic!("a model's bug"),
        Ask::SaysBroken => Err(Error::fatal("this one finds the device broken")),
        _ => Ok((0, item.info.seed)),
    }
}

/// Calls of one handler, all on this thread.
pub(crate) struct Stage {
    pub(crate) handler: Arc<Batched<Probe>>,
    pub(crate) script: Script,
}

/// Call in progress.
pub(crate) struct Running {
    reader: Reader,
    task: JoinHandle<Result<Finish>>,
}

impl Stage {
    /// Creates a handler with this batch size and this delay in ms.
    pub(crate) async fn new(size: usize, delay: f64) -> Self {
        let script = Script::default();
        let options = BatchOptions {
            batch_size: Some(size),
            max_batch_delay: Some(delay),
            own: script.clone(),
        };
        let handler = Batched::load(options, Models::default()).await.unwrap();
        Self { handler: Arc::new(handler), script }
    }

    /// Starts a call. It waits in the queue when this returns.
    pub(crate) async fn call(&self, ask: Ask) -> Running {
        self.call_after(ask, None).await
    }

    /// Starts a call with the pieces that the client has from an earlier attempt.
    pub(crate) async fn call_after(&self, ask: Ask, resume: Option<Pieces>) -> Running {
        let (call, reader) = testing::call(&serde_json::to_value(ask).unwrap(), 99);
        let call = Call { resume, ..call };
        let handler = self.handler.clone();
        let task = spawn_local(async move { AnyHandler::call(&*handler, call).await });
        // All calls run on this thread, so each had its turn.
        for _ in 0..8 {
            yield_now().await;
        }
        Running { reader, task }
    }

    /// Starts a batch that lasts until the gate opens.
    pub(crate) async fn hold(&self) -> Running {
        let held = self.call(Ask::Hold).await;
        self.script.begun(1).await;
        held
    }
}

impl Running {
    /// Returns the result of the call, with its piece.
    pub(crate) async fn end(self) -> Result<(u64, u64)> {
        let ended = timeout(TEST_TIMEOUT, self.task).await;
        let finish = ended.expect("the call hangs").expect("the call panicked")?;
        assert_eq!(finish, Finish::STOP);
        let pieces = testing::pieces(&self.reader).unwrap();
        assert_eq!(pieces.len(), 1, "a reply is one piece");
        Ok(pieces[0])
    }

    pub(crate) fn stop(&self, stop: Stop) {
        self.reader.stop(stop);
    }

    /// Drops the call's future.
    pub(crate) async fn drop_it(self) {
        self.task.abort();
        assert!(timeout(TEST_TIMEOUT, self.task).await.expect("it hangs").is_err());
    }
}
