//! Stops: a call ends in the mildest way that works, and within two seconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nsbridge_handler::erased::AnyHandler;
use nsbridge_handler::{AsyncHandler, Error, Finish, Health, Stop, testing};
use nsbridge_python::Python;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::folder::{Folder, answer, load};

const MODEL: &str = "
    import ctypes, os, signal, sys, threading, time

    def note(text):
        with open('notes', 'a') as notes:
            notes.write(text + ' ')

    def handle(input, job):
        note('begun')
        try:
            if input == 'between':
                while True:
                    yield 'piece'
            elif input == 'loop':
                while True:
                    pass
            elif input == 'sleep':
                time.sleep(1000)
            elif input == 'masked':
                signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
                ctypes.PyDLL(None).sleep(1000)
            elif input == 'stubborn':
                while True:
                    try:
                        time.sleep(0.01)
                    except BaseException:
                        pass
            elif input == 'thread':
                threading.Thread(target=time.sleep, args=(1000,)).start()
            elif input == 'processes':
                child = os.fork()
                if child == 0:
                    time.sleep(1000)
                note('child=%d' % child)
                time.sleep(1000)
            elif input == 'slow':
                time.sleep(3)
            yield os.getpid()
        finally:
            cause = sys.exc_info()[0]
            note('closed' if cause is None else 'closed by ' + cause.__name__)
