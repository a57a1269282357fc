//! Rules on delivery counts, order and prefetch.

use nsbridge_protocol::topology::{self, header};

use super::bench::{
    Bench, consumer, depth, message, model, next, publish, publisher, put, reply_queue, requeue,
    silence, take, take_and_ack, text,
};
use crate::Confirmation;
use crate::delivery::Delivery;
use crate::message::Header;

/// Checks that a first delivery ignores counts in the publisher's headers.
///
/// The broker's own headers are never shown either.
pub async fn a1_a_first_delivery_counts_zero_whatever_its_publisher_wrote(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    let mut spoofed = message("spoofed");
    let names = [header::DELIVERY_COUNT, header::ACQUIRED_COUNT, "x-first-death-reason"];
    for name in names {
        spoofed.properties.headers.insert(name.to_owned(), Header::Int(7));
    }
    spoofed.properties.headers.insert(header::EPOCH.to_owned(), Header::Int(3));
    let publisher = publisher(&connection).await;
    assert_eq!(publish(&*publisher, "", &queue, spoofed).await, Confirmation::Ack);

    let mut consumer = consumer(&connection, &queue, 1).await;
    let first = take(&mut consumer, "spoofed").await;
    assert_eq!((first.earlier_deliveries, first.redelivered), (0, false));
    let headers = &first.message.properties.headers;
    assert_eq!(headers.keys().collect::<Vec<_>>(), [header::EPOCH]);

    requeue(first).await;
    let second = take(&mut consumer, "spoofed").await;
    assert_eq!((second.earlier_deliveries, second.redelivered), (1, true));
    assert!(!second.message.properties.headers.contains_key(header::DELIVERY_COUNT));
}

/// Checks that each requeue counts as one delivery.
pub async fn a_requeued_message_comes_back_counted(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    put(&connection, &queue, &["a"]).await;
    let mut consumer = consumer(&connection, &queue, 1).await;
    for count in 0..4 {
        let delivery = take(&mut consumer, "a").await;
        assert_eq!((delivery.earlier_deliveries, delivery.redelivered), (count, count > 0));
        requeue(delivery).await;
    }
}

/// Checks that dropping an unsettled delivery requeues it.
pub async fn a_dropped_delivery_goes_back(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    put(&connection, &queue, &["a"]).await;
    let mut consumer = consumer(&connection, &queue, 1).await;
    drop(take(&mut consumer, "a").await);
    assert_eq!(take(&mut consumer, "a").await.earlier_deliveries, 1);
}

/// Checks that a requeued message goes ahead of messages that were never delivered.
pub async fn a_requeued_message_goes_ahead_of_those_that_wait(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    put(&connection, &queue, &["a", "b", "c"]).await;
    let mut consumer = consumer(&connection, &queue, 1).await;
    requeue(take(&mut consumer, "a").await).await;
    for body in ["a", "b", "c"] {
        take_and_ack(&mut consumer, body).await;
    }
}

/// Checks that a prefetch of two allows two unsettled messages, not three.
pub async fn a_consumer_holds_no_more_than_its_prefetch(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    put(&connection, &queue, &["a", "b", "c"]).await;
    let mut consumer = consumer(&connection, &queue, 2).await;
    let first = take(&mut consumer, "a").await;
    let _second = take(&mut consumer, "b").await;
    silence(&mut consumer).await;
    assert!(first.ack().await.expect("the channel stays"));
    take_and_ack(&mut consumer, "c").await;
}

/// Checks that prefetch applies per consumer: a busy one does not hold up another.
pub async fn a_busy_consumer_does_not_hold_up_another(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    let mut busy = consumer(&connection, &queue, 1).await;
    put(&connection, &queue, &["a"]).await;
    let _held = take(&mut busy, "a").await;
    let mut free = consumer(&connection, &queue, 1).await;
    put(&connection, &queue, &["b", "c"]).await;
    take_and_ack(&mut free, "b").await;
    take_and_ack(&mut free, "c").await;
}

/// Checks that a dropped consumer gives back prefetched messages and keeps those handed out.
pub async fn a_dropped_consumer_gives_back_only_what_it_did_not_hand_out(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    put(&connection, &queue, &["a", "b", "c"]).await;
    let mut first = consumer(&connection, &queue, 3).await;
    let held = take(&mut first, "a").await;
    drop(first);

    let mut second = consumer(&connection, &queue, 3).await;
    let others = [next(&mut second).await, next(&mut second).await];
    let mut bodies: Vec<_> = others.iter().map(text).collect();
    bodies.sort();
    assert_eq!(bodies, ["b", "c"]);
    for other in others {
        assert!(other.ack().await.expect("the channel stays"));
    }
    assert!(held.ack().await.expect("its channel stays open for it"), "it was still ours");
    silence(&mut second).await;
    drop(second);
    depth(&connection, &queue, 0).await;
}

