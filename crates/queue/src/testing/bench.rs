//! Backend under test, and helpers for the rules.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use nsbridge_protocol::{ModelName, topology};

use crate::delivery::{Consumer, Delivery};
use crate::message::Message;
use crate::{Broker, Confirmation, Connection, Publisher};

/// Time limit for a message that must arrive.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(20);

/// Time without a message after which none is assumed to arrive.
const SILENCE: Duration = Duration::from_millis(400);

/// Backend under test.
pub struct Bench {
    broker: Arc<dyn Broker>,
    cut: Box<dyn Fn() + Send + Sync>,
}

impl Bench {
    /// Name of every connection that a rule opens.
    pub const CONNECTION: &str = "conformance";

    /// Creates a bench; `cut` breaks all connections that are open under
    /// [`CONNECTION`](Self::CONNECTION).
    pub fn new(broker: Arc<dyn Broker>, cut: impl Fn() + Send + Sync + 'static) -> Self {
        Self { broker, cut: Box::new(cut) }
    }

    pub(super) async fn connect(&self) -> Arc<dyn Connection> {
        self.broker.connect(Self::CONNECTION).await.expect("the broker takes a connection")
    }

    /// Breaks this connection along with all others, and returns a new one.
    pub(super) async fn cut(&self, connection: &Arc<dyn Connection>) -> Arc<dyn Connection> {
        (self.cut)();
        let lost = tokio::time::timeout(MESSAGE_TIMEOUT, connection.lost());
        lost.await.expect("a connection that was cut says so");
        self.connect().await
    }
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("broker", &self.broker).finish_non_exhaustive()
    }
}

/// Returns a number that no other test uses.
pub(super) fn unique() -> u128 {
    u128::from(RandomState::new().hash_one(0)) << 64 | u128::from(RandomState::new().hash_one(1))
}

/// Declares a model with a unique name and returns it with the queue of its requests.
pub(super) async fn model(connection: &Arc<dyn Connection>) -> (ModelName, String) {
    let name = format!("m{:032x}", unique());
    let model: ModelName = name.parse().expect("a plain name");
    connection.declare_model(&model).await.expect("a model can be declared");
    let queue = topology::model_queue(&model);
    (model, queue)
}

/// Declares a reply queue with a unique name.
pub(super) async fn reply_queue(connection: &Arc<dyn Connection>) -> String {
    let queue = topology::reply_queue(unique());
    connection.declare_reply_queue(&queue).await.expect("a reply queue can be declared");
    queue
}

pub(super) async fn publisher(connection: &Arc<dyn Connection>) -> Box<dyn Publisher> {
    connection.publisher().await.expect("a publisher can be opened")
}

pub(super) async fn consumer(
    connection: &Arc<dyn Connection>,
    queue: &str,
    prefetch: u16,
) -> Consumer {
    connection.consume(queue, prefetch).await.expect("the queue is there")
}

/// Creates a persistent message with this text as its body.
pub(super) fn message(text: &str) -> Message {
    let mut message = Message::new(text.as_bytes().to_vec());
    message.properties.persistent = true;
    message
}

/// Creates a message that expires after this time.
pub(super) fn expiring(text: &str, after: Duration) -> Message {
    let mut message = message(text);
    message.properties.expiration = Some(after);
    message
}

pub(super) async fn publish(
    publisher: &dyn Publisher,
    exchange: &str,
    key: &str,
    message: Message,
) -> Confirmation {
    let confirm = publisher.publish(exchange, key, message).await.expect("it can be published");
    let answer = tokio::time::timeout(MESSAGE_TIMEOUT, confirm).await;
    answer.expect("the broker confirms").expect("the channel stays")
}

/// Publishes messages with these bodies to a queue.
pub(super) async fn put(connection: &Arc<dyn Connection>, queue: &str, bodies: &[&str]) {
    let publisher = publisher(connection).await;
    for body in bodies {
        assert_eq!(publish(&*publisher, "", queue, message(body)).await, Confirmation::Ack);
    }
}

/// Returns the next delivery.
pub(super) async fn next(consumer: &mut Consumer) -> Delivery {
    let next = tokio::time::timeout(MESSAGE_TIMEOUT, consumer.recv()).await;
    next.expect("a message comes").expect("the subscription stays")
}

/// Returns the next delivery, which must be this message.
pub(super) async fn take(consumer: &mut Consumer, body: &str) -> Delivery {
    let delivery = next(consumer).await;
    assert_eq!(text(&delivery), body);
    delivery
}

/// Acks the next delivery, which must be this message.
pub(super) async fn take_and_ack(consumer: &mut Consumer, body: &str) {
    let delivery = take(consumer, body).await;
    assert!(delivery.ack().await.expect("the channel stays"), "the delivery was still ours");
}

pub(super) async fn requeue(delivery: Delivery) {
    assert!(delivery.requeue().await.expect("the channel stays"), "the delivery was still ours");
}

/// Checks that no message arrives for a while.
pub(super) async fn silence(consumer: &mut Consumer) {
    if let Ok(Some(delivery)) = tokio::time::timeout(SILENCE, consumer.recv()).await {
        panic!("{} came, where nothing should", text(&delivery));
    }
}

/// Waits until this number of messages waits in a queue.
pub(super) async fn depth(connection: &Arc<dyn Connection>, queue: &str, expected: u32) {
    let mut seen = u32::MAX;
    for _ in 0..100 {
        seen = connection.depth(queue).await.expect("the queue is there").messages;
        if seen == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{seen} messages wait in {queue}, where {expected} should");
}

pub(super) fn text(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.message.body).into_owned()
}
