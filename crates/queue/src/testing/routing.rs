//! Rules on message routing and publisher confirms.

use std::time::Duration;

use nsbridge_protocol::Priority;
use nsbridge_protocol::topology::{self, REPLY_EXCHANGE, header};

use super::bench::{
    Bench, consumer, depth, message, model, next, publish, publisher, put, reply_queue, take,
    take_and_ack, unique,
};
use crate::Confirmation;
use crate::error::Error;
use crate::message::{Header, Message};

/// Checks that a consumer receives body and properties as the publisher set them.
pub async fn a_message_arrives_as_it_was_sent(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    let mut sent = Message::new((0..=255).cycle().take(300_000).collect());
    sent.properties.message_id = Some("message".to_owned());
    sent.properties.correlation_id = Some("request".to_owned());
    sent.properties.reply_to = Some("reply".to_owned());
    sent.properties.persistent = true;
    sent.properties.expiration = Some(Duration::from_secs(900));
    let headers = &mut sent.properties.headers;
    headers.insert(header::MODEL.to_owned(), Header::Text("model".to_owned()));
    headers.insert(header::EPOCH.to_owned(), Header::Int(-1));

    let publisher = publisher(&connection).await;
    assert_eq!(publish(&*publisher, "", &queue, sent.clone()).await, Confirmation::Ack);
    let mut consumer = consumer(&connection, &queue, 1).await;
    let delivery = next(&mut consumer).await;
    assert_eq!(delivery.message.properties, sent.properties);
    assert!(delivery.message.body == sent.body, "the body differs");
    assert_eq!(delivery.death, None);
}

/// Checks that an unroutable message is returned, which tells a worker that its client is gone.
pub async fn a_message_for_nobody_is_returned(bench: &Bench) {
    let connection = bench.connect().await;
    let _exchanges = reply_queue(&connection).await;
    let publisher = publisher(&connection).await;
    let nobody = topology::reply_queue(unique());
    for exchange in ["", REPLY_EXCHANGE] {
        let sent = publish(&*publisher, exchange, &nobody, message("anyone?")).await;
        assert_eq!(sent, Confirmation::Returned);
    }
    let too_long = "q".repeat(300);
    assert_eq!(publish(&*publisher, "", &too_long, message("?")).await, Confirmation::Returned);
}

/// Checks that a return reaches the publish call that it belongs to.
///
/// Several clients share a publisher, so one that is gone must not look as if another were.
pub async fn a_return_is_told_to_the_publish_that_it_belongs_to(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, quorum) = model(&connection).await;
    let classic = reply_queue(&connection).await;
    let nobody = topology::reply_queue(unique());
    let publisher = publisher(&connection).await;
    let mut confirms = Vec::new();
    for number in 0..600 {
        let (key, expected) = match number % 7 {
            0 | 3 => (&nobody, Confirmation::Returned),
            1 | 4 | 5 => (&quorum, Confirmation::Ack),
            _ => (&classic, Confirmation::Ack),
        };
        let message = message(&format!("message {number}"));
        let confirm = publisher.publish("", key, message).await.expect("it can be published");
        confirms.push((number, expected, confirm));
    }
    for (number, expected, confirm) in confirms {
        let told = confirm.await.expect("the channel stays");
        assert_eq!(told, expected, "message {number}");
    }
}

/// Checks that a dropped confirm does not stall the publisher.
pub async fn a_confirm_may_be_dropped(bench: &Bench) {
    let connection = bench.connect().await;
    let queue = reply_queue(&connection).await;
    let publisher = publisher(&connection).await;
    for _ in 0..5_000 {
        drop(publisher.publish("", &queue, message("a")).await.expect("it can be published"));
    }
    assert_eq!(publish(&*publisher, "", &queue, message("a")).await, Confirmation::Ack);
}

/// Checks that messages of one publisher keep their order, even if the confirms are dropped.
pub async fn messages_arrive_in_the_order_of_publishing(bench: &Bench) {
    let connection = bench.connect().await;
    let queue = reply_queue(&connection).await;
    let publisher = publisher(&connection).await;
    for number in 0..500 {
        let message = message(&number.to_string());
        drop(publisher.publish(REPLY_EXCHANGE, &queue, message).await.expect("it can be sent"));
    }
    let mut consumer = consumer(&connection, &queue, 50).await;
    for number in 0..500 {
        take_and_ack(&mut consumer, &number.to_string()).await;
    }
}

