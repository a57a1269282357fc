//! Worker and client in separate processes.

use std::time::{Duration, Instant};

use nsbridge_queue::{AmqpBroker, Broker as _, Confirmation, Message};
use serde_json::Value;

use crate::place::{Place, Process, model, nsbridge, until};

const STORY: [&str; 6] =
    ["--seed", "7", "--max-tokens", "120", "--json", "Once a bear went to the sea"];

/// Returns the text of the summary in the last line.
#[track_caller]
fn summary(lines: impl Iterator<Item = std::io::Result<String>>) -> String {
    let last = parsed(&lines.last().expect("ask printed nothing").unwrap());
    last["text"].as_str().expect("the last line is the summary").to_owned()
}

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
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
fn a_worker_whose_log_cannot_be_written_works_all_the_same() {
    let place = Place::new();
    // The first worker declares the queue.
    let first = place.worker();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut worker = nsbridge(&["worker", "--config", &place.path("worker.toml")]);
    let mut worker = Process(worker.stderr(full).spawn().unwrap());
    drop(first);
    let mut ask = place.ask(&STORY);
    let story = summary(Process(ask.args(["--timeout", "30"]).spawn().unwrap()).lines());
    assert!(story.len() > 100, "{story}");
    worker.signal("-TERM");
    assert_eq!(worker.code(), Some(0));
}

