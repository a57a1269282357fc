//! Models that answer a batch at once: the rules of `Batch`.

use std::time::Duration;

use nsbridge_handler::testing::check;
use nsbridge_python::Options;
use nsbridge_testkit::system::client::Error;
use serde_json::{Value, json};

use crate::folder::{Folder, answer, load};
use crate::worker::System;

const MODEL: &str = "
    import time

    class Model:
        def run(self, inputs):
            with open('sizes', 'a') as sizes:
                sizes.write('%d ' % len(inputs))
            time.sleep(0.2)
            if 'all' in inputs:
                raise ValueError('canary')
            return [ValueError() if text == 'one' else len(text) for text in inputs]
";

fn batches(folder: &Folder, delay: u64) -> Options {
    let mut options = folder.options();
    (options.batch_size, options.max_batch_delay) = (Some(4), delay);
    options
}

async fn ask(system: &System, inputs: &[&str]) -> Vec<Result<Vec<Value>, Error>> {
    let inputs: Vec<Value> = inputs.iter().map(|input| json!(input)).collect();
    futures_util::future::join_all(inputs.iter().map(|input| system.ask(input))).await
}

#[test]
fn a_model_of_batches_keeps_the_contract() {
    let folder = Folder::with(
        "def run(inputs, jobs):\n    return [[i, j.seed] for i, j in zip(inputs, jobs)]",
    );
    let python = load(batches(&folder, 0));
    assert_eq!(answer(&python, &json!("a")).unwrap(), [json!(["a", 7])]);
    assert_eq!(check(&python, &json!("a")), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_come_together_are_one_batch() {
    let folder = Folder::with(MODEL);
    let system = System::start(batches(&folder, 500)).await;
    let replies = ask(&system, &["a", "bb", "ccc", "dddd", "eeeee"]).await;
    let lengths: Vec<_> = replies.into_iter().map(Result::unwrap).collect();
    assert_eq!(lengths, [1, 2, 3, 4, 5].map(|length| vec![json!(length)]));
    assert_eq!(folder.read("sizes"), "4 1 ");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_fails_its_own_input_alone() {
    let folder = Folder::with(MODEL);
    let system = System::start(batches(&folder, 500)).await;
    for (bad, sizes) in [("one", "4 "), ("all", "4 1 1 1 1 ")] {
        let mut replies = ask(&system, &["a", "bb", bad, "ccc"]).await;
        let failed = replies.remove(2).unwrap_err();
        assert!(matches!(failed, Error::Failed { .. }), "{failed:?}");
        let lengths: Vec<_> = replies.into_iter().map(Result::unwrap).collect();
        assert_eq!(lengths, [1, 2, 3].map(|length| vec![json!(length)]), "{bad}");
        assert_eq!(folder.read("sizes"), sizes);
        std::fs::remove_file(folder.path("sizes")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_during_a_batch_ends_one_call_and_the_batch_goes_on() {
    let folder = Folder::with(MODEL);
    let system = System::start(batches(&folder, 50)).await;
    let input = json!("a");
    let mut canceled = system.submit(&input, Duration::from_secs(20)).await;
    let beside = system.submit(&json!("bb"), Duration::from_secs(20)).await;
    folder.wait_for("sizes");
    canceled.cancel();
    assert_eq!(beside.collect().await.unwrap().0, [json!(2)]);
    assert_eq!(system.metric("nsbridge_handler_python_kills"), 0.0);
    assert_eq!(folder.read("sizes"), "2 ");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_another_length_ends_the_worker() {
    let folder = Folder::with("def run(inputs): return []");
    let system = System::start(batches(&folder, 0)).await;
    let _reply = system.submit(&json!("a"), Duration::from_secs(20)).await;
    let limit = Duration::from_secs(10);
    tokio::time::timeout(limit, system.worker.ended()).await.unwrap().unwrap_err();
}

#[test]
fn the_options_and_the_model_must_fit() {
    let load = |model: &str, batch: bool| {
        let folder = Folder::with(model);
        let options = if batch { batches(&folder, 0) } else { folder.options() };
        let loaded: Result<std::sync::Arc<nsbridge_python::Python>, _> =
            nsbridge_handler::testing::load(options, nsbridge_handler::Models::default());
        loaded.map(drop).map_err(|error| error.to_string())
    };
    // A model of batches has a default.
    load("def run(inputs): return inputs", false).unwrap();
    assert!(load("def handle(input): return input", true).unwrap_err().contains("batch_size"));
}
