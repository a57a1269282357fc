//! Faults of the network.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use crate::follow::was_said;
use crate::plan::Ask;
use crate::stage::Stage;

pub(super) fn cut(stage: &mut Stage) -> Result<()> {
    several_cuts(stage, "", 1)
}

pub(super) fn cut_consume(stage: &mut Stage) -> Result<()> {
    several_cuts(stage, " consume", 1)
}

pub(super) fn adopt(stage: &mut Stage) -> Result<()> {
    stage.settings.slots = 4;
    adopted(stage, 3)
}

/// The broker hands what a dying connection held to its next channel, as long as that is not known
/// to be dead, and counts each time.
pub(super) fn many_slots(stage: &mut Stage) -> Result<()> {
    stage.settings.slots = 40;
    stage.plan.rules.most_attempts = Some(4);
    adopted(stage, 8)
}

fn adopted(stage: &mut Stage, requests: usize) -> Result<()> {
    stage.plan.rules.taken_up = 1;
    stage.plan.rules.one_run_each = true;
    let asks = stage.ask_for(requests, &Ask::new(250, 20));
    stage.start_worker("w1")?;
    stage.start_client()?;
    for piece in [10, 80, 160] {
        let watched = asks[stage.random.between(0, asks.len() - 1)];
        let moment = stage.random.between(piece, piece + 50);
        stage.until_piece(watched, moment)?;
        stage.cut(" consume")?;
    }
    Ok(())
}

pub(super) fn client_reconnect(stage: &mut Stage) -> Result<()> {
    several_cuts(stage, "c1 ", 0)
}

fn several_cuts(stage: &mut Stage, part: &str, taken_up: usize) -> Result<()> {
    stage.plan.rules.taken_up = taken_up;
    let asks: Vec<usize> = (0..5).map(|i| stage.ask(Ask::new(250, 20).deaf(i % 2 == 1))).collect();
    stage.start_workers(2)?;
    stage.start_client()?;
    for piece in [10, 80, 160] {
        let watched = asks[stage.random.between(0, asks.len() - 1)];
        let moment = stage.random.between(piece, piece + 50);
        stage.until_piece(watched, moment)?;
        stage.cut(part)?;
    }
    Ok(())
}

/// First in mid-stream; then with the last frames held back, and the worker killed before it can
/// say them again: a request that was acked too early is lost now.
pub(super) fn cut_publish(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.taken_up = 1;
    let asks: Vec<usize> = (0..4).map(|i| stage.ask(Ask::new(150, 20).deaf(i % 2 == 1))).collect();
    let last = stage.ask(Ask::new(240, 20));
    stage.start_workers(2)?;
    stage.start_client()?;
    for piece in [5, 50, 100] {
        let watched = asks[stage.random.between(0, asks.len() - 1)];
        let moment = stage.random.between(piece, piece + 40);
        stage.until_piece(watched, moment)?;
        stage.cut(" publish")?;
    }
    let moment = stage.random.between(200, 235);
    stage.until_piece(last, moment)?;
    let worker = stage.runner_of(last)?;
    stage.freeze(" publish")?;
    stage.until("the end of the last run", |lines| was_said(lines, last))?;
    // Time enough to do the wrong thing.
    sleep(Duration::from_millis(700));
    stage.kill(&worker)?;
    stage.cut(" publish")?;
    stage.thaw();
    Ok(())
}

/// The queue outlives its client's connection by 15 s, and that its last heartbeat by two more.
pub(super) fn queue_lost(stage: &mut Stage) -> Result<()> {
    stage.client_settings.heartbeat = 2;
    stage.plan.rules.asked_again = 1;
    let asks = stage.ask_for(3, &Ask::new(300, 20).within(90_000));
    stage.start_workers(2)?;
    stage.start_client()?;
    let watched = asks[stage.random.between(0, asks.len() - 1)];
    let moment = stage.random.between(20, 120);
    stage.until_piece(watched, moment)?;
    stage.stop_listening();
    stage.freeze("c1 ")?;
    sleep(Duration::from_secs(23));
    stage.listen()?;
    stage.thaw();
    Ok(())
}

pub(super) fn half_open(stage: &mut Stage) -> Result<()> {
    // The broker gives up after two of these, and so does the worker.
    stage.settings.heartbeat = 2;
    stage.plan.rules.taken_up = 1;
    // Long enough to be still running when the window of a worker that came back is over.
    let asks = stage.ask_for(4, &Ask::new(850, 25));
    stage.start_workers(2)?;
    stage.start_client()?;
    let watched = asks[stage.random.between(0, asks.len() - 1)];
    let moment = stage.random.between(20, 80);
    stage.until_piece(watched, moment)?;
    let worker = stage.runner_of(watched)?;
    stage.freeze(&format!("{worker}."))?;
    sleep(Duration::from_secs(7));
    stage.pause(0, 2000);
    stage.thaw();
    Ok(())
}
