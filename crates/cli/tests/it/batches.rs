//! Files and batches through the official Python client, on RabbitMQ.

use serde_json::{Value, json};

use crate::door::Door;

/// Script with the checks.
const SCRIPT: &str = "batches.py";

#[test]
fn the_official_client_keeps_files() {
    let door = Door::new();
    let _gateway = door.open();
    door.check_of(SCRIPT, "files", &[]);
}

#[test]
fn the_official_client_reads_the_output_of_its_batches() {
    let door = Door::new();
    let (_worker, _gateway) = (door.place.worker(), door.open());
    assert_eq!(door.check_of(SCRIPT, "completed", &[]), 3);
    let told = door.check_of(SCRIPT, "invalid", &[]);
    let expected = json!([
        [2, "invalid_json_line"],
        [3, "duplicate_custom_id"],
        [4, "invalid_method"],
        [6, "invalid_url"],
        [7, "model_not_found"],
        [8, "invalid_request_error"],
        [9, "missing_required_parameter"]
    ]);
    assert_eq!(told, expected);
    let log = std::fs::read_to_string(door.place.path("gateway.log")).unwrap();
    assert!(!log.contains("クマ") && !log.contains(&door.key), "{log}");
}

#[test]
fn a_batch_without_a_worker_waits_for_one_or_is_canceled() {
    let door = Door::new();
    let _gateway = door.open();
    door.check_of(SCRIPT, "cancelled", &[]);
    let id = door.check_of(SCRIPT, "waiting", &[]);
    let _worker = door.place.worker();
    let done = door.check_of(SCRIPT, "ended", &[id.as_str().unwrap()]);
    assert_eq!((&done["total"], &done["completed"]), (&json!(3), &json!(3)));
}

/// A gateway is killed in the middle of a batch; the next process goes on with it.
#[test]
fn a_killed_gateway_answers_every_line_of_a_batch_once() {
    let door = Door::new();
    let (_worker, mut gateway) = (door.place.worker(), door.open());
    let begun = door.check_of(SCRIPT, "begun", &[]);
    gateway.0.kill().unwrap();
    gateway.0.wait().unwrap();
    assert!(begun["completed"].as_u64() < Some(240), "it was killed too late: {begun}");
    let _second = door.open();
    let done = door.check_of(SCRIPT, "ended", &[begun["id"].as_str().unwrap()]);
    let mut lines: Vec<Value> = (0..240).map(|index| format!("line-{index}").into()).collect();
    lines.sort_by(|one, other| one.as_str().cmp(&other.as_str()));
    assert_eq!(done, json!({ "total": 240, "completed": 240, "lines": lines }));
    let log = std::fs::read_to_string(door.place.path("gateway.log")).unwrap();
    assert!(log.contains("continuing batches of the last process"), "{log}");
}
