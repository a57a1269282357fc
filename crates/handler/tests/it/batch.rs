//! Tests of the start, the end and the faults of batches.

mod contract;
mod probe;

use std::time::{Duration, Instant};

use nsbridge_handler::{
    AsyncHandler, BatchOptions, Batched, Error, Fingerprint, Health, Models, Result, Stop, testing,
};
use nsbridge_protocol::Pieces;
use tokio::task::LocalSet;

use probe::{Ask, LONG_DELAY_MS, Load, Probe, Script, Stage};

/// Runs a test on a thread where calls are interleaved, as in the worker.
fn on_stage(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// Returns the error message of a handler that fails to load.
fn refusal(options: BatchOptions<Script>) -> String {
    let loaded = testing::load::<Batched<Probe>, _>(options, Models::default());
    loaded.err().map_or_else(|| "it loaded".to_owned(), |error| error.to_string())
}

#[track_caller]
fn assert_fatal<T: std::fmt::Debug>(result: &Result<T>, why: &str) {
    match result {
        Err(error @ Error::Fatal(_)) => assert!(error.to_string().contains(why), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_comes_while_a_batch_runs_is_the_next_batches() {
    on_stage(async {
        let stage = Stage::new(4, 0.0).await;
        let held = stage.hold().await;
        let mut calls = Vec::new();
        for number in 0..10 {
            calls.push(stage.call(Ask::Double(number)).await);
        }
        stage.script.open_the_gate();
        assert_eq!(held.end().await.unwrap(), (0, 99));
        for (number, call) in calls.into_iter().enumerate() {
            assert_eq!(call.end().await.unwrap(), (2 * number as u64, 99));
        }
        assert_eq!(stage.script.sizes(), [1, 4, 4, 2]);
    });
}

#[test]
fn a_full_batch_does_not_wait() {
    on_stage(async {
        let stage = Stage::new(2, LONG_DELAY_MS).await;
        let calls = [stage.call(Ask::Double(1)).await, stage.call(Ask::Double(2)).await];
        for call in calls {
            call.end().await.unwrap();
        }
        assert_eq!(stage.script.sizes(), [2]);
    });
}

#[test]
fn without_a_delay_a_lone_request_does_not_wait() {
    on_stage(async {
        let stage = Stage::new(8, 0.0).await;
        assert_eq!(stage.call(Ask::Double(4)).await.end().await.unwrap(), (8, 99));
    });
}

#[test]
fn a_batch_that_is_not_full_waits_for_others_until_its_delay_is_over() {
    on_stage(async {
        let stage = Stage::new(8, 700.0).await;
        let begun = Instant::now();
        let calls = [stage.call(Ask::Double(1)).await, stage.call(Ask::Double(2)).await];
        for call in calls {
            call.end().await.unwrap();
        }
        assert!(begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
        assert_eq!(stage.script.sizes(), [2]);
    });
}

#[test]
fn a_request_that_is_stopped_or_dropped_before_its_batch_begins_is_left_out() {
    on_stage(async {
        let stage = Stage::new(8, 0.0).await;
        let held = stage.hold().await;
        let stopped = stage.call(Ask::Double(1)).await;
        let dropped = stage.call(Ask::Double(2)).await;
        let stays = stage.call(Ask::Double(3)).await;
        stopped.stop(Stop::ClientGone);
        // The batch before it is still running.
        let end = stopped.end().await;
        assert!(matches!(end, Err(Error::Stopped(Stop::ClientGone))), "{end:?}");
        dropped.drop_it().await;
        stage.script.open_the_gate();
        held.end().await.unwrap();
        stays.end().await.unwrap();
        assert_eq!(stage.script.batches()[1..], [[Ask::Double(3)]]);
    });
}

#[test]
fn a_stop_while_a_batch_runs_ends_that_call_alone_and_at_once() {
    on_stage(async {
        let stage = Stage::new(8, 0.0).await;
        let first = stage.hold().await;
        first.stop(Stop::Deadline);
        // The gate is closed, so the batch cannot have ended.
        let end = first.end().await;
        assert!(matches!(end, Err(Error::Stopped(Stop::Deadline))), "{end:?}");
        let next = stage.call(Ask::Double(5)).await;
        stage.script.open_the_gate();
        assert_eq!(next.end().await.unwrap(), (10, 99));
        assert_eq!(AsyncHandler::health(&*stage.handler), Health::Ok);
    });
}

#[test]
fn a_bad_input_fails_alone() {
    on_stage(async {
        let stage = Stage::new(3, LONG_DELAY_MS).await;
        let good = stage.call(Ask::Double(1)).await;
        let bad = stage.call(Ask::Bad).await;
        let last = stage.call(Ask::Double(2)).await;
        let end = bad.end().await;
        assert!(matches!(&end, Err(Error::BadInput(why)) if why == "no number"), "{end:?}");
        assert_eq!(good.end().await.unwrap(), (2, 99));
        assert_eq!(last.end().await.unwrap(), (4, 99));
        assert_eq!(stage.script.sizes(), [3]);
        assert_eq!(AsyncHandler::health(&*stage.handler), Health::Ok);
    });
}

#[test]
fn when_a_whole_batch_fails_each_of_its_inputs_is_run_alone() {
    on_stage(async {
        let stage = Stage::new(3, LONG_DELAY_MS).await;
        let good = stage.call(Ask::Double(1)).await;
        let spoils = stage.call(Ask::Spoils).await;
        let last = stage.call(Ask::Double(2)).await;
        let end = spoils.end().await;
        assert!(matches!(end, Err(Error::BadInput(_))), "{end:?}");
        assert_eq!(good.end().await.unwrap(), (2, 99));
        assert_eq!(last.end().await.unwrap(), (4, 99));
        assert_eq!(stage.script.sizes(), [3, 1, 1, 1]);
    });
}

#[test]
fn an_input_that_nobody_waits_for_any_more_is_not_run_alone() {
    on_stage(async {
        let stage = Stage::new(3, LONG_DELAY_MS).await;
        let spoils = stage.call(Ask::HoldsAndSpoils).await;
        let stopped = stage.call(Ask::Double(1)).await;
        let good = stage.call(Ask::Double(2)).await;
        stage.script.begun(1).await;
        stopped.stop(Stop::Cancelled);
        assert!(stopped.end().await.is_err());
        stage.script.open_the_gate();
        assert!(spoils.end().await.is_err());
        assert_eq!(good.end().await.unwrap(), (4, 99));
        assert_eq!(stage.script.batches()[1..], [[Ask::HoldsAndSpoils], [Ask::Double(2)]]);
    });
}

/// Runs a batch of two requests, one of which breaks the model while a third request waits.
async fn break_with(ask: Ask, why: &str) -> (Stage, Result<(u64, u64)>) {
    let stage = Stage::new(2, 0.0).await;
    let held = stage.hold().await;
    let neighbour = stage.call(Ask::Double(1)).await;
    let broken = stage.call(ask).await;
    let waits = stage.call(Ask::Double(3)).await;
    stage.script.open_the_gate();
    held.end().await.unwrap();
    assert!(matches!(broken.end().await, Err(Error::Fatal(_))));
    // The health check and later calls must report the reason.
    assert!(
        matches!(AsyncHandler::health(&*stage.handler), Health::Failed(said) if said.contains(why)),
        "{:?}",
        AsyncHandler::health(&*stage.handler)
    );
    assert_fatal(&waits.end().await, why);
    assert_fatal(&stage.call(Ask::Double(4)).await.end().await, why);
    stage.script.gone().await;
    let neighbour = neighbour.end().await;
    assert_eq!(stage.script.sizes(), [1, 2], "a broken model was run again");
    (stage, neighbour)
}

#[test]
fn a_panic_ends_every_call_and_the_model() {
    on_stage(async {
        let (_stage, neighbour) = break_with(Ask::Panics, "panicked").await;
        assert_fatal(&neighbour, "panicked");
    });
}

#[test]
fn a_wrong_number_of_results_ends_every_call_and_the_model() {
    on_stage(async {
        let why = "1 results for a batch of 2";
        let (_stage, neighbour) = break_with(Ask::LosesAResult, why).await;
        assert_fatal(&neighbour, why);
    });
}

#[test]
fn a_model_that_says_it_is_broken_is_not_run_again() {
    on_stage(async {
        let (_stage, neighbour) = break_with(Ask::SaysBroken, "says that it is broken").await;
        assert_eq!(neighbour.unwrap(), (2, 99), "its own result is right");
        let (_stage, neighbour) = break_with(Ask::BreaksAll, "says that it is broken").await;
        assert_fatal(&neighbour, "says that it is broken");
    });
}

#[test]
fn a_handler_that_is_dropped_ends_its_thread() {
    on_stage(async {
        let idle = Stage::new(2, LONG_DELAY_MS).await;
        let Stage { handler, script } = idle;
        drop(handler);
        script.gone().await;
    });
}

#[test]
fn the_model_lives_on_one_thread_of_its_own() {
    on_stage(async {
        let stage = Stage::new(2, 0.0).await;
        AsyncHandler::warm_up(&*stage.handler).await.unwrap();
        stage.call(Ask::Double(1)).await.end().await.unwrap();
        let Stage { handler, script } = stage;
        drop(handler);
        script.gone().await;
        let threads = script.threads();
        assert_eq!(threads.len(), 4, "load, warm_up, run, drop");
        assert!(threads.iter().all(|thread| *thread == threads[0]));
        assert_ne!(threads[0], std::thread::current().id());
    });
}

#[test]
fn a_client_that_has_the_piece_needs_no_run() {
    on_stage(async {
        let stage = Stage::new(2, 0.0).await;
        let had = Pieces { first: 0, pieces: vec![b"[6,99]".to_vec()] };
        let resumed = stage.call_after(Ask::Double(3), Some(had)).await;
        assert_eq!(resumed.end().await.unwrap(), (6, 99));
        assert_eq!(stage.script.sizes(), [0; 0]);
    });
}

#[test]
fn two_batches_of_requests_are_taken_and_the_operator_outweighs_the_model() {
    let own = Script::default;
    let load = |options| testing::load::<Batched<Probe>, _>(options, Models::default()).unwrap();
    let as_the_model_says = load(BatchOptions { own: own(), ..BatchOptions::default() });
    assert_eq!(as_the_model_says.tasks(), 6);
    assert_eq!(AsyncHandler::fingerprint(&*as_the_model_says), Some(Fingerprint([7; 16])));
    let options = BatchOptions { batch_size: Some(5), max_batch_delay: None, own: own() };
    assert_eq!(load(options).tasks(), 10);
}

#[test]
fn what_goes_wrong_while_loading_is_told() {
    let that = |load| refusal(BatchOptions { own: Script::that(load), ..BatchOptions::default() });
    assert_eq!(that(Load::Fails), "there are no weights");
    assert_eq!(that(Load::Panics), "the model panicked while it was loaded");
    assert!(that(Load::NoBatch).contains("the model's own limit batch_size is 0"));
    on_stage(async {
        let own = Script::that(Load::WarmUpPanics);
        let options = BatchOptions { own, ..BatchOptions::default() };
        let handler = Batched::<Probe>::load(options, Models::default()).await.unwrap();
        assert_fatal(&AsyncHandler::warm_up(&handler).await, "panicked as it warmed up");
        assert!(matches!(AsyncHandler::health(&handler), Health::Failed(_)));
    });
}

#[test]
fn an_option_that_cannot_be_is_refused_by_its_name() {
    let with = |batch_size, max_batch_delay| {
        refusal(BatchOptions { batch_size, max_batch_delay, own: Script::default() })
    };
    let size = "the option batch_size is 0, and must be from 1 to 16384";
    assert_eq!(with(Some(0), None), size);
    assert!(with(Some(16385), None).contains("batch_size is 16385"));
    let delay = "the option max_batch_delay is -1, and must be from 0 to 3600000 milliseconds";
    assert_eq!(with(None, Some(-1.0)), delay);
    assert!(with(None, Some(f64::NAN)).contains("max_batch_delay is NaN"));
    assert!(with(None, Some(1e300)).contains("max_batch_delay is 1"));
}
