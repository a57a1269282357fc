//! Copies of a request that somebody publishes who sees it and has no key.

use anyhow::Result;

use crate::plan::Ask;
use crate::stage::{Stage, base};
use crate::watched::Trick;

/// A worker finds out within some seconds that nobody reads a reply. Whoever waits for longer waits
/// for what was taken away.
const PROMPTLY_MS: u64 = 20_000;

/// The same sealed bytes with a reply queue that nobody has: the copy runs until its worker finds
/// that out. The genuine one must run all the same: after it, beside it, and where it ended before.
pub(super) fn reply_to(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.for_nobody = 5;
    stage.plan.rules.resumed = 1;
    // A forged copy must not come to its end within the two seconds before its client counts as gone.
    let ask = Ask::new(200, 20).within(PROMPTLY_MS);
    let beside = stage.ask_for(2, &ask);
    let after = stage.ask(ask);
    // Long enough to be still running when the forged copy has ended.
    let [joined, killed] = [250, 400].map(|pieces| Ask::new(pieces, 20).within(PROMPTLY_MS));
    let (joined, killed) = (stage.ask(joined), stage.ask(killed));

    // One slot: the genuine one is handed out when the forged one, which came first, has ended.
    stage.client_settings.trick = Trick::ForgedReplyTo;
    stage.settings.slots = 1;
    stage.fault("forged reply_to", "a request, before it")?;
    stage.start_worker("w1")?;
    stage.start_client_for(&[after])?;
    stage.until_over(after)?;
    stage.remove_worker("w1");

    // Both run at once in one worker, the forged one since shortly before.
    stage.settings.slots = 4;
    stage.fault("forged reply_to", "two requests, beside them")?;
    stage.start_worker("w2")?;
    stage.start_client_for(&beside)?;
    for ask in beside {
        stage.until_over(ask)?;
    }
    // The other way round.
    stage.client_settings.trick = Trick::None;
    stage.start_client_for(&[joined])?;
    stage.until_piece(joined, 10)?;
    stage.forge_reply_to(joined)?;
    stage.until_over(joined)?;
    stage.remove_worker("w2");

    // Two workers with one slot each, so that each has one of both. Then the genuine one's is
    // killed, and only that is left where the forged one ended.
    stage.settings.slots = 1;
    stage.start_worker("w3")?;
    stage.start_worker("w4")?;
    stage.start_client_for(&[killed])?;
    stage.until_piece(killed, 5)?;
    let worker = stage.runner_of(killed)?;
    stage.forge_reply_to(killed)?;
    stage.until_ran_for_nobody(killed, 1)?;
    stage.kill(base(&worker))
}
