//! Tests of the router: replies that are lost, copies that are refused, and what is remembered.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nsbridge_protocol::topology::{REPLY_EXCHANGE, model_queue};
use nsbridge_protocol::{RequestId, Uuid};
use nsbridge_queue::{Broker, Confirmation, Limits, MemoryBroker, Message, ReconnectingConnection};
use parking_lot::Mutex;
use tokio::time::{Instant, advance, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Entry, PendingRequest, Publish, Router, TOMBSTONES, Timing, forget};
use crate::merge::Merge;
use crate::scripted::{original, root};

/// A queue that expires between any two calls is either noted as lost or kept.
#[tokio::test(start_paused = true)]
async fn a_reply_queue_that_expires_while_a_client_comes_back_takes_nothing_along_unseen() {
    let (lease, latency) = (Duration::from_millis(1000), Duration::from_millis(100));
    // Part of the lease that has passed when the client comes back.
    for gone in (50..1000).step_by(100).map(Duration::from_millis) {
        let limits = Limits { reply_lease: lease, ..Limits::default() };
        let broker = MemoryBroker::with_limits(limits);
        let worker = broker.connect("worker").await.unwrap();
        worker.declare_reply_queue("replies").await.unwrap();
        let publisher = worker.publisher().await.unwrap();
        let frame = Message::new(vec![1]);
        let taken = publisher.publish(REPLY_EXCHANGE, "replies", frame).await.unwrap();
        assert_eq!(taken.await.unwrap(), Confirmation::Ack);
        advance(gone).await;

        broker.delay(latency);
        let link = ReconnectingConnection::new(Arc::new(broker), "client".to_owned());
        let (mut queue, mut lost) = ("replies".to_owned(), false);
        let mut consumer = Router::subscribe(&link, &mut queue, &mut lost).await.unwrap();
        let held = timeout(10 * lease, consumer.recv()).await;
        let too_late = gone + latency > lease;
        assert_eq!(lost, too_late, "after {gone:?}");
        assert_eq!(matches!(held, Ok(Some(_))), !too_late, "after {gone:?}");
    }
}

/// A full or missing queue does not end a request that was already accepted once.
#[tokio::test(start_paused = true)]
async fn c6_a_copy_that_is_refused_is_published_again_until_the_broker_takes_it() {
    for full in [true, false] {
        let limits = Limits { model_queue_bytes: 8, ..Limits::default() };
        let broker = MemoryBroker::with_limits(limits);
        let worker = broker.connect("worker").await.unwrap();
        let head = original().head;
        let queue = model_queue(&head.model);
        if full {
            worker.declare_model(&head.model).await.unwrap();
            let publisher = worker.publisher().await.unwrap();
            let other = publisher.publish("", &queue, Message::new(vec![0; 8])).await.unwrap();
            assert_eq!(other.await.unwrap(), Confirmation::Ack);
        }
        let publish =
            Publish::new(ReconnectingConnection::new(Arc::new(broker), "client".to_owned()));
        let (closed, replies) = (CancellationToken::new(), "replies".to_owned());
        let router = Router::new(Arc::new(publish), closed, replies, Timing::default());
        let router = Arc::new(router);
        let merge = Merge::new(root(), |piece| Cow::Borrowed(piece));
        let deadline = Instant::now() + Duration::from_secs(60);
        let entry = router.register(original(), merge, deadline, 0);
        let again = router.clone();
        let taken = |answer| matches!(answer, Ok(Confirmation::Ack)).then_some(());
        let copy = async move {
            again.enqueue(&original().envelope(None), Message::new(vec![7; 4]), taken).await
        };
        let copy = tokio::spawn(copy);
        sleep(Duration::from_secs(20)).await;
        assert!(!copy.is_finished());

        worker.declare_model(&head.model).await.unwrap();
        let mut consumer = worker.consume(&queue, 10).await.unwrap();
        if full {
            consumer.recv().await.unwrap().ack().await.unwrap();
        }
        assert_eq!(copy.await.unwrap(), Some(()));
        assert_eq!(*consumer.recv().await.unwrap().message.body, [7; 4]);

        // The request is canceled, so the next copy is not published.
        router.cancel(&entry);
        let message = Message::new(vec![7; 4]);
        assert_eq!(router.enqueue(&original().envelope(None), message, taken).await, None);
        assert_eq!(worker.depth(&queue).await.unwrap().messages, 0);
    }
}

