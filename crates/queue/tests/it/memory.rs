//! Tests of faults that only the memory backend can simulate.

use std::time::Duration;

use nsbridge_queue::{Broker, Confirmation, MemoryBroker, Message};

#[tokio::test(start_paused = true)]
async fn a_blocked_broker_holds_publishers_back_and_nobody_else() {
    let broker = MemoryBroker::new();
    let connection = broker.connect("worker").await.unwrap();
    connection.declare_model(&"m".parse().unwrap()).await.unwrap();
    let publisher = connection.publisher().await.unwrap();
    publisher.publish("", "nsbridge.m", Message::new(vec![1])).await.unwrap().await.unwrap();
    let mut consumer = connection.consume("nsbridge.m", 1).await.unwrap();
    let delivery = consumer.recv().await.unwrap();

    broker.block();
    let publishing = publisher.publish("", "nsbridge.m", Message::new(vec![2]));
    let mut publishing = std::pin::pin!(publishing);
    let waited = tokio::time::timeout(Duration::from_secs(60), &mut publishing).await;
    assert!(waited.is_err(), "a blocked broker took a message");
    assert!(delivery.ack().await.unwrap());

    broker.unblock();
    let confirmed = publishing.await.unwrap().await.unwrap();
    assert_eq!(confirmed, Confirmation::Ack);
}

#[tokio::test(start_paused = true)]
async fn a_cut_hits_only_connections_of_its_name() {
    let broker = MemoryBroker::new();
    let [one, other] =
        [broker.connect("one").await.unwrap(), broker.connect("other").await.unwrap()];
    broker.cut("one");
    one.lost().await;
    let lost = tokio::time::timeout(Duration::from_secs(60), other.lost()).await;
    assert!(lost.is_err(), "the other connection was cut too");
}
