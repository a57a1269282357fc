//! Faults of gateways, seen by callers that read streams over HTTP.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nsbridge_testkit::s3::{Fault, Faults, Kind, Rule, S3Server, When};
use serde_json::{Value, json};

use crate::follow::{has_id, left_in_order, runs};
use crate::http_caller::{Leave, Manner};
use crate::plan::Ask;
use crate::stage::{Stage, Storage};

/// Bucket of the shared store.
const BUCKET: &str = "replies";

/// Part of the writes to the shared store that it refuses at first.
const REFUSED: f64 = 0.7;

/// Time within which a gateway has stored an end that it has told, on a busy machine.
const STORED_WITHIN: Duration = Duration::from_secs(2);

/// Number of slots of a worker: runs for a gateway that is gone keep theirs for 17 s.
const SLOTS: usize = 24;

/// Prepares workers whose requests come through gateways.
pub(super) fn start_workers(stage: &mut Stage, count: usize) -> Result<()> {
    stage.settings.slots = SLOTS;
    stage.settings.more = "told = true\n".to_owned();
    stage.start_workers(count)
}

/// Kills the only gateway twice. Streams go on with the next event; a reply in the background goes
/// on by itself.
pub(super) fn gateway_killed(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.taken_up = 4;
    let asks = stage.ask_for(6, &Ask::new(120, 20));
    start_workers(stage, 1)?;
    stage.start_gateways(&["g1"], &Storage::Own)?;
    let manner = |n: &usize| Manner { background: n % 3 == 2, ..Manner::default() };
    stage.start_callers(asks.iter().map(manner).collect())?;
    for piece in [5, 55] {
        let victim = asks[stage.random.between(0, asks.len() - 1)];
        let moment = stage.random.between(piece, piece + 30);
        stage.until_piece(victim, moment)?;
        stage.kill("g1")?;
        stage.balance(&["g1"])?;
    }
    Ok(())
}

/// Kills the only gateway and the worker of one of its streams, one just after the other.
pub(super) fn gateway_and_worker_killed(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.taken_up = 4;
    stage.plan.rules.resumed = 1;
    let asks = stage.ask_for(4, &Ask::new(120, 20));
    start_workers(stage, 2)?;
    stage.start_gateways(&["g1"], &Storage::Own)?;
    stage.start_callers(vec![Manner::default(); asks.len()])?;
    let victim = asks[stage.random.between(0, asks.len() - 1)];
    let moment = stage.random.between(20, 70);
    stage.until_piece(victim, moment)?;
    let worker = stage.runner_of(victim)?;
    let order = stage.random.between(0, 1);
    for fault in [order, 1 - order] {
        stage.kill(if fault == 0 { "g1" } else { &worker })?;
    }
    stage.balance(&["g1"])
}

/// Kills one gateway for good as soon as a client has an id, and tells another one to leave. A shared
/// store that is slow must not let an id out before its record.
pub(super) fn replica_takes_over(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.taken_up = 4;
    let bucket = S3Server::start()?;
    bucket.bucket(BUCKET);
    let seed = stage.random.next();
    let refused = Rule::new(Fault::SLOW_DOWN).on([Kind::Put]).of(".request");
    bucket.faults(Faults::seeded(seed).with(refused.when(When::Chance(REFUSED))));
    let storage = Storage::Shared(&bucket, BUCKET);
    let early = stage.ask_for(4, &Ask::new(60, 20));
    let late = stage.ask_for(4, &Ask::new(160, 20));
    start_workers(stage, 1)?;
    stage.start_gateways(&["g2", "g3"], &storage)?;
    stage.start_gateways(&["g1"], &storage)?;
    let manner = |n: &usize| Manner { retries: n % 2 == 1, ..Manner::default() };
    stage.start_callers(early.iter().chain(&late).map(manner).collect())?;
    // The store may refuse one record for as long as a reply takes, but hardly all of them.
    stage.until("an id, and a run of each early request", |lines| {
        runs(lines, &early) >= early.len() && has_id(lines, &early)
    })?;
    stage.fault("kill", "g1")?;
    stage.remove_worker("g1");
    stage.balance(&["g2"])?;
    let victim = late[stage.random.between(0, late.len() - 1)];
    let moment = stage.random.between(5, 60);
    stage.until_piece(victim, moment)?;
    stage.balance_to_none();
    stage.terminate("g2")?;
    stage.balance(&["g3"])?;
    stage.until("g2 to leave in good order", |lines| left_in_order(lines, "g2.0"))?;
    // The bucket must outlive the gateways, so the round finishes before the bucket is dropped.
    stage.finish()
}

