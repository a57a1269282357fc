//! Faults of workers and of their handlers.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use crate::follow::{gone, left_in_order};
use crate::order::Does;
use crate::plan::{Ask, Expect};
use crate::stage::Stage;

pub(super) fn idle(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.one_run_each = true;
    for i in 0..8 {
        stage.ask(Ask::new(30, 20).after(i * 100));
    }
    stage.start_workers(2)?;
    stage.start_client()
}

pub(super) fn kill(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.taken_up = 1;
    let asks: Vec<usize> = (0..6).map(|i| stage.ask(Ask::new(200, 20).deaf(i % 3 == 2))).collect();
    stage.start_workers(2)?;
    stage.start_client()?;
    for piece in [10, 60, 110] {
        let victim = asks[stage.random.between(0, asks.len() - 1)];
        let moment = stage.random.between(piece, piece + 40);
        stage.until_piece(victim, moment)?;
        let worker = stage.runner_of(victim)?;
        stage.kill(&worker)?;
    }
    Ok(())
}

pub(super) fn drain(stage: &mut Stage) -> Result<()> {
    stage.settings.grace_s = 3;
    stage.plan.rules.taken_up = 3;
    // A slow hand-over of the client's pieces is no fault; three of them would be one.
    stage.plan.rules.resumed = 1;
    let long = stage.ask_for(3, &Ask::new(300, 25));
    // This job fits the grace period, so it ends in the worker in which it began.
    let short = stage.ask(Ask::new(80, 25).at_most(1));
    stage.start_worker("w1")?;
    stage.start_client()?;
    for ask in [long[0], long[1], long[2], short] {
        stage.until_piece(ask, 20)?;
    }
    stage.start_worker("w2")?;
    stage.terminate("w1")?;
    stage.until("w1 to leave", |lines| gone(lines, "w1.0", 1))?;
    stage.until("w1 to leave in good order", |lines| left_in_order(lines, "w1.0"))
}

/// Runs all requests in one worker, so that the poison has neighbors.
pub(super) fn poison(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.dead = Some((1, "poison".to_owned()));
    let poison = Ask::new(10, 20).does(Does::AbortAt(3));
    stage.ask(poison.expect(Expect::Failure("poison".to_owned())));
    // Neighbors of the first two runs of the poison. After that, each request with an unreturned
    // run runs alone.
    for i in 0..6 {
        stage.ask(Ask::new(60, 25).after(i * 200).at_most(3));
    }
    stage.fault("poison", "w1")?;
    stage.start_worker("w1")?;
    stage.start_client()
}

pub(super) fn panic(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.taken_up = 1;
    stage.ask(Ask::new(40, 20).does(Does::PanicAt(20)));
    for _ in 0..4 {
        stage.ask(Ask::new(80, 20));
    }
    stage.fault("panic", "a handler")?;
    stage.start_workers(2)?;
    stage.start_client()
}

pub(super) fn block(stage: &mut Stage) -> Result<()> {
    stage.settings.heartbeat = 2;
    stage.plan.rules.one_run_each = true;
    stage.ask(Ask::new(20, 20).does(Does::BlockAt(10, 9000)));
    stage.ask(Ask::new(200, 20));
    stage.fault("block", "a handler")?;
    stage.start_workers(2)?;
    stage.start_client()
}

pub(super) fn flood(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.taken_up = 1;
    let asks = stage.ask_for(1000, &Ask::new(8, 5).within(90_000));
    stage.start_workers(3)?;
    stage.start_client()?;
    for second in 0..5 {
        sleep(Duration::from_millis(700));
        stage.pause(0, 600);
        let worker = format!("w{}", 1 + (second + stage.random.between(0, 2)) % 3);
        stage.kill(&worker)?;
        if asks.iter().all(|ask| stage.is_over(*ask)) {
            break;
        }
    }
    Ok(())
}

pub(super) fn differ(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.taken_up = 1;
    let one = Ask::new(100, 20).does(Does::Differ).expect(Expect::OneOfSeveral);
    let asks = stage.ask_for(3, &one);
    stage.start_workers(2)?;
    stage.start_client()?;
    let victim = asks[stage.random.between(0, asks.len() - 1)];
    let moment = stage.random.between(10, 60);
    stage.until_piece(victim, moment)?;
    let worker = stage.runner_of(victim)?;
    stage.kill(&worker)
}

/// Starts one worker after another, each with another clock offset.
pub(super) fn clock_skew(stage: &mut Stage) -> Result<()> {
    let clocks = [(30, true), (-30, true), (600, false), (-600, false)];
    let skewed = || Expect::Failure("clock-skew".to_owned());
    let asks: Vec<usize> = clocks
        .iter()
        .map(|(_, works)| {
            let expect = if *works { Expect::Text } else { skewed() };
            stage.ask(Ask::new(10, 20).within(45_000).expect(expect))
        })
        .collect();
    stage.plan.rules.dead = Some((2, "clock-skew".to_owned()));
    for (i, (skew, _)) in clocks.iter().enumerate() {
        stage.settings.skew_s = *skew;
        stage.fault(&format!("clock {skew:+} s"), "w1")?;
        stage.start_worker("w1")?;
        stage.start_client_for(&asks[i..=i])?;
        stage.until_over(asks[i])?;
        // The caller receives the failure before the request is settled.
        stage.dismiss("w1")?;
    }
    Ok(())
}