#[test]
fn sixteen_clients_at_once_read_what_each_reads_alone() {
    let place = Place::new();
    let _worker = place.worker();
    let story = |client: usize| {
        let (seed, tokens) = (client.to_string(), (20 + 9 * client % 50).to_string());
        // Some of the prompts share a prefix.
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

#[test]
fn a_worker_killed_while_it_drafts_is_replaced_without_a_seam() {
    // A short reply would end before the signal arrives.
    const LONG_REPLY_PATTERN: [&str; 2] = ["--regex", "(.|\\n){1500}"];
    const LONG_REPLY_ARGUMENTS: [&str; 6] =
        ["--seed", "7", "--max-tokens", "900", "--json", "Once a bear"];
    let ask = |place: &Place| {
        Process(place.ask(&LONG_REPLY_PATTERN).args(LONG_REPLY_ARGUMENTS).spawn().unwrap())
    };
    let place = Place::new();
    let plain = {
        let mut worker = place.worker();
        let plain = summary(ask(&place).lines());
        worker.signal("-TERM");
        assert_eq!(worker.code(), Some(0));
        plain
    };

    let draft = model().with_file_name("tale-1m").to_str().unwrap().to_owned();
    // The attempts alternate between one rank and two, and the draft model runs on the other number
    // of ranks.
    let pair = |attempt: usize| {
        [
            ("NSBRIDGE_MODELS__DRAFT", draft.clone()),
            // Adaptive speculation would depend on the machine and on the build profile.
            ("NSBRIDGE_HANDLER__SPECULATIVE_ADAPTIVE", "false".to_owned()),
            ("NSBRIDGE_HANDLER__TENSOR_PARALLEL_DEGREE", (2 - attempt % 2).to_string()),
            ("NSBRIDGE_HANDLER__DRAFT_MODEL_TP_SIZE", (1 + attempt % 2).to_string()),
        ]
    };
    let mut worker = place.worker_in(&pair(0));
    let drafted = |line: &Value| line["drafted"]["tokens"].as_u64().unwrap_or(0);
    let last = ask(&place).lines().last().unwrap().unwrap();
    let whole = parsed(&last);
    assert_eq!(whole["text"], plain, "with a draft");
    assert!(drafted(&whole) > 100, "{whole}");

    let was_seen = (1..9).any(|attempt| {
        let mut asking = ask(&place);
        let mut lines = asking.lines();
        let mut text = String::new();
        while text.is_empty() {
            text = piece(&lines.next().unwrap().unwrap());
        }
        worker.signal("-KILL");
        worker.code();
        let in_the_middle = place.has_request_again();
        worker = place.worker_in(&pair(attempt));
        let mut last = Value::Null;
        for line in lines {
            let line = line.unwrap();
            assert!(!line.contains("restarted"), "{line}");
            text.push_str(&piece(&line));
            last = parsed(&line);
        }
        assert_eq!(asking.code(), Some(0));
        assert_eq!(text, plain, "each piece once, in order");
        // Tokens that the dead worker had sent are not drafted again.
        assert!((1..=drafted(&whole)).contains(&drafted(&last)), "{last} {whole}");
        in_the_middle
    });
    assert!(was_seen, "no worker was killed in mid-reply");
}

/// Returns the text of a piece line, or an empty string for other lines.
fn piece(line: &str) -> String {
    let line = parsed(line);
    let is_piece = line["type"] == "piece";
    if is_piece { line["text"].as_str().unwrap().to_owned() } else { String::new() }
}

#[test]
fn ctrl_c_cancels_the_request_and_frees_the_worker() {
    let place = Place::new();
    let worker = place.worker();
    let long = r#"{"prompt":"Once","max_tokens":1000,"ignore_eos":true}"#;
    let mut asking = Process(place.ask(&["--input", long]).spawn().unwrap());
    // The pipe stays open until the end, because a closed pipe would end the client too.
    let mut lines = asking.lines();
    lines.next().unwrap().unwrap();
    // The model is fast, so the worker is paused: otherwise it could finish before the signal
    // arrives.
    worker.signal("-STOP");
    asking.signal("-INT");
    worker.signal("-CONT");
    assert_eq!(asking.code(), Some(130));
    summary(Process(place.ask(&STORY).spawn().unwrap()).lines());
    until(|| place.logged("code=\"cancelled\"") == 1);
}

/// Returns the peak resident memory of a process in MiB.
fn peak(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

/// Eight concurrent bodies, as many as the worker takes, published without a key.
#[test]
fn m3_large_bodies_do_not_come_into_a_workers_memory() {
    let place = Place::new();
    place.configure("[handler]\nmax_rolling_batch_size = 8\n");
    let worker = place.worker();
    let before = peak(&worker);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let broker = AmqpBroker::new(&place.url).unwrap();
        let connection = broker.connect("somebody").await.unwrap();
        let publisher = connection.publisher().await.unwrap();
        let queue = format!("nsbridge.{}", place.model);
        for _ in 0..8 {
            let large = Message::new(vec![7; 32 << 20]);
            let confirmed = publisher.publish("", &queue, large).await.unwrap().await.unwrap();
            assert_eq!(confirmed, Confirmation::Ack);
        }
        let begun = Instant::now();
        let dead = format!("{queue}.dead");
        while connection.depth(&dead).await.unwrap().messages < 8 {
            assert!(begun.elapsed() < Duration::from_secs(60), "they do not become dead letters");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        connection.close().await;
    });
    let grown = peak(&worker) - before;
    assert!(grown < 48, "{grown} MiB more for 256 MiB of bodies");
    let mut ask = place.ask(&STORY);
    let story = summary(Process(ask.spawn().unwrap()).lines());
    assert!(story.len() > 100, "{story}");
}

#[test]
fn m4_an_endpoint_of_kms_without_tls_is_refused_whatever_set_it() {
    let place = Place::new();
    for variable in ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_KMS"] {
        let mut ask = nsbridge(&["ask", "--model", &place.model, "--broker", &place.url]);
        ask.args(["--kms-key", "alias/nsbridge", "Once"]);
        ask.env(variable, "http://minio.internal:9000").env("AWS_REGION", "eu-central-1");
        let output = ask.output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        let names = told.contains("http://minio.internal:9000") && told.contains(variable);
        assert!(names && told.contains("without TLS"), "{variable}: {told}");
    }
}

#[test]
fn l5_an_endpoint_of_s3_without_tls_is_refused_whatever_set_it() {
    for variable in ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"] {
        let mut verify = nsbridge(&["model", "verify", "s3://models/tale-7m"]);
        verify.env(variable, "http://minio.internal:9000").env("AWS_REGION", "eu-central-1");
        let output = verify.output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        let names = told.contains("http://minio.internal:9000");
        assert!(names && told.contains("without TLS"), "{variable}: {told}");
    }
}

#[test]
fn l8_a_started_worker_leaves_no_core_dump() {
    let place = Place::new();
    let worker = place.worker();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", worker.0.id())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    let [.., soft, hard, _unit] = core.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{core}");
    };
    assert_eq!((soft, hard), ("0", "0"), "{core}");
}