";

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Waits until a call has begun.
async fn until_begun(folder: &Folder) {
    while folder.read("notes").is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // The model notes this just before it loops or sleeps. No event shows that it does.
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Stops a call once it has begun. Returns its outcome and the time from the stop to the end.
fn stop(python: &Arc<Python>, folder: &Folder, input: &str) -> (Result<Finish, Error>, Duration) {
    std::fs::remove_file(folder.path("notes")).unwrap_or_default();
    let (call, reader) = testing::call(&input.into(), 7);
    runtime().block_on(async {
        let stopping = async {
            until_begun(folder).await;
            reader.stop(Stop::Cancelled);
            Instant::now()
        };
        let (ended, since) = tokio::join!(AnyHandler::call(&**python, call), stopping);
        (ended, since.elapsed())
    })
}

fn pid(python: &Arc<Python>) -> Value {
    answer(python, &json!("well")).unwrap().remove(0)
}

fn kills(python: &Arc<Python>) -> f64 {
    AsyncHandler::measures(&**python)
        .iter()
        .find(|measure| measure.name == "python_kills")
        .unwrap()
        .value
}

#[test]
fn a_generator_is_closed_between_its_pieces() {
    let folder = Folder::with(MODEL);
    let python = folder.load();
    let before = pid(&python);
    let (ended, _) = stop(&python, &folder, "between");
    assert!(matches!(ended, Err(Error::Stopped(Stop::Cancelled))), "{ended:?}");
    assert_eq!(folder.read("notes"), "begun closed by GeneratorExit ");
    assert_eq!(pid(&python), before, "the process goes on");
}

#[test]
fn a_generator_that_the_model_keeps_is_closed_as_well() {
    let folder = Folder::with(
        "
        kept = []

        def pieces():
            try:
                while True:
                    open('notes', 'a').write('begun ')
                    yield 'piece'
            finally:
                open('closed', 'w').write('closed')

        def handle(input, job):
            kept.append(pieces())
            return kept[-1]
        ",
    );
    let python = folder.load();
    stop(&python, &folder, "between").0.unwrap_err();
    assert_eq!(folder.read("closed"), "closed");
}

#[test]
fn a_loop_in_python_ends_by_an_exception() {
    let folder = Folder::with(MODEL);
    let python = folder.load();
    let before = pid(&python);
    for _ in 0..3 {
        let (ended, _) = stop(&python, &folder, "loop");
        assert!(matches!(ended, Err(Error::Stopped(Stop::Cancelled))), "{ended:?}");
        assert_eq!(folder.read("notes"), "begun closed by Stopped ");
    }
    assert_eq!(pid(&python), before, "the process goes on");
}

#[test]
fn what_does_not_end_is_killed_within_two_seconds_and_another_process_is_started() {
    let folder = Folder::with(MODEL);
    let python = folder.load();
    for (times, input) in ["sleep", "masked", "stubborn"].into_iter().enumerate() {
        let before = pid(&python);
        let (ended, took) = stop(&python, &folder, input);
        assert!(matches!(ended, Err(Error::Stopped(Stop::Cancelled))), "{input}: {ended:?}");
        // Two seconds are the promise; a busy machine may add to them.
        assert!(took < Duration::from_secs(20), "{input}: {took:?}");
        assert_eq!(folder.read("notes"), "begun ");
        assert_ne!(pid(&python), before, "{input}");
        assert_eq!(kills(&python), times as f64 + 1.0);
    }
    assert_eq!(AsyncHandler::health(&*python), Health::Ok);
}

#[test]
fn child_processes_are_killed_with_the_process() {
    let folder = Folder::with(MODEL);
    let python = folder.load();
    stop(&python, &folder, "processes").0.unwrap_err();
    let notes = folder.read("notes");
    let child = notes.split("child=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let started = Instant::now();
    while is_running(child) {
        assert!(started.elapsed() < Duration::from_secs(10), "{child} is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns true if the process exists and is no zombie.
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !matches!(stat.rsplit(") ").next().and_then(|rest| rest.chars().next()), None | Some('Z' | 'X'))
}

#[test]
fn a_thread_that_never_ends_holds_nothing_up() {
    let folder = Folder::with(MODEL);
    let python = folder.load();
    let before = pid(&python);
    assert_eq!(answer(&python, &json!("thread")).unwrap(), std::slice::from_ref(&before));
    assert_eq!(pid(&python), before);
    let (sender, dropped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(python);
        sender.send(())
    });
    dropped.recv_timeout(Duration::from_secs(20)).expect("the thread is waited for");
    let started = Instant::now();
    while is_running(&before.to_string()) {
        assert!(started.elapsed() < Duration::from_secs(10), "the process outlives its worker");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_call_beside_one_that_is_killed_is_retried() {
    let folder = Folder::with(MODEL);
    let mut options = folder.options();
    options.slots = 2;
    let python = load(options);
    let (neighbor, _reader) = testing::call(&json!("slow"), 7);
    let beside = python.clone();
    let beside = std::thread::spawn(move || {
        runtime().block_on(AnyHandler::call(&*beside, neighbor)).unwrap_err()
    });
    folder.wait_for("notes");
    stop(&python, &folder, "sleep").0.unwrap_err();
    let error = beside.join().unwrap();
    assert!(matches!(&error, Error::Retry(_)), "{error:?}");
    assert!(error.to_string().contains("another call"), "{error}");
}

#[test]
fn a_call_that_is_dropped_gives_its_slot_back() {
    let folder = Folder::with(MODEL);
    let python = folder.load();
    for input in ["between", "loop", "sleep"] {
        std::fs::remove_file(folder.path("notes")).unwrap_or_default();
        let (call, _reader) = testing::call(&input.into(), 7);
        runtime().block_on(async {
            tokio::select! {
                ended = AnyHandler::call(&*python, call) => panic!("{input}: {ended:?}"),
                () = until_begun(&folder) => {}
            }
        });
        pid(&python);
    }
    assert_eq!(kills(&python), 1.0, "only the sleep");
}

#[test]
fn a_stop_that_comes_early_or_late_leaves_the_slot_in_order() {
    for handle in ["def", "async def"] {
        let folder =
            Folder::with(&format!("{handle} handle(input, job):\n    yield input\n    yield 1"));
        let python = folder.load();
        runtime().block_on(async {
            for wait in 0..200_u64 {
                let (call, reader) = testing::call(&json!(wait), 7);
                let stopping = async {
                    // Each turn stops at another moment.
                    tokio::time::sleep(Duration::from_micros(wait * 10)).await;
                    reader.stop(Stop::Cancelled);
                };
                let _ = tokio::join!(AnyHandler::call(&*python, call), stopping);
            }
        });
        assert_eq!(answer(&python, &json!("a")).unwrap(), [json!("a"), json!(1)]);
        assert_eq!(kills(&python), 0.0);
    }
}
