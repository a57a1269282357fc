//! A backend under test, and the words that the rules are told in.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use nsbridge_protocol::{ModelName, topology};

use crate::{Broker, Confirmed, Connection, Consumer, Delivery, Message, Publisher};

/// How long a message may take that must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long nothing must come for it to count as nothing.
const SILENCE: Duration = Duration::from_millis(400);

/// A backend under test.
pub struct Bench {
    broker: Arc<dyn Broker>,
    cut: Box<dyn Fn() + Send + Sync>,
}

impl Bench {
    /// The name of every connection that a rule opens.
    pub const CONNECTION: &str = "conformance";

    /// A backend; `cut` breaks all connections that are open under [`CONNECTION`](Self::CONNECTION).
    pub fn new(broker: Arc<dyn Broker>, cut: impl Fn() + Send + Sync + 'static) -> Self {
        Self { broker, cut: Box::new(cut) }
    }

    pub(super) async fn connect(&self) -> Arc<dyn Connection> {
        self.broker.connect(Self::CONNECTION).await.expect("the broker takes a connection")
    }

    /// Breaks this connection, with all others, and gives a new one.
    pub(super) async fn cut(&self, connection: &Arc<dyn Connection>) -> Arc<dyn Connection> {
        (self.cut)();
        let lost = tokio::time::timeout(PATIENCE, connection.lost());
        lost.await.expect("a connection that was cut says so");
        self.connect().await
    }
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("broker", &self.broker).finish_non_exhaustive()
    }
}

/// A number that no other test has.
pub(super) fn unique() -> u128 {
    u128::from(RandomState::new().hash_one(0)) << 64 | u128::from(RandomState::new().hash_one(1))
}

/// A model of one's own, declared, with the queue of its requests.
pub(super) async fn model(connection: &Arc<dyn Connection>) -> (ModelName, String) {
    let name = format!("m{:032x}", unique());
    let model: ModelName = name.parse().expect("a plain name");
    connection.declare_model(&model).await.expect("a model can be declared");
    let queue = topology::model_queue(&model);
    (model, queue)
}

/// A reply queue of one's own, declared.
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

/// A message whose body is `text`; persistent.
pub(super) fn message(text: &str) -> Message {
    let mut message = Message::new(text.as_bytes().to_vec());
    message.properties.persistent = true;
    message
}

/// A message that may wait this long.
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
) -> Confirmed {
    let confirm = publisher.publish(exchange, key, message).await.expect("it can be published");
    let answer = tokio::time::timeout(PATIENCE, confirm).await;
    answer.expect("the broker confirms").expect("the channel stays")
}

/// Puts messages with these bodies into a queue.
pub(super) async fn put(connection: &Arc<dyn Connection>, queue: &str, bodies: &[&str]) {
    let publisher = publisher(connection).await;
    for body in bodies {
        assert_eq!(publish(&*publisher, "", queue, message(body)).await, Confirmed::Taken);
    }
}

/// The next delivery.
pub(super) async fn next(consumer: &mut Consumer) -> Delivery {
    let next = tokio::time::timeout(PATIENCE, consumer.recv()).await;
    next.expect("a message comes").expect("the subscription stays")
}

/// The next delivery, which must be this message.
pub(super) async fn take(consumer: &mut Consumer, body: &str) -> Delivery {
    let delivery = next(consumer).await;
    assert_eq!(text(&delivery), body);
    delivery
}

/// The next delivery, acked; it must be this message.
pub(super) async fn take_and_ack(consumer: &mut Consumer, body: &str) {
    let delivery = take(consumer, body).await;
    assert!(delivery.ack().await.expect("the channel stays"), "the delivery was still ours");
}

pub(super) async fn requeue(delivery: Delivery) {
    assert!(delivery.requeue().await.expect("the channel stays"), "the delivery was still ours");
}

/// Nothing may come for a while.
pub(super) async fn silence(consumer: &mut Consumer) {
    if let Ok(Some(delivery)) = tokio::time::timeout(SILENCE, consumer.recv()).await {
        panic!("{} came, where nothing should", text(&delivery));
    }
}

/// Waits until so many messages wait in a queue.
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
