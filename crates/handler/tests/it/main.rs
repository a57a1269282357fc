//! Tests that `testing::check` accepts correct handlers and detects each way to break the contract.
#![cfg(feature = "testing")]
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod batch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nsbridge_handler::testing::{Breach, answer, check, load};
use nsbridge_handler::{Error, Finish, Handler, Job, Models, Result, Slots};

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
    slots: Slots,
    calls: AtomicUsize,
    running: AtomicUsize,
    busy: AtomicBool,
}

impl Handler for Words {
    type Options = (Fault, Option<usize>, Option<usize>);
    type Input = u64;
    type Output = String;

    async fn load((fault, threads, tasks): Self::Options, _models: Models) -> Result<Self> {
        let slots = threads.map(Slots::Threads).or(tasks.map(Slots::Tasks));
        let slots = slots.ok_or_else(|| Error::fatal("no slots"))?;
        let (calls, running) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Ok(Self { fault, slots, calls, running, busy: AtomicBool::new(false) })
    }

    async fn handle(&self, words: u64, job: &mut Job<String>) -> Result<Finish> {
        if self.busy.swap(self.fault == Fault::StaysBusy, Ordering::Relaxed) {
            return Err(Error::retry("an earlier call still holds the model"));
        }
        let others = self.running.fetch_add(1, Ordering::Relaxed);
        let _running = Running(&self.running);
        let result = self.words(words, others, job).await;
        self.busy.store(false, Ordering::Relaxed);
        result
    }

    fn slots(&self) -> Slots {
        self.slots
    }
}

impl Words {
    async fn words(&self, words: u64, others: usize, job: &mut Job<String>) -> Result<Finish> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let done = if self.fault == Fault::StartsOver { 0 } else { job.resumed().len() as u64 };
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
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
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

fn on_threads(fault: Fault, threads: usize) -> Arc<Words> {
    load((fault, Some(threads), None), Models::default()).unwrap()
}

fn as_tasks(fault: Fault, tasks: usize) -> Arc<Words> {
    load((fault, None, Some(tasks)), Models::default()).unwrap()
}

#[track_caller]
fn check_breach(handler: &Arc<Words>, expected: impl Fn(&Breach) -> bool) {
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
