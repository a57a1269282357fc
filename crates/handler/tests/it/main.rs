//! Tests that `testing::check` accepts correct handlers and detects each way to break the contract.
#![cfg(feature = "testing")]
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod batch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt as _;
use nsbridge_handler::erased::Servable;
use nsbridge_handler::testing::{Breach, answer, check, load};
use nsbridge_handler::{
    AsyncHandler, AsyncJob, Emitter, Error, Finish, Handler, Job, JobInfo, Models, Result, Stop,
};

/// Fault of a [`Words`] handler.
#[derive(Clone, Copy, PartialEq, serde::Deserialize)]
enum Fault {
    None,
    StartsOver,
    EmitsAfterReturn,
    IgnoresStop,
    SwallowsStop,
    RenamesStop,
    CountsCalls,
    BlocksThread,
    StaysBusy,
    SharesState,
    LosesPieces,
    ForgetsWhereItWas,
    Panics,
    IsSilent,
}

/// Handler that emits a few numbers that depend on the seed and the index, with one [`Fault`].
struct Words {
    fault: Fault,
    slots: usize,
    calls: AtomicUsize,
    running: AtomicUsize,
    busy: AtomicBool,
}

/// [`Words`] as a handler that blocks its thread.
struct OnThreads(Words);

impl Handler for OnThreads {
    type Options = (Fault, usize);
    type Input = u64;
    type Output = String;

    fn load((fault, threads): Self::Options, _models: Models) -> Result<Self> {
        Ok(Self(Words::new(fault, threads)))
    }

    fn handle(&self, words: u64, job: &mut Job<String>) -> Result<Finish> {
        self.0.call(words, job).now_or_never().expect("a blocking job never awaits")
    }

    fn threads(&self) -> usize {
        self.0.slots
    }
}

/// [`Words`] as a handler whose calls await.
struct AsTasks(Words);

impl AsyncHandler for AsTasks {
    type Options = (Fault, usize);
    type Input = u64;
    type Output = String;

    async fn load((fault, tasks): Self::Options, _models: Models) -> Result<Self> {
        Ok(Self(Words::new(fault, tasks)))
    }

    async fn handle(&self, words: u64, job: &mut AsyncJob<String>) -> Result<Finish> {
        self.0.call(words, job).await
    }

    fn tasks(&self) -> usize {
        self.0.slots
    }
}

/// Job of either kind.
trait AnyJob {
    async fn emit(&mut self, word: String) -> Result<(), Stop>;
    async fn rest(&self);
    fn info(&self) -> &JobInfo;
    fn resumed(&mut self) -> usize;
    fn emitter(&self) -> Emitter<String>;
}

impl AnyJob for Job<String> {
    async fn emit(&mut self, word: String) -> Result<(), Stop> {
        Self::emit(self, word)
    }

    async fn rest(&self) {
        thread::sleep(Duration::from_millis(1));
    }

    fn info(&self) -> &JobInfo {
        Self::info(self)
    }

    fn resumed(&mut self) -> usize {
        self.accept_resume().len()
    }

    fn emitter(&self) -> Emitter<String> {
        Self::emitter(self)
    }
}

impl AnyJob for AsyncJob<String> {
    async fn emit(&mut self, word: String) -> Result<(), Stop> {
        Self::emit(self, word).await
    }

    async fn rest(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    fn info(&self) -> &JobInfo {
        Self::info(self)
    }

    fn resumed(&mut self) -> usize {
        self.accept_resume().len()
    }

    fn emitter(&self) -> Emitter<String> {
        Self::emitter(self)
    }
}

impl Words {
    fn new(fault: Fault, slots: usize) -> Self {
        let (calls, running) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { fault, slots, calls, running, busy: AtomicBool::new(false) }
    }

    async fn call(&self, words: u64, job: &mut impl AnyJob) -> Result<Finish> {
        if self.busy.swap(self.fault == Fault::StaysBusy, Ordering::Relaxed) {
            return Err(Error::retry("an earlier call still holds the model"));
        }
        let others = self.running.fetch_add(1, Ordering::Relaxed);
        let _running = Running(&self.running);
        let result = self.words(words, others, job).await?;
        self.busy.store(false, Ordering::Relaxed);
        Ok(result)
    }

    async fn words(&self, words: u64, others: usize, job: &mut impl AnyJob) -> Result<Finish> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let done = if self.fault == Fault::StartsOver { 0 } else { job.resumed() as u64 };
        for index in done..words {
            let salt = match self.fault {
                Fault::CountsCalls => call,
                Fault::SharesState => others,
                Fault::ForgetsWhereItWas => done as usize,
                _ => 0,
            };
            let word = format!("{:x} ", job.info().seed.wrapping_mul(2 * index + 1) + salt as u64);
            match self.fault {
                Fault::BlocksThread => thread::sleep(Duration::from_millis(1200)),
                Fault::Panics => panic!("a handler's bug"),
                Fault::IsSilent => continue,
                Fault::LosesPieces => {
                    let _ = job.emitter().try_emit(&word);
                    continue;
                }
                _ => job.rest().await,
            }
            match (job.emit(word).await, self.fault) {
                (Err(_), Fault::IgnoresStop) => thread::sleep(Duration::from_secs(3)),
                (Err(_), Fault::SwallowsStop) => return Ok(Finish::STOP),
                (Err(_), Fault::RenamesStop) => return Err(Error::retry("the client left")),
                (emitted, _) => emitted?,
            }
        }
        if self.fault == Fault::EmitsAfterReturn {
            let emitter = job.emitter();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                let _ = emitter.try_emit(&"late".into());
            });
        }
        Ok(Finish::STOP)
    }
}

struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn on_threads(fault: Fault, threads: usize) -> Arc<OnThreads> {
    load((fault, threads), Models::default()).unwrap()
}

fn as_tasks(fault: Fault, tasks: usize) -> Arc<AsTasks> {
    load((fault, tasks), Models::default()).unwrap()
}

#[track_caller]
fn check_breach<H: Servable<K>, K>(handler: &Arc<H>, expected: impl Fn(&Breach) -> bool) {
    match check(handler, &6.into()) {
        Err(breach) => assert!(expected(&breach), "{breach:?}"),
        Ok(()) => panic!("the fault was not seen"),
    }
}

#[test]
fn good_handlers_pass_on_threads_and_as_tasks() {
    for slots in [1, 3] {
        assert_eq!(check(&on_threads(Fault::None, slots), &6.into()), Ok(()));
        assert_eq!(check(&as_tasks(Fault::None, slots), &6.into()), Ok(()));
    }
}

#[test]
fn a_reply_of_one_piece_can_be_checked_too() {
    assert_eq!(check(&as_tasks(Fault::None, 8), &1.into()), Ok(()));
}

#[test]
fn a_handler_that_starts_over_after_a_resume_passes() {
    assert_eq!(check(&as_tasks(Fault::StartsOver, 2), &6.into()), Ok(()));
}

#[test]
fn a_piece_after_the_return_is_caught() {
    let late = |breach: &Breach| *breach == Breach::EmitsAfterReturn;
    check_breach(&on_threads(Fault::EmitsAfterReturn, 1), late);
    check_breach(&as_tasks(Fault::EmitsAfterReturn, 1), late);
}

#[test]
fn a_handler_that_ignores_a_stop_is_caught() {
    check_breach(&on_threads(Fault::IgnoresStop, 1), |breach| *breach == Breach::MissesStop);
}

#[test]
fn a_stop_reported_as_success_or_as_another_error_is_caught() {
    let hides = |breach: &Breach| matches!(breach, Breach::HidesStop(_));
    check_breach(&on_threads(Fault::SwallowsStop, 1), hides);
    check_breach(&as_tasks(Fault::RenamesStop, 1), hides);
}

#[test]
fn pieces_that_depend_on_a_counter_are_caught() {
    let differs = |breach: &Breach| *breach == Breach::NotRepeatable(0);
    // What `unwrap` shows is the sentence.
    assert!(format!("{:?}", Breach::NotRepeatable(0)).starts_with("piece 0 differs"));
    check_breach(&on_threads(Fault::CountsCalls, 1), differs);
}

#[test]
fn pieces_that_depend_on_other_calls_are_caught() {
    let disturbed = |breach: &Breach| *breach == Breach::Disturbed(0);
    check_breach(&as_tasks(Fault::SharesState, 8), disturbed);
    check_breach(&on_threads(Fault::SharesState, 8), disturbed);
}

#[test]
fn pieces_lost_while_the_client_is_slow_are_caught() {
    check_breach(&as_tasks(Fault::LosesPieces, 1), |breach| *breach == Breach::LosesPieces(1));
}

#[test]
fn a_handler_of_tasks_that_blocks_is_caught_and_one_of_threads_may() {
    check_breach(&as_tasks(Fault::BlocksThread, 1), |breach| matches!(breach, Breach::Blocks(_)));
    let blocking = on_threads(Fault::BlocksThread, 1);
    assert_eq!(answer(&blocking, &1.into(), 3, &[]).unwrap().0, ["3 "]);
}

#[test]
fn a_handler_that_a_dropped_call_leaves_broken_is_caught() {
    let broken = |breach: &Breach| matches!(breach, Breach::BrokenByDrop(_));
    check_breach(&as_tasks(Fault::StaysBusy, 1), broken);
    check_breach(&on_threads(Fault::StaysBusy, 1), broken);
}

#[test]
fn a_resume_that_goes_on_otherwise_is_caught() {
    let expected = Breach::ResumesWrong { at: 3, piece: 3 };
    check_breach(&as_tasks(Fault::ForgetsWhereItWas, 1), |breach| *breach == expected);
}

#[test]
fn panics_and_silence_are_told_apart() {
    check_breach(&as_tasks(Fault::Panics, 1), |breach| *breach == Breach::Panicked);
    check_breach(&on_threads(Fault::Panics, 1), |breach| *breach == Breach::Panicked);
    check_breach(&as_tasks(Fault::IsSilent, 1), |breach| *breach == Breach::NoPieces);
}

#[test]
fn an_input_that_is_refused_is_reported_with_its_reason() {
    match check(&as_tasks(Fault::None, 1), &"six".into()) {
        Err(Breach::Failed(why)) => assert!(why.contains("does not fit"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_goes_on_after_resumed_pieces() {
    let handler = as_tasks(Fault::None, 1);
    let (whole, _) = answer(&handler, &4.into(), 1, &[]).unwrap();
    let (resumed, finish) = answer(&handler, &4.into(), 1, &whole[..2]).unwrap();
    assert_eq!((resumed, finish), (whole, Finish::STOP));
}
