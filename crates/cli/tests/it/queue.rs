//! Dead letters: listed, opened, replayed and removed.

use std::fs;

use nsbridge_queue::{AmqpBroker, Broker as _, Header, Message};
use serde_json::Value;

use crate::place::{Place, nsbridge, output, until};

const PROMPT: &str = "Once there was a bear";

fn queue(place: &Place, arguments: &[&str]) -> (Option<i32>, String, String) {
    let (verb, rest) = arguments.split_first().unwrap();
    let common = ["queue", verb, "--model", &place.model, "--broker", &place.url];
    let (output, out, err) = output(&[&common, rest].concat());
    (output.status.code(), out, err)
}

/// Returns the number of messages in the queue whose name ends like this.
fn messages(place: &Place, end: &str) -> Option<u64> {
    let (_, out, _) = queue(place, &["status", "--json"]);
    let mut lines = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.find(|line| line["queue"].as_str().unwrap().ends_with(end))?["messages"].as_u64()
}

fn dead_letters(place: &Place) -> Option<u64> {
    messages(place, ".dead")
}

#[test]
fn what_died_is_listed_sealed_opened_with_its_key_and_asked_again() {
    let place = Place::new();
    let other = place.path("other.json");
    let generate = ["keys", "generate", "--out", &other, "--id", "other"];
    assert!(nsbridge(&generate).status().unwrap().success());
    let sampling = ["--seed", "7", "--max-tokens", "12"];
    let worker = place.worker();
    // No worker has this key. The request is retried after 1 s, and then no time is left.
    let unanswered =
        [&sampling[..], &["--bulk", "--keyring", &other, "--timeout", "4", PROMPT]].concat();
    let mut ask = nsbridge(&["ask", "--model", &place.model, "--broker", &place.url]);
    assert_eq!(ask.args(&unanswered).status().unwrap().code(), Some(1));

    until(|| dead_letters(&place) == Some(1));
    let (code, out, _) = queue(&place, &["dead", "--json"]);
    let letter: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, Some(0));
    assert_eq!(letter["reason"], "unknown-key");
    assert_eq!(letter["key_id"], "other");
    assert_eq!(letter["queue"], format!("nsbridge.{}.bulk", place.model));
    assert!(!out.contains("bear"), "{out}");
    let id = letter["id"].as_str().unwrap();
    let (_, out, _) = queue(&place, &["dead", "--id", id]);
    assert!(out.contains(id) && out.contains("unknown-key  0 earlier deliveries"), "{out}");
    let (_, out, _) = queue(&place, &["dead", "--reason", "poison"]);
    assert_eq!(out, "");
    let (code, _, err) = queue(&place, &["dead", "--reason", "posion"]);
    assert!(code == Some(2) && err.contains("there is no such reason"), "{err}");
    let (_, out, _) = queue(&place, &["dead", "--open", "--keyring", &other]);
    assert!(out.contains(PROMPT), "{out}");
    let (code, _, err) = queue(&place, &["dead", "--open", "--keyring", &place.path("keys.json")]);
    assert!(code == Some(1) && err.contains("no key `other` is known here"), "{err}");
    assert!(err.contains("1 dead letters could not be opened"), "{err}");
    let (code, _, err) = queue(&place, &["purge"]);
    assert!(code == Some(1) && err.contains("1 messages") && err.contains("--yes"), "{err}");
    assert_eq!(dead_letters(&place), Some(1), "looking takes nothing out");

    drop(worker);
    fs::copy(&other, place.path("keys.json")).unwrap();
    let replies = place.path("replies.jsonl");
    let again = ["replay", "--all", "--keyring", &other, "--out", &replies];
    let common = ["queue", "--model", &place.model, "--broker", &place.url];
    let replay = [&common[..1], &again[..1], &common[1..], &again[1..]].concat();
    let replay = nsbridge(&replay).spawn().unwrap();
    // The request keeps its class. No worker takes it yet.
    until(|| messages(&place, ".bulk") == Some(1));
    let _worker = place.worker();
    let replay = replay.wait_with_output().unwrap();
    assert!(replay.status.success(), "{}", String::from_utf8_lossy(&replay.stderr));
    let reply: Value = serde_json::from_str(&fs::read_to_string(&replies).unwrap()).unwrap();
    assert_eq!(reply["replay_of"], id);
    let pieces = reply["pieces"].as_array().unwrap().iter();
    let replayed: String = pieces.map(|piece| piece["text"].as_str().unwrap()).collect();
    let asked = place.ask(&[&sampling[..], &[PROMPT]].concat()).output().unwrap();
    assert_eq!(replayed, String::from_utf8(asked.stdout).unwrap().trim_end_matches('\n'));
    assert_eq!(dead_letters(&place), Some(0));
    let (code, _, err) = queue(&place, &["replay", "--all", "--keyring", &other]);
    assert!(code == Some(1) && err.contains("no dead letter"), "{err}");
    let (code, _, err) = queue(&place, &again);
    assert!(code == Some(1) && err.contains("cannot create"), "replies are not overwritten: {err}");
    let (_, out, _) = queue(&place, &["status"]);
    let of = format!("0 ready     1 consumers  nsbridge.{}\n", place.model);
    assert!(out.contains(&of), "{out}");
}