/// Checks that a pause stops new deliveries and changes nothing else.
pub async fn a_paused_consumer_keeps_what_it_holds_and_is_handed_nothing_new(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    put(&connection, &queue, &["a", "b"]).await;
    let mut paused = consumer(&connection, &queue, 3).await;
    let held = take(&mut paused, "a").await;
    paused.pause().await.expect("the channel stays");
    paused.pause().await.expect("twice is as good as once");
    put(&connection, &queue, &["c"]).await;
    // Deliveries that were in transit when the pause began are handed out.
    take_and_ack(&mut paused, "b").await;
    silence(&mut paused).await;
    assert!(held.ack().await.expect("the channel stays"), "it was still ours");

    let mut other = consumer(&connection, &queue, 1).await;
    take_and_ack(&mut other, "c").await;
    drop(other);
    paused.resume().await.expect("the channel stays");
    put(&connection, &queue, &["d"]).await;
    take_and_ack(&mut paused, "d").await;
}

/// Checks that a resumed consumer takes as many as its new prefetch allows, beside what it holds.
pub async fn a_consumer_resumes_with_another_prefetch(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    put(&connection, &queue, &["a", "b"]).await;
    let resumed = connection.consume_paused(&queue, 3).await;
    let mut resumed = resumed.expect("the queue is there");
    silence(&mut resumed).await;
    resumed.resume_with(2).await.expect("the channel stays");
    let first = take(&mut resumed, "a").await;
    let _second = take(&mut resumed, "b").await;
    resumed.pause().await.expect("the channel stays");
    put(&connection, &queue, &["c", "d", "e"]).await;
    resumed.resume_with(1).await.expect("the channel stays");
    let third = take(&mut resumed, "c").await;
    silence(&mut resumed).await;
    assert!(first.ack().await.expect("the channel stays"), "it was still ours");
    // A delivery from before the pause makes no room when it is settled.
    silence(&mut resumed).await;
    assert!(third.ack().await.expect("the channel stays"), "it was still ours");
    take_and_ack(&mut resumed, "d").await;
    take_and_ack(&mut resumed, "e").await;
}

/// Checks that an acked message does not return, even if the connection is lost.
pub async fn an_acked_message_is_gone(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    put(&connection, &queue, &["a"]).await;
    let mut first = consumer(&connection, &queue, 1).await;
    take_and_ack(&mut first, "a").await;
    // An ack has no response, so a second exchange on the connection shows that it was processed.
    depth(&connection, &queue, 0).await;
    let connection = bench.cut(&connection).await;
    silence(&mut consumer(&connection, &queue, 1).await).await;
}

/// Checks that a batch is acked whole, and that a later delivery stays unsettled.
pub async fn a_batch_is_acked_at_once_and_nothing_after_it(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    put(&connection, &queue, &["a", "b", "c", "d"]).await;
    let mut first = consumer(&connection, &queue, 3).await;
    let mut batch = Vec::new();
    for body in ["a", "b", "c"] {
        batch.push(take(&mut first, body).await);
    }
    silence(&mut first).await;
    assert!(Delivery::ack_all(batch).await.expect("the channel stays"), "they were still ours");
    let after = take(&mut first, "d").await;
    assert!(Delivery::ack_all(Vec::new()).await.expect("nothing is to be done"));
    // An ack has no response, so a second exchange on the connection shows that it was processed.
    depth(&connection, &queue, 0).await;
    let connection = bench.cut(&connection).await;
    assert!(!Delivery::ack_all(vec![after]).await.unwrap_or(false), "it is not ours any more");
    let mut second = consumer(&connection, &queue, 3).await;
    take_and_ack(&mut second, "d").await;
    silence(&mut second).await;
}

/// Checks that a body beyond the queue's limit is dropped, while the rest of its message arrives.
pub async fn m3_a_body_beyond_the_limit_of_its_queue_is_not_handed_out(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, requests) = model(&connection).await;
    for queue in [reply_queue(&connection).await, requests] {
        let publisher = publisher(&connection).await;
        let limit = topology::largest_body(&queue);
        // At most the 16 MiB that RabbitMQ 4 accepts.
        let sizes = [limit, limit + 1, limit / 2 * 3, 4];
        let mut consumer = consumer(&connection, &queue, 4).await;
        for bytes in sizes {
            let mut message = message(&"x".repeat(bytes));
            message.properties.message_id = Some(bytes.to_string());
            assert_eq!(publish(&*publisher, "", &queue, message).await, Confirmation::Ack);
        }
        for bytes in sizes {
            let delivery = next(&mut consumer).await;
            assert_eq!(delivery.message.properties.message_id, Some(bytes.to_string()));
            let dropped = bytes > limit;
            assert_eq!(delivery.oversized, dropped.then_some(bytes as u64));
            assert_eq!(delivery.message.body.len(), if dropped { 0 } else { bytes });
            assert!(delivery.ack().await.expect("the channel stays"), "it was still ours");
        }
    }
}
