//! Start and contents of batches, without a thread.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;

use super::{BatchLimits, Item, Place, Queue, Work};
use crate::emitter::Emitter;
use crate::job::JobInfo;
use crate::transcript::{Reader, Stop, transcript};
use nsbridge_protocol::{AttemptNo, RequestId};

/// Time longer than any test takes.
const LONG_TIME: Duration = Duration::from_secs(3600);
/// Time limit of a test for an event that must happen.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

type Numbers = Queue<u32, u32>;

/// Call in the queue, removed when this is dropped.
struct Caller<'a> {
    place: Place<'a, u32, u32>,
    reader: Reader,
    answer: oneshot::Receiver<crate::Result<u32>>,
}

fn join(queue: &Numbers, input: u32) -> Caller<'_> {
    let info = JobInfo {
        id: RequestId::from_bytes([0; 16]),
        attempt: AttemptNo(1),
        seed: 1,
        submitted_at: SystemTime::UNIX_EPOCH,
        tenant: "test".parse().unwrap(),
        scope: "test".into(),
        account: "test".into(),
        deadline: SystemTime::UNIX_EPOCH,
        trace: None,
    };
    let (writer, reader) = transcript();
    let (done, answer) = oneshot::channel();
    let place = queue.join(Item { input, info }, Emitter::new(writer), done).unwrap();
    Caller { place, reader, answer }
}

fn limits(batch_size: usize, max_batch_delay: Duration) -> BatchLimits {
    BatchLimits { batch_size, max_batch_delay }
}

/// Returns the next task of the thread, if there is one.
fn work(queue: &Arc<Numbers>, limits: BatchLimits) -> Option<Work<u32, u32>> {
    let (begun, work) = sync_channel(1);
    let asked = queue.clone();
    thread::spawn(move || begun.send(asked.next(limits)));
    work.recv_timeout(TEST_TIMEOUT).ok()
}

/// Returns the inputs of the next batch, if one starts.
fn next(queue: &Arc<Numbers>, limits: BatchLimits) -> Option<Vec<u32>> {
    match work(queue, limits)? {
        Work::Batch(items, _) => Some(items.into_iter().map(|item| item.input).collect()),
        Work::WarmUp(_) | Work::End => None,
    }
}

#[test]
fn the_oldest_request_decides_when_a_batch_has_waited_long_enough() {
    let queue = Arc::new(Numbers::default());
    let _callers = [join(&queue, 1), join(&queue, 2)];
    let delay = Duration::from_secs(120);
    // Simulates a first request that arrived `delay` earlier.
    queue.state.lock().waiting[0].since -= delay;
    assert_eq!(next(&queue, limits(8, delay)), Some(vec![1, 2]));
}

#[test]
fn a_batch_has_the_oldest_requests_and_no_more_than_fit() {
    let queue = Arc::new(Numbers::default());
    let _callers = [1, 2, 3].map(|input| join(&queue, input));
    assert_eq!(next(&queue, limits(2, LONG_TIME)), Some(vec![1, 2]));
    assert_eq!(next(&queue, limits(2, Duration::ZERO)), Some(vec![3]));
}

#[test]
fn a_stopped_request_is_left_out_before_its_call_has_noticed() {
    let queue = Arc::new(Numbers::default());
    let callers = [1, 2, 3].map(|input| join(&queue, input));
    callers[1].reader.stop(Stop::ClientGone);
    assert_eq!(next(&queue, limits(2, LONG_TIME)), Some(vec![1, 3]));
}

#[test]
fn a_call_that_ends_takes_its_request_along() {
    let queue = Numbers::default();
    let callers = [1, 2, 3].map(|input| join(&queue, input));
    let [_first, second, _third] = callers;
    drop(second.place);
    let left: Vec<_> =
        queue.state.lock().waiting.iter().map(|waiting| waiting.item.input).collect();
    assert_eq!(left, [1, 3]);
}

#[test]
fn after_the_end_nobody_waits_and_nobody_may_join() {
    let queue = Arc::new(Numbers::default());
    let mut caller = join(&queue, 1);
    let (done, _warm) = oneshot::channel();
    queue.warm_up(done).unwrap();
    queue.end("it broke");
    queue.end("it broke again");
    assert!(caller.answer.try_recv().is_err());
    assert!(matches!(work(&queue, limits(1, LONG_TIME)), Some(Work::End)));
    assert_eq!(queue.broken().to_string(), "it broke");
    let (done, _warm) = oneshot::channel();
    assert_eq!(queue.warm_up(done).unwrap_err().to_string(), "it broke");
}
