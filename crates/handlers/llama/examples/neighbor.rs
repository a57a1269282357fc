//! Benchmark of what one tenant's requests cost another: `neighbor MODEL_DIR`.
//!
//! First the times in which requests beyond the bounds are refused, each the slowest of five. Then
//! a tenant requests ten tokens every 0.25 s: alone, and beside a tenant that repeatedly requests
//! 128 replies with every list at its limit.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a program that measures")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nsbridge_handler::erased::AnyHandler;
use nsbridge_handler::{Error, Model, Models, testing};
use nsbridge_llama::{Llama, Options};
use serde_json::{Value, json};

const ROUNDS: usize = 40;
const REQUEST_PAUSE: Duration = Duration::from_millis(250);

fn ask(llama: &Arc<Llama>, scope: &str, input: &Value) -> Duration {
    let (mut call, reader) = testing::call(input, 7);
    (call.info.scope, call.info.account) = (scope.into(), scope.into());
    let (begun, ended) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|threads| {
        // This client reads, because an unread reply does not run.
        threads.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                reader.mark_all_sent();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        futures_executor::block_on(AnyHandler::call(&**llama, call)).unwrap();
        ended.store(true, Ordering::Relaxed);
        begun.elapsed()
    })
}

/// Returns requests that must be refused, by their finding in the security review.
fn refused() -> [(&'static str, String); 5] {
    let list = |each: &str, count: usize| vec![each; count].join(",");
    let schema = r#"{"type":"integer","allOf":[{"multipleOf":9999},{"multipleOf":9973}]}"#;
    [
        (
            "H1, 2 million stop texts",
            format!(r#"{{"prompt":"x","n":64,"stop":[{}]}}"#, list("\"~\"", 1_900_000)),
        ),
        (
            "H1, 3.9 million banned tokens",
            format!(r#"{{"prompt":"x","n":128,"bad_token_ids":[{}]}}"#, list("1", 3_900_000)),
        ),
        (
            "H2, two multiples that meet",
            format!(
                r#"{{"prompt":"x","response_format":{{"type":"json_schema","json_schema":
                    {{"name":"x","schema":{schema}}}}}}}"#
            ),
        ),
        ("M2, a prompt of 8 MB", format!(r#"{{"prompt":"{}"}}"#, "1".repeat(8_000_000))),
        (
            "M2, messages of 8 MB",
            format!(
                r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#,
                "word ".repeat(1_600_000)
            ),
        ),
    ]
}

fn refuse(llama: &Arc<Llama>) {
    for (what, input) in refused() {
        let times = (0..5).map(|_| {
            let (mut call, _reader) = testing::call(&json!({}), 7);
            call.input = input.clone().into_bytes();
            let begun = Instant::now();
            let result = futures_executor::block_on(AnyHandler::call(&**llama, call));
            assert!(matches!(result, Err(Error::BadInput(_))), "{what}: {result:?}");
            begun.elapsed().as_secs_f64() * 1e3
        });
        println!("refused after {:8.2} ms: {what}", times.fold(0.0, f64::max));
    }
}

fn slowest(llama: &Arc<Llama>) -> (f64, f64) {
    let input = json!({ "prompt": "Once upon a time", "max_tokens": 10, "ignore_eos": true });
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            std::thread::sleep(REQUEST_PAUSE);
            ask(llama, "neighbor", &input).as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[ROUNDS / 2], times[ROUNDS - 1])
}

fn main() {
    let dir = std::env::args().nth(1).unwrap();
    let options = Options::default();
    let models: Models = [("target".to_owned(), Model::in_dir(&dir))].into_iter().collect();
    let llama: Arc<Llama> = testing::load(options, models).unwrap();
    let size: u32 = std::env::args().nth(2).map_or(4000, |size| size.parse().unwrap());
    refuse(&llama);
    let (median, alone) = slowest(&llama);
    println!("alone   median {median:8.1} ms, slowest {alone:8.1} ms");
    let heavy = json!({
        "prompt": "Once upon a time", "n": 128, "max_tokens": 60, "temperature": 0.8,
        "top_p": 0.9, "repetition_penalty": 1.1, "logprobs": true, "top_logprobs": 5,
        "stop": (0..64).map(|at| format!("{at:~>256}")).collect::<Vec<_>>(),
        "bad_token_ids": vec![9; size as usize], "stop_token_ids": (10..size / 2).collect::<Vec<_>>(),
        "logit_bias": (10..size).map(|id| (id.to_string(), json!(0.5))).collect::<serde_json::Map<_, _>>(),
        "bad_token_sequences": (0..1024).map(|at| { let mut s = vec![7; 63]; s.push(10 + at); s }).collect::<Vec<_>>(),
        "min_tokens": 60
    });
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                ask(&llama, "attacker", &heavy);
            }
        });
        let (median, beside) = slowest(&llama);
        println!(
            "beside  median {median:8.1} ms, slowest {beside:8.1} ms: {:.1} times",
            beside / alone
        );
        ended.store(true, Ordering::Relaxed);
    });
}