/// Checks that a full queue refuses messages until there is space.
///
/// The limit must be small: `model_queue_bytes` of 20,000.
pub async fn a_full_queue_refuses_until_there_is_room(bench: &Bench) {
    let connection = bench.connect().await;
    let (_, queue) = model(&connection).await;
    let publisher = publisher(&connection).await;
    let large = "x".repeat(1_000);
    let mut taken = 0;
    while publish(&*publisher, "", &queue, message(&large)).await == Confirmation::Ack {
        taken += 1;
        assert!(taken < 1_000, "the queue never got full");
    }
    assert!(taken >= 10, "{taken} messages filled the queue");
    let mut consumer = consumer(&connection, &queue, 1).await;
    for _ in 0..taken {
        take_and_ack(&mut consumer, &large).await;
    }
    // RabbitMQ accepts messages again shortly after there is space.
    let mut tries = 0;
    while publish(&*publisher, "", &queue, message("small")).await != Confirmation::Ack {
        tries += 1;
        assert!(tries < 100, "an empty queue still refuses");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(take(&mut consumer, "small").await);
}

/// Checks that a full retry queue refuses messages and drops none.
///
/// A request that does not fit stays with its worker. The limit must be small: `retry_queue_bytes`
/// of 20,000.
pub async fn m5_a_full_retry_queue_refuses(bench: &Bench) {
    let connection = bench.connect().await;
    let (model, requests) = model(&connection).await;
    let publisher = publisher(&connection).await;
    let [.., longest] = topology::RETRY_TIERS;
    let queue = topology::retry_queue(&model, Priority::Interactive, longest);
    let mut taken = 0;
    while publish(&*publisher, "", &queue, message(&"x".repeat(1_000))).await == Confirmation::Ack {
        taken += 1;
        assert!(taken < 1_000, "the queue never got full");
    }
    assert!(taken >= 10, "{taken} messages filled the queue");
    depth(&connection, &queue, taken).await;
    depth(&connection, &requests, 0).await;
}

/// Checks that a full dead-letter queue drops its oldest messages.
///
/// The limit must be small: `dead_queue_bytes` of 20,000.
pub async fn m5_dead_letters_beyond_their_limit_push_out_the_oldest(bench: &Bench) {
    let connection = bench.connect().await;
    let (model, _) = model(&connection).await;
    let publisher = publisher(&connection).await;
    let queue = topology::dead_queue(&model);
    for number in 0..30 {
        let letter = format!("{number:1000}");
        assert_eq!(publish(&*publisher, "", &queue, message(&letter)).await, Confirmation::Ack);
    }
    let kept = connection.depth(&queue).await.expect("the queue is there").messages;
    assert!((10..=20).contains(&kept), "{kept} letters of 1,000 bytes are kept");
    let mut consumer = consumer(&connection, &queue, 1).await;
    for number in 30 - kept..30 {
        take_and_ack(&mut consumer, &format!("{number:1000}")).await;
    }
}

/// Checks that `consume` and `depth` of a missing queue fail and do not create it.
pub async fn a_queue_that_is_not_there_is_told(bench: &Bench) {
    let connection = bench.connect().await;
    let missing = topology::reply_queue(unique());
    let consumed = connection.consume(&missing, 1).await.map(drop);
    assert!(matches!(&consumed, Err(Error::NoQueue { queue }) if *queue == missing));
    let asked = connection.depth(&missing).await.map(drop);
    assert!(matches!(&asked, Err(Error::NoQueue { queue }) if *queue == missing));
    assert_eq!(
        connection.depth(&reply_queue(&connection).await).await.map(|d| d.messages).ok(),
        Some(0)
    );
}

/// Checks that a declaration returns the number of entries, and that striking the last one deletes
/// the record.
pub async fn a_run_record_counts_its_entries_until_they_are_struck(bench: &Bench) {
    let connection = bench.connect().await;
    let (model, _) = model(&connection).await;
    let record = topology::run_record(&model, unique());
    let entries = async || connection.declare_run_record(&record).await.expect("it is declared");
    for count in 0..3 {
        assert_eq!(entries().await, count);
        put(&connection, &record, &["began"]).await;
    }
    connection.strike_run_record(&record).await.expect("the connection stays");
    assert_eq!(entries().await, 2);
    for _ in 0..2 {
        connection.strike_run_record(&record).await.expect("the connection stays");
    }
    let gone = connection.depth(&record).await.map(drop);
    assert!(matches!(gone, Err(Error::NoQueue { .. })), "{gone:?}");
    connection.strike_run_record(&record).await.expect("a record that is gone is left alone");

    entries().await;
    put(&connection, &record, &["began", "began"]).await;
    let kept = bench.cut(&connection).await;
    assert_eq!(kept.declare_run_record(&record).await.expect("it is declared"), 2);
    kept.delete_run_record(&record).await.expect("the connection stays");
    assert_eq!(kept.declare_run_record(&record).await.expect("it is declared"), 0);
    kept.delete_run_record(&record).await.expect("the connection stays");
    kept.delete_run_record(&record).await.expect("a record that is gone is left alone");
}

/// Checks that a run record keeps a bounded number of entries.
pub async fn a_run_record_forgets_its_oldest_entries(bench: &Bench) {
    let connection = bench.connect().await;
    let (model, _) = model(&connection).await;
    let record = topology::run_record(&model, unique());
    connection.declare_run_record(&record).await.expect("it is declared");
    let publisher = publisher(&connection).await;
    for _ in 0..topology::RUN_RECORD_LENGTH + 10 {
        assert_eq!(publish(&*publisher, "", &record, message("")).await, Confirmation::Ack);
    }
    let entries = connection.declare_run_record(&record).await.expect("it is declared");
    assert_eq!(entries, topology::RUN_RECORD_LENGTH);
    connection.delete_run_record(&record).await.expect("the connection stays");
}

/// Checks that only the first declaration changes anything, because every worker declares.
pub async fn declaring_again_changes_nothing(bench: &Bench) {
    let connection = bench.connect().await;
    let (model, queue) = model(&connection).await;
    put(&connection, &queue, &["a"]).await;
    connection.declare_model(&model).await.expect("it can be declared again");
    take_and_ack(&mut consumer(&connection, &queue, 1).await, "a").await;
    let bulk = connection.depth(&topology::bulk_queue(&model)).await;
    assert_eq!(bulk.map(|depth| depth.messages).ok(), Some(0));
}
