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

/// Cuts the consuming connection of a worker with forty slots. While the broker does not know that
/// a connection is dead, it delivers requeued messages to the connection's other channels, and
/// counts each delivery.
pub(super) fn many_slots(stage: &mut Stage) -> Result<()> {
    stage.settings.slots = 40;
    stage.plan.rules.most_attempts = Some(4);
    adopted(stage, 8)
}

fn adopted(stage: &mut Stage, requests: usize) -> Result<()> {
    stage.plan.rules.taken_up = 1;
    stage.plan.rules.one_run_each = true;
    // A cut can hit an attempt to connect too. After the last one, the replies last for as long as
    // several attempts take.
    let asks = stage.ask_for(requests, &Ask::new(500, 20));
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

/// Cuts publishing connections: first in mid-stream; then with the last frames held back and the
/// worker killed before it can send them again. A request that was acked too early would be lost.
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
    // Waits long enough for a premature ack.
    sleep(Duration::from_millis(700));
    stage.kill(&worker)?;
    stage.cut(" publish")?;
    stage.thaw();
    Ok(())
}

/// Freezes the client's connection until the broker has deleted its reply queue. The queue outlives
/// the connection by 15 s, and the connection outlives its last heartbeat by two heartbeat
/// intervals.
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
    // Broker and worker close a connection after two missed heartbeats.
    stage.settings.heartbeat = 2;
    stage.plan.rules.taken_up = 1;
    // These replies are long enough to be still running when the adoption window of a returning
    // worker is over.
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
