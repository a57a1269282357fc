//! Turns are fair, canceled work does not begin, and a panic fails only its own call.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use futures_executor::block_on;
use nsbridge_handler::{Error, Result};

use super::Workers;

fn tenant(name: &str) -> Arc<str> {
    Arc::from(name)
}

/// Returns work that waits until it is released.
fn held() -> (Sender<()>, impl FnOnce() -> Result<()> + Send + 'static) {
    let (release, held): (Sender<()>, Receiver<()>) = channel();
    (release, move || {
        let _ = held.recv();
        Ok(())
    })
}

/// Polls once, so that the work enters the queue.
fn begin<F: Future>(future: std::pin::Pin<&mut F>) {
    assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[test]
fn h3_a_tenant_never_has_all_threads() {
    let workers = Workers::start(2).unwrap();
    let (release, work) = held();
    let mut first = pin!(workers.run(tenant("a"), 1, work));
    begin(first.as_mut());
    let mut second = pin!(workers.run(tenant("a"), 1, || Ok(2)));
    begin(second.as_mut());
    // This would block forever if the second task had the other thread or this one waited for the
    // first.
    assert_eq!(block_on(workers.run(tenant("b"), 1, || Ok(3))).unwrap(), 3);
    begin(second.as_mut());
    release.send(()).unwrap();
    block_on(first).unwrap();
    assert_eq!(block_on(second).unwrap(), 2);
}

#[test]
fn h3_the_next_is_of_the_tenant_that_was_given_least() {
    let workers = Workers::start(2).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let say = |name: &'static str| {
        let order = order.clone();
        move || {
            order.lock().unwrap().push(name);
            Ok(())
        }
    };
    // Two other tasks occupy both threads.
    let (one, work) = held();
    let mut a = pin!(workers.run(tenant("x"), 1, work));
    begin(a.as_mut());
    let (other, work) = held();
    let mut b = pin!(workers.run(tenant("y"), 1, work));
    begin(b.as_mut());
    let mut floods: Vec<_> =
        (0..3).map(|_| Box::pin(workers.run(tenant("flood"), 1000, say("flood")))).collect();
    floods.iter_mut().for_each(|future| begin(future.as_mut()));
    let mut smalls: Vec<_> =
        (0..3).map(|_| Box::pin(workers.run(tenant("small"), 10, say("small")))).collect();
    smalls.iter_mut().for_each(|future| begin(future.as_mut()));
    // Only one thread is released, so that the order is deterministic.
    one.send(()).unwrap();
    block_on(a).unwrap();
    smalls.into_iter().chain(floods).for_each(|future| block_on(future).unwrap());
    assert_eq!(*order.lock().unwrap(), ["flood", "small", "small", "small", "flood", "flood"]);
    other.send(()).unwrap();
    block_on(b).unwrap();
}

#[test]
fn h3_what_is_given_up_is_not_begun() {
    let workers = Workers::start(2).unwrap();
    let (release, work) = held();
    let mut first = pin!(workers.run(tenant("a"), 1, work));
    begin(first.as_mut());
    let (begun, is_begun) = channel();
    {
        let mut dropped = pin!(workers.run(tenant("a"), 1, move || {
            let _ = begun.send(());
            Ok(())
        }));
        begin(dropped.as_mut());
    }
    let mut last = pin!(workers.run(tenant("a"), 1, || Ok(())));
    begin(last.as_mut());
    release.send(()).unwrap();
    block_on(first).unwrap();
    block_on(last).unwrap();
    assert!(is_begun.try_recv().is_err());
}

#[test]
fn a_panic_costs_its_own_call_and_no_thread() {
    let workers = Workers::start(2).unwrap();
    for _ in 0..3 {
        let work = || -> Result<()> { panic!("canary") };
        match block_on(workers.run(tenant("a"), 1, work)) {
            // Another worker would panic too.
            Err(Error::Failed(why)) => assert!(!why.to_string().contains("canary")),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(block_on(workers.run(tenant("a"), 1, || Ok(5))).unwrap(), 5);
    // The thread updates its accounts after it has sent the result.
    while !workers.0.lock().accounts.is_empty() {
        std::thread::yield_now();
    }
}

#[test]
fn h3_a_task_that_does_not_end_is_seen() {
    let workers = Workers::start(2).unwrap();
    let (release, work) = held();
    let mut task = pin!(workers.run(tenant("a"), 1, work));
    begin(task.as_mut());
    let stuck = loop {
        // The thread takes the task in its own time.
        if let Some(stuck) = workers.stuck(Duration::ZERO) {
            break stuck;
        }
        std::thread::yield_now();
    };
    assert_eq!(stuck, "the preparation of a prompt did not end within 0 s");
    assert_eq!(workers.stuck(Duration::from_secs(3600)), None);
    release.send(()).unwrap();
    block_on(task).unwrap();
    while workers.stuck(Duration::ZERO).is_some() {
        std::thread::yield_now();
    }
}
