//! Crashes: each costs its request one try, and the worker goes on until there are too many.

use std::time::Duration;

use nsbridge_testkit::system::client::Error;
use serde_json::json;

use crate::folder::Folder;
use crate::worker::System;

/// Model that crashes in the first run of a request, after two pieces, and answers in the second.
const MODEL: &str = "
    import ctypes, os, resource, signal, threading

    def crash(kind):
        if kind == 'segfault':
            ctypes.string_at(0)
        elif kind == 'exit':
            os._exit(3)
        elif kind == 'kill':
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == 'abort':
            os.abort()
        elif kind == 'thread':
            threading.Thread(target=os._exit, args=(4,)).start()
            threading.Event().wait()
        elif kind == 'memory':
            limit = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, limit[1]))
            hoard = []
            while True:
                hoard.append(bytearray(64 << 20))

    def handle(input, job):
        for i in range(len(job.resumed()), 4):
            if i == 2:
                with open(input, 'a') as runs:
                    runs.write('run ')
                if input != 'well' and os.path.getsize(input) == 4:
                    crash(input)
            yield [input, i]
";

async fn costs_one_try(kind: &str, crashes: f64) {
    let folder = Folder::with(MODEL);
    let system = System::start(folder.options()).await;
    let expected = |kind: &str| (0..4).map(|i| json!([kind, i])).collect::<Vec<_>>();
    // The second request waits in the worker while the first one crashes.
    let (kind_json, well) = (json!(kind), json!("well"));
    let (crashed, beside) = tokio::join!(system.ask(&kind_json), system.ask(&well));
    assert_eq!(crashed.unwrap(), expected(kind));
    assert_eq!(beside.unwrap(), expected("well"));
    assert_eq!(folder.read(kind), "run run ");
    assert_eq!(folder.read("well"), "run ", "the other request runs once");
    assert_eq!(system.metric("nsbridge_handler_python_crashes"), crashes);
    system.worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segmentation_fault_costs_one_try() {
    costs_one_try("segfault", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exit_costs_one_try() {
    costs_one_try("exit", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_as_by_the_kernel_without_memory_costs_one_try() {
    costs_one_try("kill", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_costs_one_try() {
    costs_one_try("abort", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exit_on_another_thread_costs_one_try() {
    costs_one_try("thread", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_allocation_costs_one_try_and_no_process() {
    costs_one_try("memory", 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_model_crashes_too_often_exits() {
    let folder = Folder::with("import os\ndef handle(input, job): os._exit(5)");
    let mut options = folder.options();
    options.crashes = 2;
    let system = System::start(options).await;
    let (first, second) = (json!(1), json!(2));
    let limit = Duration::from_secs(20);
    let _replies = (system.submit(&first, limit).await, system.submit(&second, limit).await);
    let ended = tokio::time::timeout(limit, system.worker.ended()).await;
    let why = format!("{:#}", ended.expect("the worker goes on").unwrap_err());
    assert!(
        why.contains("2 crashes of Python within 600 s") && why.contains("exit code 5"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_an_idle_process_costs_no_request() {
    let folder = Folder::with(
        "
        import os, threading
        def handle(input, job):
            if input == 'leave':
                threading.Timer(0.05, os._exit, (6,)).start()
            yield os.getpid()
        ",
    );
    let system = System::start(folder.options()).await;
    let before = system.ask(&json!("leave")).await.unwrap();
    let crashes = || system.metric("nsbridge_handler_python_crashes");
    let crashed = async {
        while crashes() < 1.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, crashed).await.expect("the process does not leave");
    assert_ne!(system.ask(&json!("stay")).await.unwrap(), before);
    let text = system.setup.observability.metrics.text();
    let retries = text.lines().filter(|line| line.starts_with("nsbridge_retries_total{"));
    let retries: Vec<_> = retries.collect();
    assert!(!retries.is_empty() && retries.iter().all(|line| line.ends_with(" 0")), "{retries:?}");
    assert_eq!(crashes(), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_in_the_model_adds_no_piece_and_ends_nothing() {
    let folder = Folder::with(
        "
        import os, time
        def handle(input, job):
            yield 'before'
            child = os.fork()
            yield 'after'
            if child:
                yield os.waitpid(child, 0)[1] >> 8
        ",
    );
    let system = System::start(folder.options()).await;
    for _ in 0..3 {
        let pieces = system.ask(&json!(0)).await.unwrap();
        assert_eq!(pieces[..2], [json!("before"), json!("after")]);
        assert_eq!(pieces[2..], [json!(70)], "the copy has ended by itself");
    }
    assert_eq!(system.metric("nsbridge_handler_python_crashes"), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_a_call_that_hangs_and_the_next_one_is_answered() {
    let folder = Folder::with(
        "
        import time
        def handle(input, job):
            yield 'piece'
            time.sleep(input)
        ",
    );
    let system = System::start(folder.options()).await;
    let hanging = system.submit(&json!(1000), Duration::from_secs(2)).await;
    let ended = hanging.collect().await;
    assert!(matches!(&ended, Err(Error::Deadline { .. } | Error::Failed { .. })), "{ended:?}");
    assert_eq!(system.ask(&json!(0)).await.unwrap(), [json!("piece")]);
    assert_eq!(system.metric("nsbridge_handler_python_kills"), 1.0);
    system.worker.stop().await.unwrap();
}
