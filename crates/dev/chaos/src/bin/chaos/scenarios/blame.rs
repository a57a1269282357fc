//! Repeated deaths and drains of workers for which no request may be blamed.

use std::time::Duration;

use anyhow::Result;

use crate::follow::gone;
use crate::journal::{Line, What};
use crate::plan::{Ask, Pace};
use crate::stage::{Stage, base};

/// Number of kills. The poison limit is lower, so a request that was blamed for each kill would end
/// as poison.
const KILLS: usize = 40;

/// Number of kills from one that hits a worker with a waiting request to the next.
const KILLS_PER_AIMED: usize = 4;

/// Time in which a request must begin to wait for an aimed kill. Without one a kill is not aimed.
const WAITING_WITHIN: Duration = Duration::from_millis(800);

/// Number of drains, above the poison limit for the same reason.
const DRAINS: usize = 18;

/// Number of pieces from one drain to the next.
const A_DRAIN: usize = 52;

/// Number of replies in the rolling update. They fill two thirds of the slots, so the jobs of one
/// drained worker fit into the others.
const REPLIES: usize = 16;

/// Kills workers while requests wait to run alone. No request causes a kill.
///
/// Some kills are aimed at a worker with waiting requests. How many of the others hit such a worker
/// depends on the speed of the machine.
pub(super) fn fast_kills(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.taken_up = 5;
    stage.plan.rules.died_waiting = 3;
    let mut asks = Vec::new();
    for _ in 0..10 {
        let pieces = stage.random.between(180, 220);
        asks.push(stage.ask(Ask::new(pieces, 25).within(90_000)));
    }
    stage.start_workers(2)?;
    stage.start_client()?;
    let has_begun = |line: &Line| matches!(line.what, What::Start { .. });
    stage.until("a run to begin", |lines| lines.iter().any(has_begun))?;
    for kill in 0..KILLS {
        stage.pause(200, 900);
        if asks.iter().all(|ask| stage.is_over(*ask)) {
            break;
        }
        let mut waiting = None;
        if kill % KILLS_PER_AIMED == 0 {
            waiting = stage.one_with_waiting(WAITING_WITHIN)?;
        }
        let worker = match waiting {
            Some(worker) => worker,
            None => stage.one_that_takes()?,
        };
        stage.kill(&worker)?;
    }
    Ok(())
}

/// Drains the worker of one long request again and again, while short requests arrive.
pub(super) fn many_drains(stage: &mut Stage) -> Result<()> {
    stage.settings.grace_s = 0;
    stage.plan.rules.taken_up = 1;
    stage.plan.rules.resumed = DRAINS / 2;
    let long = stage.ask(Ask::new(1000, 22).within(90_000));
    for i in 0..6 {
        stage.ask(Ask::new(20, 20).after(i * 4000).within(90_000));
    }
    stage.start_workers(2)?;
    stage.start_client()?;
    for drain in 0..DRAINS {
        let moment = drain * A_DRAIN + stage.random.between(10, 45);
        let Some(worker) = stage.runner_after(long, moment)? else { break };
        // The other worker must be ready to take over.
        let other = if base(&worker) == "w1" { "w2" } else { "w1" };
        stage.until_taking(other)?;
        stage.terminate(base(&worker))?;
        stage.until("a worker to leave", |lines| gone(lines, &worker, 1))?;
    }
    Ok(())
}

/// Plays a rolling update: one worker after the other receives SIGTERM and is replaced.
///
/// The slowdown is measured against the same number of undisturbed replies before, in the same
/// workers. The product of pieces and delay would leave out the load of the machine, which affects
/// both groups. Other rounds begin and end meanwhile, so the bound is that of a fault of the bridge,
/// such as requests that run alone without a reason: a quiet machine has 1.1 to 1.3, and 1.5 was met
/// beside other rounds.
pub(super) fn rolling(stage: &mut Stage) -> Result<()> {
    stage.settings.grace_s = 0;
    stage.settings.slots = 8;
    stage.plan.rules.taken_up = REPLIES / 2;
    stage.plan.rules.resumed = REPLIES / 2;
    stage.plan.rules.pace = Some(Pace { undisturbed: REPLIES, at_most: 2.0 });
    let reply = Ask::new(1000, 15).within(120_000);
    let undisturbed = stage.ask_for(REPLIES, &reply);
    let replies = stage.ask_for(REPLIES, &reply);
    stage.start_workers(3)?;
    stage.start_client_for(&undisturbed)?;
    for ask in undisturbed {
        stage.until_over(ask)?;
    }
    stage.start_client_for(&replies)?;
    stage.until_piece(replies[0], 1)?;
    for turn in 0..5 {
        stage.pause(1700, 2300);
        let worker = format!("w{}", 1 + turn % 3);
        let life = format!("{worker}.{}", turn / 3);
        stage.terminate(&worker)?;
        stage.until("a worker to leave", |lines| gone(lines, &life, 1))?;
        stage.until_taking(&worker)?;
    }
    Ok(())
}
