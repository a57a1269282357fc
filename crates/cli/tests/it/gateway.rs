//! Gateway with a worker on RabbitMQ, through the official Python client.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use nsbridge_testkit::models::smollm2;
use serde_json::Value;

use crate::door::Door;
use crate::place::Process;

#[test]
fn the_official_client_reads_completions() {
    let door = Door::new();
    let (_worker, _gateway) = (door.place.worker(), door.open());
    let text = door.check("completion", &[]);
    // The queue's own client reads an equal text.
    let story = ["--max-tokens", "24", "--temperature", "0", "クマが海辺に行って"];
    let ours = door.place.ask(&story).output().unwrap();
    assert_eq!(
        String::from_utf8(ours.stdout).unwrap().trim_end(),
        text.as_str().unwrap().trim_end()
    );
    door.check("echo_and_logprobs", &[]);
    door.check("several", &[]);
    door.check("tokens", &[]);
    assert!(door.check("concurrent", &[]).as_u64() > Some(1));
}

/// The gateway between worker and client has no key of theirs.
#[test]
fn the_official_client_reads_completions_of_a_proxy() {
    let mut door = Door::new();
    let _worker = door.place.worker();
    let _processes = door.open_proxy();
    let text = door.check("completion", &[]);
    let story = ["--max-tokens", "24", "--temperature", "0", "クマが海辺に行って"];
    let ours = door.place.ask(&story).output().unwrap();
    assert_eq!(
        String::from_utf8(ours.stdout).unwrap().trim_end(),
        text.as_str().unwrap().trim_end()
    );
    let log = fs::read_to_string(door.place.path("gateway.log")).unwrap();
    assert!(!log.contains("クマ") && !log.contains(&door.key), "{log}");
}

#[test]
fn the_official_client_reads_chats_formats_and_tools() {
    let door = Door::new();
    let (_worker, _gateway) = (door.place.worker(), door.open());
    door.check("chat", &[]);
    door.check("structured", &[]);
    door.check("tools", &[]);
}

#[test]
fn the_official_client_reads_responses_and_resumes_them() {
    let door = Door::new();
    let (_worker, _gateway) = (door.place.worker(), door.open());
    door.check("responses", &[]);
    door.check("resume", &[]);
    door.check("cancel", &[]);
}

#[test]
fn the_official_client_is_told_what_is_wrong() {
    let door = Door::new();
    let (_worker, _gateway) = (door.place.worker(), door.open());
    let told = door.check("errors", &[]);
    let expected = [
        "invalid_api_key",
        "model_not_found",
        "invalid_request_error",
        "unsupported_parameter",
        "context_length_exceeded",
    ];
    assert_eq!(told[0], expected[0]);
    assert_eq!(told[1], expected[1]);
    assert_eq!(told[3], expected[3]);
    assert_eq!(told[4], expected[4]);
    let log = fs::read_to_string(door.place.path("gateway.log")).unwrap();
    assert!(!log.contains("クマ") && !log.contains(&door.key), "{log}");
}

/// The model has its queue, and no worker for 10 s.
#[test]
fn the_official_client_tries_again_until_the_first_worker_runs() {
    let door = Door::new();
    let file = door.place.path("gateway.toml");
    let text = fs::read_to_string(&file).unwrap() + "start_s = 10\n";
    fs::write(&file, text.replace("[server]\n", "[server]\nstart_wait_s = 3\n")).unwrap();
    drop(door.place.worker());
    let _gateway = door.open();
    let client = door.client("starting", &[]).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(10));
    let _worker = door.place.worker();
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    // The first try ended after 3 s, and the second one began 7 s later.
    assert!((1..=2).contains(&told["retries"].as_u64().unwrap()), "{told}");
}

/// A gateway is killed in the middle of a stream; another process goes on with the next event.
#[test]
fn a_killed_gateway_loses_nothing_of_a_reply() {
    killed_in_the_middle(false);
}

/// Gateway and worker are killed in the middle of a stream; others go on with the next event.
#[test]
fn a_killed_gateway_and_a_killed_worker_lose_nothing_of_a_reply() {
    killed_in_the_middle(true);
}

#[track_caller]
fn killed_in_the_middle(with_worker: bool) {
    let door = Door::new();
    // The bundled model answers faster than the gateway can be killed.
    door.place.configure_for(&smollm2(), "");
    let worker = door.place.worker();
    let mut gateway = door.open();
    let mut client = Process(door.client("long_reply", &[]).spawn().unwrap());
    let mut lines = BufReader::new(client.0.stdout.take().unwrap()).lines();
    let first = lines.next();
    if first.is_none() {
        let mut said = String::new();
        client.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        panic!("{said}");
    }
    gateway.0.kill().unwrap();
    gateway.0.wait().unwrap();
    let seen: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(seen["ended"], "response.output_text.delta", "it was killed too late");
    let _worker = if with_worker {
        // Dropping it kills the process.
        drop(worker);
        door.place.worker()
    } else {
        worker
    };
    let _second = door.open();
    let (id, last) = (seen["id"].as_str().unwrap(), seen["last"].as_u64().unwrap());
    let rest = door.check("continued", &[id, &last.to_string()]);
    assert_eq!(rest["first"], last + 1, "{rest}");
    assert!(
        ["response.completed", "response.incomplete"].contains(&rest["ended"].as_str().unwrap())
    );
    // Event 1 is the last one before the text, so these are all events of the text.
    let whole = door.check("continued", &[id, "1"]);
    let text = |value: &Value| value["text"].as_str().unwrap().to_owned();
    assert_eq!(text(&seen) + &text(&rest), text(&whole));
}
