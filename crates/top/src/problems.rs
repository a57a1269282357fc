//! Sentences about faults.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::snapshot::Model;
use super::source::{Fault, Health};

/// Returns the sentence about a source that cannot be read, `since` after the attempt.
pub(super) fn of_source(name: &str, fault: &Fault, since: Duration) -> String {
    let said = &fault.said;
    match fault.next {
        None => format!("{name} cannot be read: {said}"),
        Some(next) => {
            let left = next.saturating_sub(since).as_secs_f64().ceil();
            format!("{name} cannot be read: {said}; next attempt in {left} s")
        }
    }
}

/// Returns the sentences about a model, of figures over `seconds`.
pub(super) fn of_model(model: &Model, seconds: f64) -> Vec<String> {
    let name = &model.model;
    let mut said = Vec::new();
    match (model.ready, model.consumers) {
        (Some(1), Some(0)) => {
            said.push(format!("1 request of {name} waits and no worker takes it"));
        }
        (Some(ready @ 2..), Some(0)) => {
            said.push(format!("{ready} requests of {name} wait and no worker takes them"));
        }
        (_, Some(0)) => said.push(format!("no worker takes requests of {name}")),
        _ => {}
    }
    if let Some(new @ 1..) = model.dead_new {
        let letters = if new == 1 { "letter" } else { "letters" };
        said.push(format!(
            "{new} new dead {letters} of {name} within {seconds:.0} s: see `nsbridge queue dead \
             --model {name}`"
        ));
    }
    said
}

/// Returns the sentence about a model whose queue does not exist.
pub(super) fn no_queue(model: &str) -> String {
    format!("{model} has no queue: no worker ever served it")
}

/// Returns the sentences about a worker, of figures over `seconds`.
pub(super) fn of_worker(
    address: &str,
    worker: &nsbridge_observe::Worker,
    health: Option<Health>,
    restarted: bool,
    seconds: f64,
) -> Vec<String> {
    let mut said = Vec::new();
    if let Some(health) = health.filter(|health| health.loaded) {
        if !health.handler_ok {
            said.push("the handler is not well".to_owned());
        }
        if !health.calls_ok {
            said.push("its calls make no progress".to_owned());
        }
        if !health.consuming && !health.draining {
            said.push("it is loaded and takes no requests".to_owned());
        }
    }
    if worker.publish_failing {
        said.push("it can publish no reply, and takes no requests".to_owned());
    }
    if worker.blocked {
        said.push("the broker blocks its replies".to_owned());
    }
    if worker.left_over > 0.0 {
        let slots = worker.left_over;
        said.push(format!("{slots} of its slots are lost to calls that were given up: restart it"));
    }
    if worker.drafting == Some(false) {
        said.push("its drafter has failed, and replies are made without drafts".to_owned());
    }
    if restarted {
        said.push(format!("it was restarted within the last {seconds:.0} s"));
    }
    let model = &worker.model;
    said.into_iter().map(|said| format!("worker {address} of {model}: {said}")).collect()
}

/// Returns the sentences about models whose workers cannot go on with each other's replies.
pub(super) fn of_fingerprints<'a>(
    workers: impl Iterator<Item = &'a nsbridge_observe::Worker>,
) -> Vec<String> {
    let mut known = BTreeMap::<&str, BTreeSet<&str>>::new();
    for worker in workers.filter(|worker| !worker.fingerprint.is_empty()) {
        known.entry(&worker.model).or_default().insert(&worker.fingerprint);
    }
    known.retain(|_, fingerprints| fingerprints.len() > 1);
    let said = |(model, fingerprints): (&str, BTreeSet<&str>)| {
        let count = fingerprints.len();
        format!(
            "the workers of {model} have {count} fingerprints and cannot go on with each other's \
             replies"
        )
    };
    known.into_iter().map(said).collect()
}