#[test]
fn what_waits_for_a_worker_can_be_counted_and_removed() {
    let place = Place::new();
    drop(place.worker());
    let unanswered = ["--timeout", "1", PROMPT];
    assert!(!place.ask(&unanswered).status().unwrap().success());
    // The broker expires only the message at the head of the queue, so the request may be in either
    // queue.
    let waiting = queue(&place, &["purge", "--waiting", "--yes"]);
    let (code, _, err) = queue(&place, &["purge", "--yes"]);
    assert!(code == Some(1) && err.contains("add --all"), "{err}");
    let died = queue(&place, &["purge", "--all", "--yes"]);
    assert_eq!((waiting.0, died.0), (Some(0), Some(0)));
    let removed = [waiting.2, died.2].concat();
    assert_eq!(removed.matches("1 messages were removed").count(), 1, "{removed}");
    let (code, _, err) = queue(&Place::new(), &["status"]);
    assert!(code == Some(1) && err.contains("check --model and --broker"), "{err}");
}

#[test]
fn what_the_broker_moved_has_an_age_too() {
    let place = Place::new();
    drop(place.worker());
    assert!(!place.ask(&["--timeout", "1", PROMPT]).status().unwrap().success());
    until(|| dead_letters(&place) == Some(1));
    let (_, out, _) = queue(&place, &["dead"]);
    assert!(out.contains("s ago") && out.contains("expired"), "{out}");
    let (code, _, err) = queue(&place, &["purge", "--older-than", "1", "--yes"]);
    assert!(code == Some(0) && err.contains("0 messages were removed"), "{err}");
    let (code, _, err) = queue(&place, &["purge", "--older-than", "0", "--yes"]);
    assert!(code == Some(0) && err.contains("1 messages were removed"), "{err}");
}

#[test]
fn m5_many_dead_letters_are_looked_at_a_few_at_a_time() {
    let place = Place::new();
    drop(place.worker());
    let ids: Vec<String> =
        (0..20).map(|n| format!("01a1fdb5-450d-7586-aefc-2a7a24e6ed{n:02}")).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let broker = AmqpBroker::new(&place.url).unwrap();
        let connection = broker.connect("letters").await.unwrap();
        let publisher = connection.publisher().await.unwrap();
        for id in &ids {
            let mut letter = Message::new(Vec::new());
            letter.properties.persistent = true;
            letter.properties.headers.insert("nsb-reason".into(), Header::Text(id.clone()));
            letter.properties.headers.insert("nsb-bytes".into(), Header::Int(7));
            let queue = format!("nsbridge.{}.dead", place.model);
            publisher.publish("", &queue, letter).await.unwrap().await.unwrap();
        }
        connection.close().await;
    });
    // All messages are held until the last one was read, and requeued in their order.
    for _ in 0..2 {
        let (code, out, err) = queue(&place, &["dead", "--json"]);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        let seen: Vec<Value> =
            out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(seen.iter().all(|letter| letter["bytes"] == 7), "{out}");
        let seen: Vec<_> = seen.iter().map(|letter| letter["reason"].as_str().unwrap()).collect();
        assert_eq!(seen, ids);
    }
    assert_eq!(dead_letters(&place), Some(20));
}
