//! A worker and its client in processes of their own.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::place::{Place, Process};

const STORY: [&str; 6] =
    ["--seed", "7", "--max-tokens", "120", "--json", "Once a bear went to the sea"];

#[track_caller]
fn summary(lines: impl Iterator<Item = std::io::Result<String>>) -> String {
    let last = lines.last().expect("ask printed nothing").unwrap();
    let last: Value = serde_json::from_str(&last).unwrap();
    last["text"].as_str().expect("the last line is the summary").to_owned()
}

#[test]
fn ask_is_answered_by_a_worker_in_another_process() {
    let place = Place::new();
    let mut worker = place.worker();
    let tell = || summary(Process(place.ask(&STORY).spawn().unwrap()).lines());
    let story = tell();
    assert!(story.len() > 100, "{story}");
    assert_eq!(tell(), story);
    worker.signal("-TERM");
    assert_eq!(worker.code(), Some(0), "a drained worker leaves in good order");
}

#[test]
fn sixteen_clients_at_once_read_what_each_reads_alone() {
    let place = Place::new();
    let _worker = place.worker();
    let story = |client: usize| {
        let (seed, tokens) = (client.to_string(), (20 + 9 * client % 50).to_string());
        // Some are likely to begin alike and go on differently.
        let prompt = ["Once a bear went to the sea", "Once a bear", "むかしむかし"][client % 3];
        let heat = ["0", "0.8", "1.5"][client % 3];
        let mut ask = place.ask(&["--seed", &seed, "--max-tokens", &tokens, "--json", prompt]);
        ask.args(["--temperature", heat]);
        Process(ask.spawn().unwrap())
    };
    let together: Vec<_> = (0..16).map(story).collect();
    let together: Vec<_> = together.into_iter().map(|mut ask| summary(ask.lines())).collect();
    for (client, text) in together.iter().enumerate() {
        assert_eq!(*text, summary(story(client).lines()), "client {client}");
    }
}

#[test]
fn a_worker_and_ask_share_keys_of_kms() {
    let moto = nsbridge_testkit::Moto::start().unwrap();
    moto.kms_key("alias/nsbridge").unwrap();
    let aws = [
        ("AWS_ACCESS_KEY_ID", "test".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
        ("AWS_REGION", "eu-central-1".to_owned()),
        ("AWS_ENDPOINT_URL_KMS", moto.url()),
        ("NSBRIDGE_KEYS__KMS_KEYS", "[\"alias/nsbridge\"]".to_owned()),
    ];
    let place = Place::new();
    let _worker = place.worker_in(&aws);
    let by_keyring = summary(Process(place.ask(&STORY).spawn().unwrap()).lines());
    let mut ask = place.ask(&STORY);
    ask.args(["--kms-key", "alias/nsbridge"]).envs(aws);
    assert_eq!(summary(Process(ask.spawn().unwrap()).lines()), by_keyring);
}

#[test]
fn a_killed_worker_is_replaced_without_a_seam() {
    let place = Place::new();
    let first = place.worker();
    let whole = summary(Process(place.ask(&STORY).spawn().unwrap()).lines());

    let mut asking = Process(place.ask(&STORY).spawn().unwrap());
    let mut lines = asking.lines();
    let mut text = String::new();
    for _ in 0..10 {
        text.push_str(&piece(&lines.next().unwrap().unwrap()));
    }
    first.signal("-KILL");
    let _second = place.worker();
    for line in lines {
        let line = line.unwrap();
        assert!(!line.contains("restarted"), "{line}");
        text.push_str(&piece(&line));
    }
    assert_eq!(asking.code(), Some(0));
    assert_eq!(text, whole, "each piece once, in order");
}

/// The text of a piece's line; nothing for other lines.
fn piece(line: &str) -> String {
    let line: Value = serde_json::from_str(line).unwrap();
    let is_piece = line["type"] == "piece";
    if is_piece { line["text"].as_str().unwrap().to_owned() } else { String::new() }
}

#[test]
fn ctrl_c_cancels_the_request_and_frees_the_worker() {
    let place = Place::new();
    let worker = place.worker();
    let long = r#"{"prompt":"Once","max_tokens":1000,"ignore_eos":true}"#;
    let mut asking = Process(place.ask(&["--input", long]).spawn().unwrap());
    // Held until its end: a pipe that nobody reads would end it too.
    let mut lines = asking.lines();
    lines.next().unwrap().unwrap();
    // The model is quick: without a pause it might be done before the signal is there.
    worker.signal("-STOP");
    asking.signal("-INT");
    worker.signal("-CONT");
    assert_eq!(asking.code(), Some(130));
    let started = Instant::now();
    summary(Process(place.ask(&STORY).spawn().unwrap()).lines());
    assert!(started.elapsed() < Duration::from_secs(30));
}
