//! Tests of the limits on one request, from outside: it is refused at once, while others run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nsbridge_handler::erased::AnyHandler;
use nsbridge_handler::testing::answer;
use nsbridge_handler::transcript::transcript;
use nsbridge_handler::{Error, Finish, Result};
use nsbridge_llama::{Llama, Options};
use serde_json::{Value, json};

use crate::replies::call;
use crate::tiny::Tiny;

fn llama() -> Arc<Llama> {
    Tiny::endless().load(Options::default()).unwrap()
}

/// Runs a call with this serialized input. Returns its result and duration.
fn timed(llama: &Arc<Llama>, input: Vec<u8>) -> (Result<Finish>, Duration) {
    let (mut call, _reader) = call(&json!({}));
    call.input = input;
    let begun = Instant::now();
    let result = futures_executor::block_on(AnyHandler::call(&**llama, call));
    (result, begun.elapsed())
}

/// Time limit of a refusal. The promise is that it comes at once, so that it delays no other tenant;
/// the limit is generous, for a build without optimization and concurrent tests.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(15);

#[track_caller]
fn check_refused_at_once(llama: &Arc<Llama>, input: Vec<u8>, word: &str) {
    let (result, took) = timed(llama, input);
    match result {
        Err(Error::BadInput(why)) => assert!(why.contains(word) && why.len() < 300, "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(took < REFUSAL_TIMEOUT, "{word}: {took:?}");
}

/// Returns a JSON list with `count` copies of `each`.
fn list(each: &str, count: usize) -> String {
    format!("[{}]", vec![each; count].join(","))
}

#[test]
fn h1_two_million_stop_texts_are_refused_at_once() {
    let input = format!(r#"{{"n":64,"stop":{}}}"#, list("\"~\"", 2_000_000));
    check_refused_at_once(&llama(), input.into_bytes(), "`stop`");
}

#[test]
fn h1_a_stop_text_of_2_mb_is_refused_at_once() {
    let input = json!({ "prompt": "x", "stop": ["~".repeat(2_000_000)], "n": 64 });
    check_refused_at_once(&llama(), input.to_string().into_bytes(), "`stop`");
}

#[test]
fn h1_lists_of_four_million_ids_are_refused_at_once() {
    for field in ["bad_token_ids", "stop_token_ids", "bad_token_sequences", "logit_bias"] {
        let list = match field {
            "bad_token_sequences" => list("[1]", 2_000_000),
            "logit_bias" => format!("{{{}}}", vec![r#""1":0"#; 1_300_000].join(",")),
            _ => list("1", 4_000_000),
        };
        let input = format!(r#"{{"prompt":"x","n":128,"{field}":{list}}}"#);
        check_refused_at_once(&llama(), input.into_bytes(), field);
    }
}

#[test]
fn h1_a_list_longer_than_the_vocabulary_is_refused() {
    for field in ["bad_token_ids", "stop_token_ids"] {
        let input = format!(r#"{{"prompt":"x","{field}":{}}}"#, list("1", 259));
        check_refused_at_once(&llama(), input.into_bytes(), "259 tokens");
    }
}

#[test]
fn h1_three_hundred_thousand_messages_are_refused_at_once() {
    let input = format!(r#"{{"messages":{}}}"#, list(r#"{"role":"","content":""}"#, 300_000));
    check_refused_at_once(&llama(), input.into_bytes(), "`messages`");
}

#[test]
fn h1_a_format_of_8_mb_is_refused_at_once() {
    let schema = format!(r#"{{"enum":{}}}"#, list("0", 3_900_000));
    let format = format!(r#"{{"type":"json_schema","json_schema":{{"schema":{schema}}}}}"#);
    let input = format!(r#"{{"prompt":"x","response_format":{format}}}"#);
    check_refused_at_once(&llama(), input.into_bytes(), "`response_format`");
}

#[test]
fn m2_a_prompt_of_8_mb_is_refused_at_once() {
    for input in [
        json!({ "prompt": "1".repeat(8_300_000) }),
        json!({ "messages": [{ "role": "user", "content": "word ".repeat(1_600_000) }] }),
        // Within the limit on bytes, but certainly beyond the context's tokens.
        json!({ "prompt": "1".repeat(60_000) }),
    ] {
        let why = if input["prompt"].is_null() { "`messages` has" } else { "prompt" };
        check_refused_at_once(&llama(), input.to_string().into_bytes(), why);
    }
}

#[test]
fn h1_replies_with_lists_at_the_bound_are_what_they_were_without_them() {
    let llama = llama();
    let ask = |mut input: Value| {
        input["prompt"] = json!("x");
        input["max_tokens"] = json!(6);
        input["temperature"] = json!(0.8);
        input["n"] = json!(8);
        answer(&llama, &input, 7, &[]).unwrap().0
    };
    let stops: Vec<String> = (0..64).map(|at| format!("{at:0>256}")).collect();
    let sequences = vec![vec![3; 64]; 1024];
    let heavy = json!({
        "stop": stops, "bad_token_sequences": sequences, "bad_token_ids": vec![0; 258],
        "stop_token_ids": vec![1; 258]
    });
    let light = json!({ "bad_token_ids": [0], "stop_token_ids": [1] });
    assert_eq!(ask(heavy), ask(light));
}

#[test]
fn h3_a_call_that_is_dropped_leaves_nothing_behind() {
    let llama = llama();
    // The client does not read, so the request does not run, and only a wake-up lets the engine
    // notice the drop.
    let input = json!({ "prompt": "x", "logprobs": true, "top_logprobs": 20, "n": 4 });
    let (writer, reader) = transcript();
    let (mut call, _) = call(&input);
    call.writer = writer;
    let mut future = AnyHandler::call(&*llama, call);
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    assert!(future.as_mut().poll(&mut context).is_pending());
    let running = |llama: &Arc<Llama>| {
        let measures = AnyHandler::measures(&**llama);
        let of = |name: &str| {
            let measure = measures.iter().find(|measure| measure.name.contains(name));
            measure.unwrap_or_else(|| panic!("{name}")).value
        };
        of("engine_running") + of("engine_waiting")
    };
    let within = |wanted: f64| {
        let begun = Instant::now();
        while running(&llama) != wanted {
            assert!(begun.elapsed() < Duration::from_secs(20), "{}", running(&llama));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    within(1.0);
    // A step of the engine runs all requests with room, and the steps of this one fill the room of
    // the other.
    let longer = json!({ "prompt": "y", "max_tokens": 150, "ignore_eos": true });
    answer(&llama, &longer, 7, &[]).unwrap();
    let filled = reader.bytes();
    assert!(filled > 32 << 10, "{filled} bytes");
    drop(future);
    within(0.0);
    drop(reader);
}
