//! Rules on connections that end.

use std::sync::Arc;
use std::time::Duration;

use nsbridge_protocol::topology::{self, CONTROL_EXCHANGE, REPLY_EXCHANGE};

use super::bench::{
    Bench, MESSAGE_TIMEOUT, consumer, message, model, publish, publisher, put, reply_queue,
    silence, take, take_and_ack, unique,
};
use crate::error::Error;
use crate::{Confirmation, Connection};

/// Checks that a lost connection requeues its messages in their order and counts the deliveries.
pub async fn a_lost_connection_gives_its_messages_back_counted(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    put(&connection, &queue, &["a", "b", "c"]).await;
    let mut before = consumer(&connection, &queue, 2).await;
    let _a = take(&mut before, "a").await;
    let _b = take(&mut before, "b").await;

    let connection = bench.cut(&connection).await;
    let mut after = consumer(&connection, &queue, 3).await;
    for (body, count) in [("a", 1), ("b", 1), ("c", 0)] {
        let delivery = take(&mut after, body).await;
        assert_eq!(delivery.earlier_deliveries, count, "deliveries of {body}");
        assert!(delivery.ack().await.expect("the channel stays"));
    }
}

/// Checks that an ack on a lost connection returns false, because another consumer may have the
/// message.
pub async fn an_ack_after_the_connection_is_gone_is_not_success(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    put(&connection, &queue, &["a"]).await;
    let mut before = consumer(&connection, &queue, 1).await;
    let stale = take(&mut before, "a").await;

    let connection = bench.cut(&connection).await;
    assert!(!stale.ack().await.expect("a stale ack is an answer, not a failure"));
    take_and_ack(&mut consumer(&connection, &queue, 1).await, "a").await;
}

/// Checks that a requeue on a lost connection does not requeue the message a second time.
pub async fn a_requeue_after_the_connection_is_gone_does_nothing(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    put(&connection, &queue, &["a"]).await;
    let mut before = consumer(&connection, &queue, 1).await;
    let stale = take(&mut before, "a").await;

    let connection = bench.cut(&connection).await;
    assert!(!stale.requeue().await.expect("a stale requeue is an answer, not a failure"));
    let mut after = consumer(&connection, &queue, 2).await;
    let again = take(&mut after, "a").await;
    assert_eq!(again.earlier_deliveries, 1);
    silence(&mut after).await;
}

/// Checks that every operation on a lost connection ends.
pub async fn everything_on_a_lost_connection_ends(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    let publisher = publisher(&connection).await;
    let mut consumer = consumer(&connection, &queue, 1).await;
    bench.cut(&connection).await;

    let ended = tokio::time::timeout(Duration::from_secs(10), consumer.recv()).await;
    assert!(ended.expect("the subscription ends").is_none());
    let published = match publisher.publish("", &queue, message("a")).await {
        Ok(confirm) => confirm.await.map(drop),
        Err(error) => Err(error),
    };
    assert!(matches!(published, Err(Error::Lost { .. })), "{published:?}");
    let opened = connection.publisher().await.map(drop);
    assert!(matches!(opened, Err(Error::Lost { .. })), "{opened:?}");
}

/// Checks that an orderly close ends the connection and requeues its messages.
pub async fn a_closed_connection_is_lost_and_gives_its_messages_back(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    put(&connection, &queue, &["a"]).await;
    let mut before = consumer(&connection, &queue, 1).await;
    let stale = take(&mut before, "a").await;
    connection.close().await;
    let lost = tokio::time::timeout(Duration::from_secs(10), connection.lost()).await;
    assert!(lost.expect("it says so").is_retryable());

    let connection = bench.connect().await;
    let mut after = consumer(&connection, &queue, 1).await;
    assert_eq!(take(&mut after, "a").await.earlier_deliveries, 1);
    assert!(!stale.ack().await.unwrap_or(false));
}

/// Checks that a worker's control queue does not outlive its connection.
pub async fn a_control_queue_goes_with_its_connection(bench: &Bench) {
    let worker = bench.connect().await;
    let client = bench.connect().await;
    let (model, _) = model(&worker).await;
    let queue = topology::control_queue(unique());
    let revision = "r1".parse().expect("a plain revision");
    let declared = worker.declare_control_queue(&queue, &model, Some(&revision)).await;
    declared.expect("a control queue can be declared");
    let of_revision = topology::revision_key(&model, &revision);
    let mut control = consumer(&worker, &queue, 4).await;
    let refused = client.consume(&queue, 1).await.map(drop);
    assert!(matches!(refused, Err(Error::NoQueue { .. })), "{refused:?}");

    let publisher = publisher(&client).await;
    for key in [model.as_str(), &queue, &of_revision] {
        let sent = publish(&*publisher, CONTROL_EXCHANGE, key, message(key)).await;
        assert_eq!(sent, Confirmation::Ack);
        take_and_ack(&mut control, key).await;
    }
    worker.close().await;
    for key in [model.as_str(), &queue, &of_revision] {
        let send = || publish(&*publisher, CONTROL_EXCHANGE, key, message(key));
        // RabbitMQ 4.3 sends a nack while it deletes the queue.
        let answered = async {
            loop {
                match send().await {
                    Confirmation::Nack => tokio::time::sleep(Duration::from_millis(20)).await,
                    answer => break answer,
                }
            }
        };
        let sent = tokio::time::timeout(MESSAGE_TIMEOUT, answered).await.expect("an answer");
        assert_eq!(sent, Confirmation::Returned);
    }
}

/// Checks that one connection at a time has a lock, and that its end releases the lock.
pub async fn a_lock_goes_with_its_connection(bench: &Bench) {
    let (first, second) = (bench.connect().await, bench.connect().await);
    let name = format!("nsbridge-scaler.{:x}", unique());
    let take = async |connection: &Arc<dyn Connection>| {
        connection.lock(&name).await.expect("a lock can be asked for")
    };
    assert!(take(&first).await);
    assert!(!take(&second).await);
    assert!(take(&first).await, "a connection keeps its lock");
    first.close().await;
    // RabbitMQ deletes the queue shortly after it has confirmed the end.
    let released = async {
        while !take(&second).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(MESSAGE_TIMEOUT, released).await.expect("the lock is released");
    let first = bench.connect().await;
    assert!(!take(&first).await);
}

/// Checks that a client that reconnects within the lease receives messages sent in the meantime.
pub async fn a_reply_queue_outlives_its_clients_connection(bench: &Bench) {
    let connection = bench.connect().await;
    let queue = reply_queue(&connection).await;
    let before = consumer(&connection, &queue, 8).await;
    let connection = bench.cut(&connection).await;
    drop(before);

    let publisher = publisher(&connection).await;
    let sent = publish(&*publisher, REPLY_EXCHANGE, &queue, message("late")).await;
    assert_eq!(sent, Confirmation::Ack);
    connection.declare_reply_queue(&queue).await.expect("declaring it again changes nothing");
    take_and_ack(&mut consumer(&connection, &queue, 8).await, "late").await;
}
