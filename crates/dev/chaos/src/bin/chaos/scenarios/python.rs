//! Crashes and hangs of models in Python.

use anyhow::{Result, ensure};

use crate::follow::{gone, left_with};
use crate::order::{Crash, Does, Hang};
use crate::plan::{Ask, Expect, Reading};
use crate::stage::{PythonProcesses, Stage, until_no_process_of};

const CRASHES: [Crash; 6] =
    [Crash::Segfault, Crash::Exit, Crash::Abort, Crash::Kill, Crash::ThreadExit, Crash::Memory];

/// Hangs that end only with their process.
const STUBBORN: [Hang; 5] =
    [Hang::CCall, Hang::Sleep, Hang::EndlessThread, Hang::StubbornLoop, Hang::Child];

/// Hangs that end when the call is told to stop.
const POLITE: [Hang; 2] = [Hang::Spin, Hang::Patient];

/// Number of runs of a request that crashes in each: its time limit leaves out the last retry.
const TRIES: usize = 3;

/// Time limit of requests that may be retried as often as a worker does it, in milliseconds.
const ALL_RETRIES_MS: u64 = 150_000;

/// Number of processes that the driver kills in a worker. A request survives one more.
const KILLS: usize = 3;

/// Time from a stop to the end of its run, in milliseconds: the process is killed after 2 s.
const STOPPED_WITHIN_MS: u64 = 3500;

/// Number of pieces, 20 ms each, of a call that still runs when a call beside it is killed: that happens
/// 2.4 s after its start at the latest, and these take 6 s.
const LONG_PIECES: usize = 300;

/// Plays a worker whose processes have one call each, one whose only process has three, and one that
/// leaves after three crashes.
pub(super) fn crash(stage: &mut Stage) -> Result<()> {
    stage.settings.grace_s = 1;
    stage.plan.rules.dead = Some((CRASHES.len(), "model-failed".to_owned()));
    stage.plan.rules.taken_up = 2 * CRASHES.len() + 3;
    stage.plan.rules.resumed = CRASHES.len();
    let failing: Vec<usize> = CRASHES.map(|how| crashing(stage, how, true, 3000)).into();
    let crashing_once: Vec<usize> = CRASHES.map(|how| crashing(stage, how, false, 3000)).into();
    let innocent = innocents(stage, 16, 3000);
    let mut beside = vec![crashing(stage, Crash::Segfault, false, 0)];
    beside.extend(innocents(stage, 6, 1000));
    let mut last: Vec<usize> =
        [Crash::Exit, Crash::Abort, Crash::Kill].map(|how| crashing(stage, how, false, 800)).into();
    last.extend(innocents(stage, 4, 800));
    stage.fault("crash", "Python")?;
    each_alone(stage, &failing, &[crashing_once, innocent].concat())?;
    neighbors(stage, &beside)?;
    too_many(stage, &last)
}

/// Checks that a crash costs its own request one try, and no other one.
fn each_alone(stage: &mut Stage, failing: &[usize], answered: &[usize]) -> Result<()> {
    let python = PythonProcesses { processes: 3, slots: 1, crashes: 1000, crash_window_s: 1 };
    let pages = stage.with_python_model(&python)?;
    stage.start_worker("w1")?;
    stage.start_client_for(&[failing, answered].concat())?;
    for _ in 0..KILLS {
        stage.pause(400, 1500);
        stage.kill_python("w1")?;
        stage.still_lives("w1", pages)?;
    }
    for ask in [failing, answered].concat() {
        stage.until_over(ask)?;
        stage.still_lives("w1", pages)?;
    }
    let tries = stage.runs_of(failing)?;
    ensure!(tries == TRIES * failing.len(), "requests that crash ran {tries} times in all");
    let again = stage.runs_of(answered)? - answered.len();
    let most = CRASHES.len() + KILLS;
    ensure!(again <= most, "{again} runs were lost to {most} crashes");
    stage.dismiss_with_python("w1")
}

/// Checks that the calls in a process that ends are run again.
fn neighbors(stage: &mut Stage, asks: &[usize]) -> Result<()> {
    let python = PythonProcesses { processes: 1, slots: 3, crashes: 1000, crash_window_s: 1 };
    let pages = stage.with_python_model(&python)?;
    stage.start_worker("w2")?;
    stage.start_client_for(asks)?;
    stage.pause(400, 1500);
    stage.kill_python("w2")?;
    for ask in asks {
        stage.until_over(*ask)?;
        stage.still_lives("w2", pages)?;
    }
    stage.dismiss_with_python("w2")
}

/// Checks that a worker leaves after too many crashes, and that the next one answers.
fn too_many(stage: &mut Stage, asks: &[usize]) -> Result<()> {
    stage.with_python_model(&PythonProcesses {
        processes: 2,
        slots: 1,
        crashes: 3,
        crash_window_s: 600,
    })?;
    stage.start_worker("w3")?;
    stage.start_client_for(asks)?;
    stage.until("the worker to leave", |lines| gone(lines, "w3.0", 1))?;
    stage.until("it to leave with an error", |lines| left_with(lines, "w3.0", "exit status: 1"))?;
    stage.said("w3.0", "3 crashes of Python within 600 s")
}

