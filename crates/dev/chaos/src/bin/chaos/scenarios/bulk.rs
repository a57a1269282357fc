//! Bulk requests that give up their slots.

use anyhow::Result;

use crate::plan::Ask;
use crate::stage::Stage;

/// Number of bulk requests. They fill all slots of both workers.
const BULK: usize = 4;

/// Number of bursts of interactive requests, each of which fills all slots too.
const BURSTS: u64 = 4;

/// Plays bursts of interactive requests over long bulk requests, and kills a worker among them.
pub(super) fn preempted(stage: &mut Stage) -> Result<()> {
    stage.settings.slots = BULK / 2;
    stage.plan.rules.taken_up = BULK;
    stage.plan.rules.resumed = BULK;
    // A bulk request takes twelve seconds, so one that keeps its slot delays them for longer.
    stage.plan.rules.prompt_ms = Some(5_000);
    let bulk = stage.ask_for(BULK, &Ask::new(600, 20).within(120_000).bulk());
    for burst in 1..=BURSTS {
        stage.ask_for(BULK, &Ask::new(25, 20).after(burst * 2_500));
    }
    stage.start_workers(2)?;
    stage.start_client()?;
    let moment = stage.random.between(150, 250);
    stage.until_piece(bulk[0], moment)?;
    let worker = format!("w{}", stage.random.between(1, 2));
    stage.kill(&worker)
}
