//! Faults of clients and callers.

use anyhow::Result;

use crate::plan::{Ask, Expect, Reading};
use crate::stage::Stage;

/// Time in which runs must stop after their client is gone, in milliseconds. The reply queue
/// outlives its client by 15 s, and a worker needs two misses that are 2 s apart; the rest is for
/// slow machines.
const GONE_WITHIN_MS: u64 = 25_000;

pub(super) fn gone(stage: &mut Stage) -> Result<()> {
    let endless = Ask::new(2000, 50).within(120_000).expect(Expect::Abandoned(GONE_WITHIN_MS));
    let asks = stage.ask_for(3, &endless);
    stage.start_workers(2)?;
    stage.start_client()?;
    let moment = stage.random.between(10, 40);
    for ask in asks {
        stage.until_piece(ask, moment)?;
    }
    stage.kill_client()
}

pub(super) fn restart(stage: &mut Stage) -> Result<()> {
    let asks = stage.ask_for(6, &Ask::new(150, 20));
    stage.start_workers(2)?;
    for piece in [10, 40] {
        stage.start_client()?;
        let watched = asks[stage.random.between(0, asks.len() - 1)];
        let moment = stage.random.between(piece, piece + 30);
        stage.until_piece(watched, moment)?;
        stage.kill_client()?;
    }
    stage.start_client()
}

/// Cancels in mid-stream. A step of the handler takes 100 ms, and the run must stop within a
/// second.
pub(super) fn cancel(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.one_run_each = true;
    for i in 0..6 {
        let piece = stage.random.between(3, 20);
        let ask = Ask::new(200, 100).after(i * 150).reading(Reading::UntilPiece(piece));
        stage.ask(ask.expect(Expect::Cancelled(1000)));
    }
    stage.fault("cancel", "six requests")?;
    stage.start_workers(2)?;
    stage.start_client()
}
