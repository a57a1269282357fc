//! Soak test.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use crate::plan::Ask;
use crate::stage::Stage;

/// Number of requests per minute; each takes a second.
const A_MINUTE: u64 = 120;

const SAMPLES_A_MINUTE: u32 = 6;

/// Runs one worker under constant load and cuts every connection each minute. Memory and
/// descriptors must not grow.
pub(super) fn soak(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.flat = true;
    stage.plan.rules.taken_up = 1;
    let requests = stage.minutes * A_MINUTE;
    for n in 0..requests {
        stage.ask(Ask::new(20, 50).after(n * 60_000 / A_MINUTE).deaf(n % 2 == 1));
    }
    stage.start_worker("w1")?;
    stage.start_client()?;
    for _ in 0..stage.minutes {
        for _ in 0..SAMPLES_A_MINUTE {
            sleep(Duration::from_secs(60) / SAMPLES_A_MINUTE);
            stage.sample()?;
        }
        stage.cut("")?;
    }
    Ok(())
}
