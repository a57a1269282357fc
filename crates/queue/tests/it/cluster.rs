//! Requests on a cluster of three nodes, whose nodes are killed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nsbridge_protocol::topology::{REPLY_EXCHANGE, reply_queue, request_queue};
use nsbridge_protocol::{ModelName, Priority};
use nsbridge_queue::{
    AmqpBroker, Broker as _, Confirmation, Error, Message, Properties, ReconnectingConnection,
    Result,
};
use nsbridge_testkit::rabbit::Cluster;
use tokio::task::block_in_place;
use tokio::time::timeout;

/// Time within which a cluster with a majority takes a message, also while a leader is elected.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// Time within which three calls tell that the node of a reply queue is down.
const TOLD_WITHIN: Duration = Duration::from_secs(20);

/// Time for which a cluster without a majority is asked in vain.
const REFUSED_FOR: Duration = Duration::from_secs(4);

/// Publishes a persistent message until the broker has confirmed it.
async fn publish(link: &ReconnectingConnection, queue: &str, body: &'static str) {
    loop {
        let once = async {
            let publisher = link.try_connection().await?.publisher().await?;
            let message = Message::new(body.into());
            let properties = Properties { persistent: true, ..message.properties };
            let message = Message { properties, ..message };
            publisher.publish("", queue, message).await?.await
        };
        let confirmed: Option<Result<_>> = timeout(Duration::from_secs(5), once).await.ok();
        match confirmed {
            Some(Ok(Confirmation::Ack)) => return,
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_majority_of_nodes_takes_and_keeps_requests_and_a_minority_takes_none() {
    let mut cluster = block_in_place(|| Cluster::start(3)).unwrap();
    let broker = Arc::new(AmqpBroker::new(&cluster.urls()).unwrap());
    let link = ReconnectingConnection::new(broker, "cluster".to_owned());
    let model: ModelName = "cluster".parse().unwrap();
    let queue = request_queue(&model, Priority::Interactive);
    link.connection().await.declare_model(&model).await.unwrap();
    publish(&link, &queue, "before").await;

    let leader = block_in_place(|| cluster.queue(&queue, 0)).unwrap().home.unwrap();
    let replies = reply_queue(1);
    let at_leader = AmqpBroker::new(&cluster.nodes()[leader].url()).unwrap();
    at_leader.connect("client").await.unwrap().declare_reply_queue(&replies).await.unwrap();
    block_in_place(|| cluster.nodes()[leader].kill()).unwrap();
    timeout(TAKEN_WITHIN, publish(&link, &queue, "without the leader")).await.unwrap();

    // RabbitMQ 3.10 returns what is published for the queue; 4.3 refuses it, and waits for a
    // minute before it answers the other calls.
    let elsewhere = link.connection().await;
    let publisher = elsewhere.publisher().await.unwrap();
    let message = Message::new(b"a frame".to_vec());
    let answer = publisher.publish(REPLY_EXCHANGE, &replies, message).await.unwrap();
    assert_ne!(answer.await.unwrap(), Confirmation::Ack);
    let told = async {
        let consumed = elsewhere.consume(&replies, 1).await.unwrap_err();
        let asked = elsewhere.depth(&replies).await.unwrap_err();
        [consumed, asked, elsewhere.declare_reply_queue(&replies).await.unwrap_err()]
    };
    for error in timeout(TOLD_WITHIN, told).await.unwrap() {
        assert!(matches!(error, Error::NodeDown { .. }) && error.is_retryable(), "{error}");
    }

    let second = (leader + 1) % 3;
    block_in_place(|| cluster.nodes()[second].kill()).unwrap();
    let alone = timeout(REFUSED_FOR, publish(&link, &queue, "alone")).await;
    assert!(alone.is_err(), "one node of three has confirmed a request");

    block_in_place(|| cluster.launch(&[leader, second])).unwrap();
    timeout(TAKEN_WITHIN, publish(&link, &queue, "after")).await.unwrap();
    let mut consumer = link.connection().await.consume(&queue, 10).await.unwrap();
    let mut bodies = BTreeSet::new();
    while !["before", "without the leader", "after"].iter().all(|body| bodies.contains(*body)) {
        let delivery = timeout(TAKEN_WITHIN, consumer.recv()).await.unwrap().unwrap();
        bodies.insert(String::from_utf8(delivery.message.body.clone()).unwrap());
        assert!(delivery.ack().await.unwrap());
    }
}
