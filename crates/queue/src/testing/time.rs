//! Rules on expiration, retries and dead letters.

use std::time::Duration;

use nsbridge_protocol::Priority;
use nsbridge_protocol::topology::{self, REPLY_EXCHANGE, RETRY_TIERS};
use tokio::time::{Instant, sleep, timeout};

use super::bench::{
    Bench, MESSAGE_TIMEOUT, consumer, depth, expiring, message, model, publish, publisher, put,
    reply_queue, requeue, silence, take, take_and_ack,
};
use crate::Confirmation;

const SOON: Duration = Duration::from_millis(300);

/// Checks that an expired message becomes a dead letter.
pub async fn an_expired_message_is_a_dead_letter(bench: &Bench) {
    let connection = bench.connect().await;
    let (model, queue) = model(&connection).await;
    let publisher = publisher(&connection).await;
    publish(&*publisher, "", &queue, expiring("a", SOON)).await;
    let mut dead = consumer(&connection, &topology::dead_queue(&model), 1).await;
    let letter = take(&mut dead, "a").await;
    assert_eq!(letter.death.as_deref(), Some("expired"));
    assert_eq!(letter.earlier_deliveries, 0);
    assert_eq!(letter.message.properties.expiration, None);
    silence(&mut consumer(&connection, &queue, 1).await).await;
}

/// Checks that a message behind another one expires only when it reaches the head.
pub async fn a_message_expires_at_the_head_only(bench: &Bench) {
    let connection = bench.connect().await;
    let (model, queue) = model(&connection).await;
    let publisher = publisher(&connection).await;
    publish(&*publisher, "", &queue, message("a")).await;
    publish(&*publisher, "", &queue, expiring("b", SOON)).await;
    publish(&*publisher, "", &queue, message("c")).await;
    sleep(4 * SOON).await;
    depth(&connection, &queue, 3).await;
    let mut consumer_ = consumer(&connection, &queue, 1).await;
    take_and_ack(&mut consumer_, "a").await;
    take_and_ack(&mut consumer_, "c").await;
    take_and_ack(&mut consumer(&connection, &topology::dead_queue(&model), 1).await, "b").await;
}

/// Checks that a message requeued after its expiration becomes a dead letter.
pub async fn a_message_that_comes_back_after_its_time_is_a_dead_letter(bench: &Bench) {
    let connection = bench.connect().await;
    let (model, queue) = model(&connection).await;
    let publisher = publisher(&connection).await;
    let mut worker = consumer(&connection, &queue, 1).await;
    publish(&*publisher, "", &queue, expiring("a", 2 * SOON)).await;
    let held = take(&mut worker, "a").await;
    sleep(4 * SOON).await;
    requeue(held).await;
    take_and_ack(&mut consumer(&connection, &topology::dead_queue(&model), 1).await, "a").await;
    silence(&mut worker).await;
}

/// Checks that a message beyond its delivery limit becomes a dead letter.
///
/// The limit must be small: `deliveries` of 2.
pub async fn a_message_that_comes_back_too_often_is_a_dead_letter(bench: &Bench) {
    let mut connection = bench.connect().await;
    let (model, queue) = model(&connection).await;
    put(&connection, &queue, &["a"]).await;
    for count in 0..=2 {
        let mut worker = consumer(&connection, &queue, 1).await;
        let delivery = take(&mut worker, "a").await;
        assert_eq!(delivery.earlier_deliveries, count);
        // From RabbitMQ 4.3 on, a nack does not count towards the limit.
        connection = bench.cut(&connection).await;
    }
    let mut worker = consumer(&connection, &queue, 1).await;
    let mut dead = consumer(&connection, &topology::dead_queue(&model), 1).await;
    let letter = take(&mut dead, "a").await;
    // From RabbitMQ 4.3 on, it keeps the count of its deliveries from the other queue.
    assert_eq!(letter.death.as_deref(), Some("delivery_limit"));
    silence(&mut worker).await;
}

/// Checks that a message returns from a retry queue to the queue of its class as a first delivery.
pub async fn a_retry_queue_leads_back_after_its_delay(bench: &Bench) {
    let [interactive, bulk] = Priority::ALL;
    tokio::join!(leads_back(bench, interactive), leads_back(bench, bulk));
}

async fn leads_back(bench: &Bench, priority: Priority) {
    let connection = bench.connect().await;
    let (model, _) = model(&connection).await;
    let queue = topology::request_queue(&model, priority);
    let publisher = publisher(&connection).await;
    let mut worker = consumer(&connection, &queue, 1).await;
    let sent = Instant::now();
    let retry = topology::retry_queue(&model, priority, RETRY_TIERS[0]);
    let later = expiring("again", Duration::from_secs(600));
    assert_eq!(publish(&*publisher, "", &retry, later).await, Confirmation::Ack);
    let again = take(&mut worker, "again").await;
    assert!(sent.elapsed() >= RETRY_TIERS[0].delay.mul_f64(0.9), "after {:?}", sent.elapsed());
    assert_eq!((again.earlier_deliveries, again.redelivered), (0, false));
    assert_eq!(again.death.as_deref(), Some("expired"));
    // The broker removes the expiration of a message that it moves. The binding deadline is sealed
    // in the request.
    assert_eq!(again.message.properties.expiration, None);
}

/// Checks that a reply queue is deleted when its lease is over.
///
/// The lease must be short: `reply_lease` of one second.
pub async fn a_reply_queue_goes_when_its_lease_is_over(bench: &Bench) {
    let connection = bench.connect().await;
    let queue = reply_queue(&connection).await;
    let publisher = publisher(&connection).await;
    let client = consumer(&connection, &queue, 1).await;
    sleep(Duration::from_millis(1500)).await;
    let held = publish(&*publisher, REPLY_EXCHANGE, &queue, message("a")).await;
    assert_eq!(held, Confirmation::Ack, "a queue with a consumer stays");

    drop(client);
    sleep(Duration::from_millis(200)).await;
    let leased = publish(&*publisher, REPLY_EXCHANGE, &queue, message("b")).await;
    assert_eq!(leased, Confirmation::Ack, "its lease is not over");
    // A publish does not renew the lease.
    let over = async {
        let exchange = REPLY_EXCHANGE;
        while publish(&*publisher, exchange, &queue, message("c")).await != Confirmation::Returned {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(MESSAGE_TIMEOUT, over).await.expect("a lease of a second ends");
}

/// Checks that a dead letter can be inspected and requeued often.
pub async fn a_dead_letter_may_be_looked_at_often(bench: &Bench) {
    let connection = bench.connect().await;
    let (model, _) = model(&connection).await;
    let dead = topology::dead_queue(&model);
    put(&connection, &dead, &["a"]).await;
    let mut reader = consumer(&connection, &dead, 1).await;
    for _ in 0..25 {
        requeue(take(&mut reader, "a").await).await;
    }
    take_and_ack(&mut reader, "a").await;
}