/// Cancels a response in the background, lets another one be refused, and kills the gateway. The next
/// gateway must tell the same of both.
pub(super) fn restart_after_cancel(stage: &mut Stage) -> Result<()> {
    let asks = stage.ask_for(2, &Ask::new(60, 20));
    start_workers(stage, 1)?;
    stage.start_gateways(&["g1"], &Storage::Own)?;
    stage.start_callers(vec![Manner::default(); asks.len()])?;
    let canceled = in_background(stage, &Ask::new(2000, 20).order_text(asks.len())?)?;
    let refused = in_background(stage, "no order")?;
    stage.ask_gateway("POST", &format!("{canceled}/cancel"), &json!({}))?;
    let ends = [(&canceled, "cancelled"), (&refused, "failed")];
    let mut before = Vec::new();
    for (path, status) in ends {
        before.push(until_status(stage, path, status)?);
    }
    // A gateway tells an end before it is on the disk: a store never delays a reply.
    sleep(STORED_WITHIN);
    stage.kill("g1")?;
    stage.balance(&["g1"])?;
    for ((path, _), before) in ends.iter().zip(before) {
        let after = told(&stage.ask_gateway("GET", path, &Value::Null)?);
        ensure!(after == before, "{path} was {before}, and is {after} after a restart");
    }
    Ok(())
}

/// Asks for a response in the background, and returns its path.
fn in_background(stage: &Stage, input: &str) -> Result<String> {
    let body = json!({ "model": "chaos", "input": input, "background": true });
    let response = stage.ask_gateway("POST", "/v1/responses", &body)?;
    let id = response["id"].as_str().with_context(|| format!("{response} has no id"))?;
    Ok(format!("/v1/responses/{id}"))
}

/// Waits until a response has this status, and returns what is told of its end.
fn until_status(stage: &Stage, path: &str, status: &str) -> Result<Value> {
    for _ in 0..1000 {
        let response = stage.ask_gateway("GET", path, &Value::Null)?;
        if response["status"] == status {
            return Ok(told(&response));
        }
        sleep(Duration::from_millis(10));
    }
    bail!("{path} does not become {status}")
}

/// Returns what is told of the end of a response.
fn told(response: &Value) -> Value {
    json!([response["status"], response["error"], response["nsbridge"]["error_code"]])
}

/// Lets a worker and a gateway log to pipes that are not read. They must answer all requests, and end
/// when they are told to.
pub(super) fn log_reader_stops(stage: &mut Stage) -> Result<()> {
    stage.settings.log_is_not_read = true;
    let asks = stage.ask_for(120, &Ask::new(3, 5));
    stage.fault("log not read", "worker and gateway")?;
    start_workers(stage, 1)?;
    stage.start_gateways(&["g1"], &Storage::Own)?;
    stage.start_callers(vec![Manner::default(); asks.len()])?;
    for ask in asks {
        stage.until_over(ask)?;
    }
    for name in ["g1", "w1"] {
        stage.terminate(name)?;
        let life = format!("{name}.0");
        stage.until(&format!("{life} to leave in good order"), |lines| {
            left_in_order(lines, &life)
        })?;
    }
    Ok(())
}

/// Lets callers leave in mid-stream, three times each. They read some events again.
pub(super) fn client_reconnects(stage: &mut Stage) -> Result<()> {
    let asks = stage.ask_for(6, &Ask::new(80, 15));
    start_workers(stage, 1)?;
    stage.start_gateways(&["g1"], &Storage::Own)?;
    let manners = asks.iter().map(|n| {
        let mut leave = |least: usize, most: usize| Leave {
            at: stage.random.between(least, most),
            again: stage.random.between(0, 6),
        };
        let leaves = [leave(1, 12), leave(13, 40), leave(41, 75)].into();
        Manner { background: n % 3 == 2, leaves, ..Manner::default() }
    });
    let manners = manners.collect();
    stage.fault("leave", "six callers")?;
    stage.start_callers(manners)
}
