//! Tests of time limits: on loading, and on a request in the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nsbridge_handler::erased::AnyHandler;
use nsbridge_handler::testing::answer;
use nsbridge_handler::{Error, Stop};
use nsbridge_llama::{Llama, Options};
use serde_json::{Value, json};

use crate::replies::call;
use crate::tiny::Tiny;

fn llama(predict_timeout: Option<f64>) -> Arc<Llama> {
    Tiny::endless().load(Options { predict_timeout, ..Options::default() }).unwrap()
}

fn short() -> Value {
    json!({ "prompt": "x", "max_tokens": 20, "temperature": 0.8 })
}

#[track_caller]
fn check_refused<T: std::fmt::Debug>(result: Result<T, Error>, limit: &str) {
    match result {
        Err(Error::BadInput(why)) => {
            assert!(why.contains("`predict_timeout`") && why.contains(limit), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_that_takes_too_long_is_refused_and_one_in_time_is_not() {
    check_refused(answer(&llama(Some(1e-9)), &short(), 7, &[]), "0.000000001 s");
    let limited = answer(&llama(Some(3600.0)), &short(), 7, &[]).unwrap();
    assert_eq!(limited, answer(&llama(None), &short(), 7, &[]).unwrap());
    // A limit beyond the range of the clock.
    assert_eq!(limited, answer(&llama(Some(1e19)), &short(), 7, &[]).unwrap());
}

#[test]
fn a_reply_that_nobody_reads_is_over_in_time_and_disturbs_no_other() {
    let alone = answer(&llama(None), &short(), 7, &[]).unwrap();
    let llama = llama(Some(1.5));
    // More pieces than the buffer holds for a consumer that does not read.
    let long = json!({ "prompt": "x", "logprobs": true, "top_logprobs": 20 });
    let (call, reader) = call(&long);
    std::thread::scope(|scope| {
        let unread = scope.spawn(|| futures_executor::block_on(AnyHandler::call(&*llama, call)));
        assert_eq!(answer(&llama, &short(), 7, &[]).unwrap(), alone);
        let begun = Instant::now();
        while !unread.is_finished() && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(20));
        }
        // Ends the call, so that an endless reply fails the test instead of blocking it.
        reader.stop(Stop::Cancelled);
        check_refused(unread.join().unwrap(), "1.5 s");
    });
    assert_eq!(answer(&llama, &short(), 7, &[]).unwrap(), alone);
}

#[test]
fn a_model_that_is_not_loaded_in_time_is_refused_in_one_sentence() {
    let load = |seconds| {
        let options = Options { model_loading_timeout: Some(seconds), ..Options::default() };
        Tiny::new().load(options)
    };
    assert!(load(3600.0).is_ok());
    match load(1e-9).unwrap_err() {
        Error::Fatal(why) => assert!(why.to_string().contains("model_loading_timeout"), "{why}"),
        other => panic!("{other:?}"),
    }
}
