//! `nsbridge batch run`, on RabbitMQ.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use nsbridge_protocol::topology::bulk_queue;
use serde_json::{Value, json};

use crate::place::{Place, Process, nsbridge, output, until};

/// Number of requests of the large batch.
const LINES: usize = 160;

/// Prompts of the requests, in turn.
const PROMPTS: [&str; 3] = ["Once a bear", "クマが海辺に行って", "The seal was"];

fn request(place: &Place, index: usize) -> Value {
    json!({
        "custom_id": format!("line-{index}"), "method": "POST", "url": "/v1/completions",
        "body": {
            "model": place.model, "prompt": PROMPTS[index % 3], "max_tokens": 12, "temperature": 0
        }
    })
}

/// Returns the permissions of a file or a folder.
fn mode(path: &str) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Writes lines as a file and returns its path.
fn write(place: &Place, lines: &[Value]) -> String {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let path = place.path("requests.jsonl");
    fs::write(&path, text).unwrap();
    path
}

fn batch(place: &Place, input: &str) -> Command {
    let (out, keys) = (place.path("out.jsonl"), place.path("keys.json"));
    let mut batch = nsbridge(&["batch", "run", input, "--out", &out, "--keyring", &keys]);
    batch.args(["--broker", &place.url]);
    batch
}

/// Runs a batch to its end. Returns its exit code and stderr.
fn ended(place: &Place, input: &str) -> (Option<i32>, String) {
    let ended = batch(place, input).output().unwrap();
    (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
}

/// Returns custom id and text of each line of a file.
fn texts(path: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let parts = lines.map(|line: Value| {
        let text = line["response"]["body"]["choices"][0]["text"].as_str().unwrap().to_owned();
        (line["custom_id"].as_str().unwrap().to_owned(), text)
    });
    parts.collect()
}

/// Kills a batch, or interrupts it, once it has come this far.
fn stop(place: &Place, input: &str, signal: &str, until_there: impl FnOnce()) {
    let mut running = Process(batch(place, input).spawn().unwrap());
    until_there();
    assert!(running.0.try_wait().unwrap().is_none(), "the batch has ended already");
    running.signal(signal);
    assert_ne!(running.code(), Some(0));
}

#[test]
fn a_batch_that_is_killed_and_whose_worker_is_killed_has_each_reply_once() {
    let place = Place::new();
    let lines: Vec<Value> = (0..LINES).map(|index| request(&place, index)).collect();
    let input = write(&place, &lines);
    let worker = place.worker();
    let ended_requests = || place.logged("a request ended");
    for (signal, more) in [("-KILL", 15), ("-INT", 25), ("-KILL", 10)] {
        let before = ended_requests();
        stop(&place, &input, signal, || until(|| ended_requests() >= before + more));
        assert!(!Path::new(&place.path("out.jsonl")).exists());
        assert_eq!(mode(&place.path("out.jsonl.state")), 0o700);
    }
    worker.signal("-KILL");
    let _second = place.worker();
    let (code, said) = ended(&place, &input);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("{LINES} replies")), "{said}");
    let told = texts(&place.path("out.jsonl"));
    assert_eq!(mode(&place.path("out.jsonl")), 0o600);
    let ids: Vec<_> = told.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!(ids, (0..LINES).map(|index| format!("line-{index}")).collect::<Vec<_>>());
    for (index, prompt) in PROMPTS.iter().enumerate() {
        let alone = place.ask(&["--max-tokens", "12", "--temperature", "0", prompt]).output();
        let alone = String::from_utf8(alone.unwrap().stdout).unwrap();
        for (_, text) in told.iter().skip(index).step_by(3) {
            assert_eq!(text.trim_end(), alone.trim_end());
        }
    }
    assert!(!Path::new(&place.path("out.jsonl.errors")).exists());
    assert!(!Path::new(&place.path("out.jsonl.state")).exists());
    // The results are not overwritten.
    let (code, said) = ended(&place, &input);
    assert!(code == Some(1) && said.contains("out.jsonl exists"), "{said}");
}

#[test]
fn a_request_that_fails_has_a_line_of_its_own_file() {
    let place = Place::new();
    let mut long = request(&place, 1);
    long["body"]["prompt"] = json!("bear ".repeat(5000));
    let input = write(&place, &[request(&place, 0), long, request(&place, 2)]);
    let _worker = place.worker();
    let (code, said) = ended(&place, &input);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("2 replies") && said.contains("1 requests failed"), "{said}");
    let ids: Vec<_> = texts(&place.path("out.jsonl")).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["line-0", "line-2"]);
    let failed = fs::read_to_string(place.path("out.jsonl.errors")).unwrap();
    let failed: Value = serde_json::from_str(failed.trim_end()).unwrap();
    assert_eq!(
        (&failed["custom_id"], &failed["response"]["status_code"]),
        (&"line-1".into(), &400.into())
    );
}

#[test]
fn what_is_wrong_with_a_file_is_told_before_anything_is_asked() {
    let place = Place::new();
    let (mut twice, mut foreign) = (request(&place, 0), request(&place, 3));
    twice["body"]["prompt"] = json!("SECRET");
    foreign["url"] = json!("/v1/embeddings");
    let input = write(&place, &[request(&place, 0), twice, foreign]);
    // There is no worker, and none is needed.
    let (code, said) = ended(&place, &input);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("line 2: `custom_id` is that of an earlier line"), "{said}");
    assert!(said.contains("line 3: `url` must be `/v1/completions`"), "{said}");
    assert!(!said.contains("SECRET") && !Path::new(&place.path("out.jsonl.state")).exists());
    fs::write(place.path("odd.jsonl"), "no JSON\n").unwrap();
    let (code, said) = ended(&place, &place.path("odd.jsonl"));
    assert!(code == Some(1) && said.contains("line 1 of"), "{said}");
    let (code, said) = ended(&place, &place.path("absent.jsonl"));
    assert!(code == Some(1) && said.contains("absent.jsonl"), "{said}");
}

#[test]
fn a_batch_goes_on_only_with_its_own_input() {
    let place = Place::new();
    let input = write(&place, &[request(&place, 0)]);
    // Without a worker the request waits in its queue, that of bulk requests.
    drop(place.worker());
    let queue = bulk_queue(&place.model.parse().unwrap());
    stop(&place, &input, "-TERM", || {
        place.until_queue(&queue, |depth| depth.messages == 1);
    });
    write(&place, &[request(&place, 1)]);
    let (code, said) = ended(&place, &input);
    assert!(code == Some(1) && said.contains("the input has changed"), "{said}");
    let (ended, _, said) = output(&["batch", "run", &input]);
    assert!(ended.status.code() == Some(2) && said.contains("--out"), "{said}");
}