/// A channel that knows only a dead leader of the queue is refused, also when the queue has room.
#[tokio::test]
async fn a_refusal_on_a_stale_channel_is_not_believed() {
    let broker = MemoryBroker::new();
    let worker = broker.connect("worker").await.unwrap();
    let model = original().head.model;
    worker.declare_model(&model).await.unwrap();
    let link = ReconnectingConnection::new(Arc::new(broker.clone()), "client".to_owned());
    let (publish, queue) = (Publish::new(link), model_queue(&model));
    for sent in 1..=3 {
        let answer = publish.confirmed("", &queue, Message::new(vec![7])).await.unwrap();
        assert_eq!(answer, Confirmation::Ack);
        assert_eq!(worker.depth(&queue).await.unwrap().messages, sent);
        broker.strand();
    }
}

/// The task that reads the earlier reply may drop it after another one has reattached.
#[tokio::test]
async fn an_earlier_reply_does_not_cancel_the_one_that_reattached() {
    let broker = Arc::new(MemoryBroker::new());
    let link = ReconnectingConnection::new(broker.clone(), "client".to_owned());
    let publish = Arc::new(Publish::new(link));
    let router = Router::new(publish, CancellationToken::new(), String::new(), Timing::default());
    let router = Arc::new(router);
    let worker = broker.connect("worker").await.unwrap();
    let model = original().head.model;
    worker.declare_control_queue("control", &model, None).await.unwrap();
    let mut control = worker.consume("control", 8).await.unwrap();
    let register = || {
        let merge = Merge::new(original().seal().unwrap().reply_root, |piece| piece.into());
        router.register(original(), merge, Instant::now() + Duration::from_secs(60), 0)
    };
    let (earlier, later) = (register(), register());
    let event = |entry: &Entry| entry.lock().poll_event(&Context::from_waker(Waker::noop()));
    assert!(matches!(event(&earlier), Poll::Ready(None)));
    // The worker of the earlier registration is told.
    control.recv().await.unwrap();
    router.cancel(&earlier);
    assert!(event(&later).is_pending());
    router.cancel(&later);
    assert!(matches!(event(&later), Poll::Ready(None)));
}

#[tokio::test(start_paused = true)]
async fn what_ended_is_remembered_for_its_time_and_in_a_bounded_number() {
    let (root, now) = (root(), Instant::now());
    let entry = |seconds: u64| {
        let merge = Merge::new(root.clone(), |piece| Cow::Borrowed(piece));
        PendingRequest::new(original(), merge, now + Duration::from_secs(seconds), 0)
    };
    let id = |n: u64| RequestId(Uuid::from_u128(n.into()));
    let mut pending = HashMap::new();
    // Number n ends after n seconds, except the last, which its caller still reads.
    let most = TOMBSTONES as u64 + 10;
    for n in 0..=most {
        let mut entry = entry(n);
        if n < most {
            entry.cancel();
        }
        pending.insert(id(n), Arc::new(Mutex::new(entry)));
    }
    advance(Duration::from_millis(4500)).await;
    forget(&mut pending);
    assert_eq!(pending.len(), TOMBSTONES + 1);
    assert!(!pending.contains_key(&id(9)) && pending.contains_key(&id(10)));
    advance(Duration::from_secs(2 * most)).await;
    forget(&mut pending);
    assert!(pending.len() == 1 && pending.contains_key(&id(most)));
}