/// Plays calls that hang when their caller cancels, beside others in the same processes, and calls
/// that hang when their time is over, in processes of their own. A request that was retried after
/// its time is over would run once more, so the latter have no neighbors. Which calls run beside one
/// that hangs is up to chance, so the last worker has one process for a call that hangs and a call
/// that outlasts its kill.
pub(super) fn hang(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.taken_up = 1;
    let mut cancelled = Vec::new();
    let mut late = Vec::new();
    for how in STUBBORN.into_iter().chain(POLITE) {
        let (at, after) = moment(stage, 3000);
        let ask = Ask::new(60, 20).does(Does::Hang { how, at });
        let expect = Expect::Cancelled(STOPPED_WITHIN_MS);
        let reading = Reading::UntilPiece(at);
        cancelled.push(stage.ask(ask.clone().after(after).reading(reading).expect(expect)));
        late.push(stage.ask(ask.within(5000).expect(Expect::Deadline(STOPPED_WITHIN_MS))));
    }
    cancelled.extend(innocents(stage, 10, 3000));
    late.extend(innocents(stage, 4, 3000));
    let (at, _) = moment(stage, 0);
    let hangs = Ask::new(60, 20).does(Does::Hang { how: Hang::Sleep, at });
    let expect = Expect::Cancelled(STOPPED_WITHIN_MS);
    let beside = [
        stage.ask(hangs.reading(Reading::UntilPiece(at)).expect(expect)),
        stage.ask(Ask::new(LONG_PIECES, 20).within(ALL_RETRIES_MS)),
    ];
    stage.fault("hang", "Python")?;
    let some = hang_in(stage, "w1", 2, 2, &cancelled)?;
    ensure!((2..=STUBBORN.len()).contains(&some), "{some} processes were killed");
    let all = hang_in(stage, "w2", STUBBORN.len() + POLITE.len(), 1, &late)?;
    ensure!(all == STUBBORN.len(), "{all} processes were killed, one for each call that hangs");
    let one = hang_in(stage, "w3", 1, 2, &beside)?;
    ensure!(one == 1, "{one} processes were killed, and one call hangs");
    Ok(())
}

/// Plays these requests in a worker, and returns the number of processes that it killed.
fn hang_in(
    stage: &mut Stage,
    worker: &str,
    processes: usize,
    slots: usize,
    asks: &[usize],
) -> Result<usize> {
    // A process that is killed for a stop is no crash: one crash would end the worker.
    let python = PythonProcesses { processes, slots, crashes: 1, crash_window_s: 600 };
    let pages = stage.with_python_model(&python)?;
    stage.start_worker(worker)?;
    stage.start_client_for(asks)?;
    let mut groups = Vec::new();
    while !asks.iter().all(|ask| stage.is_over(*ask)) {
        stage.still_lives(worker, pages)?;
        groups.extend(stage.python_processes(worker)?);
        stage.pause(50, 100);
    }
    // The last processes may be about to be killed.
    stage.pause(STOPPED_WITHIN_MS as usize, STOPPED_WITHIN_MS as usize);
    stage.still_lives(worker, pages)?;
    let kills = stage.metric(pages, "nsbridge_handler_python_kills_total")?;
    let crashes = stage.metric(pages, "nsbridge_handler_python_crashes_total")?;
    ensure!(crashes == 0.0, "{crashes} processes crashed");
    let current = stage.python_processes(worker)?;
    groups.retain(|group| !current.contains(group));
    until_no_process_of(&groups)?;
    stage.dismiss_with_python(worker)?;
    Ok(kills as usize)
}

/// Adds a request that ends its Python process.
fn crashing(stage: &mut Stage, how: Crash, always: bool, within_ms: usize) -> usize {
    let (at, after) = moment(stage, within_ms);
    let ask = Ask::new(40, 20).does(Does::Crash { how, at, always }).after(after);
    let ask = if always {
        ask.expect(Expect::Failure("model-failed".to_owned())).at_most(TRIES)
    } else {
        ask.within(ALL_RETRIES_MS)
    };
    stage.ask(ask)
}

/// Adds requests that do nothing wrong.
fn innocents(stage: &mut Stage, count: usize, within_ms: usize) -> Vec<usize> {
    let one = |_| {
        let (_, after) = moment(stage, within_ms);
        stage.ask(Ask::new(60, 20).after(after).within(ALL_RETRIES_MS))
    };
    (0..count).map(one).collect()
}

/// Draws a piece near the begin of a reply, and a time of submission in milliseconds.
fn moment(stage: &mut Stage, within_ms: usize) -> (usize, u64) {
    (stage.random.between(3, 20), stage.random.between(0, within_ms) as u64)
}
