//! Forged copies of a request, published by an attacker that can read the request but has no key.

use anyhow::Result;

use crate::plan::Ask;
use crate::stage::{Stage, base};
use crate::watched::Trick;

/// Time limit of a genuine request, in milliseconds. A worker notices within some seconds that a
/// reply has no reader, so a longer wait means that the forged copy displaced the genuine one.
const PROMPTLY_MS: u64 = 20_000;

/// Publishes the same sealed bytes with a reply queue that does not exist. The forged copy runs
/// until its worker notices that. The genuine copy must still run: after the forged one, beside it,
/// and after a kill in the worker where the forged one ended.
pub(super) fn reply_to(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.without_client = 5;
    stage.plan.rules.resumed = 1;
    // A worker needs two seconds to detect a missing client. The forged copy must not end within
    // them.
    let ask = Ask::new(200, 20).within(PROMPTLY_MS);
    let beside = stage.ask_for(2, &ask);
    let after = stage.ask(ask);
    // These replies are long enough to be still running when the forged copy has ended.
    let [joined, killed] = [250, 400].map(|pieces| Ask::new(pieces, 20).within(PROMPTLY_MS));
    let (joined, killed) = (stage.ask(joined), stage.ask(killed));

    // One slot: the genuine copy is delivered when the forged one, which came first, has ended.
    stage.client_settings.trick = Trick::ForgedReplyTo;
    stage.settings.slots = 1;
    stage.fault("forged reply_to", "a request, before it")?;
    stage.start_worker("w1")?;
    stage.start_client_for(&[after])?;
    stage.until_over(after)?;
    stage.dismiss("w1")?;

    // Both run at once in one worker; the forged one began shortly before.
    stage.settings.slots = 4;
    stage.fault("forged reply_to", "two requests, beside them")?;
    stage.start_worker("w2")?;
    stage.start_client_for(&beside)?;
    for ask in beside {
        stage.until_over(ask)?;
    }
    // Now the forged copy comes second.
    stage.client_settings.trick = Trick::None;
    stage.start_client_for(&[joined])?;
    stage.until_piece(joined, 10)?;
    stage.forge_reply_to(joined)?;
    stage.until_over(joined)?;
    // On a slow machine the forged copy may still run. It would be handed over to the next worker.
    stage.until_ran_without_client(joined, 1)?;
    stage.dismiss("w2")?;

    // Two workers with one slot each run one copy each. Then the worker of the genuine copy is
    // killed, so its request can only run where the forged copy ended.
    stage.settings.slots = 1;
    stage.start_worker("w3")?;
    stage.start_worker("w4")?;
    stage.start_client_for(&[killed])?;
    stage.until_piece(killed, 5)?;
    let worker = stage.runner_of(killed)?;
    stage.forge_reply_to(killed)?;
    stage.until_ran_without_client(killed, 1)?;
    stage.kill(base(&worker))
}
