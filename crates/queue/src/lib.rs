//! Message queue between clients and workers: RabbitMQ, or memory within one process.
//!
//! A backend implements [`Broker`] and [`Connection`]. Both backends pass the conformance tests in
//! `testing`, so a property that is tested on one holds on the other.
//!
//! The terms are those of AMQP 0-9-1, restricted to the protocol's own topology. A caller names a
//! queue and never its arguments; `with_limits` changes some of them, for tests.
//!
//! | you need | you take |
//! |---|---|
//! | a broker | [`AmqpBroker`] with an address, or [`MemoryBroker`] for one process |
//! | a connection that is opened again after a loss | [`ReconnectingConnection`] |
//! | to publish with publisher confirms | [`Connection::publisher`], [`Publisher`], [`Confirmation`] |
//! | to consume | [`Connection::consume`], [`Consumer`], [`Delivery`] |
//! | the properties of a message | [`Message`], [`Properties`], [`Header`] |
//! | pauses between retries | [`Backoff`] |
//! | shorter intervals and time limits, for tests | [`Timing`] |
//!
//! ```
//! use nsbridge_protocol::topology::model_queue;
//! use nsbridge_queue::{Broker, Confirmation, MemoryBroker, Message};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = "tale-7m".parse()?;
//! let connection = MemoryBroker::new().connect("example").await?;
//! connection.declare_model(&model).await?;
//!
//! let publisher = connection.publisher().await?;
//! let confirm = publisher.publish("", &model_queue(&model), Message::new(b"sealed".to_vec())).await?;
//! assert_eq!(confirm.await?, Confirmation::Ack);
//!
//! let mut consumer = connection.consume(&model_queue(&model), 1).await?;
//! let delivery = consumer.recv().await.expect("a message waits");
//! assert_eq!(delivery.message.body, b"sealed");
//! assert!(delivery.ack().await?);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "amqp")]
mod amqp;
mod delivery;
mod error;
mod limits;
mod memory;
mod message;
mod reconnect;
#[cfg(feature = "testing")]
pub mod testing;
mod timing;

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use nsbridge_protocol::{ModelName, Revision};

#[cfg(feature = "amqp")]
pub use amqp::{AmqpBroker, Argument, DeclaredQueue};
pub use delivery::{Consumer, Delivery, Settle, Subscription};
pub use error::{Error, Result};
pub use limits::Limits;
pub use memory::MemoryBroker;
pub use message::{Header, Message, Properties};
#[doc(no_inline)]
pub use nsbridge_base::{Backoff, Pauses};
pub use reconnect::ReconnectingConnection;
pub use timing::Timing;

/// Broker: a server that holds queues.
#[async_trait]
pub trait Broker: Debug + Send + Sync + 'static {
    /// Opens a connection; the broker's management tools show it under `name`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unreachable`] if no broker answers, or [`Error::Denied`] if it refuses the
    /// login.
    async fn connect(&self, name: &str) -> Result<Arc<dyn Connection>>;

    /// Returns true if a broker answers at its address.
    ///
    /// This probe is cheaper than a connection, both for the broker and for callers, which repeat
    /// it often while the broker is away.
    async fn listens(&self) -> bool;
}

/// Connection to a broker. When it is lost, all of its channels are lost with it.
///
/// # Contract
///
/// - Deliveries that are unsettled when their channel closes return to the head of their queue.
/// - A connection never repairs itself. Its owner learns of the end through [`lost`](Self::lost)
///   and opens another one. A hidden recovery would redeliver running jobs.
/// - A method that waits for the broker returns [`Error::Lost`] if the connection ends first.
/// - No method blocks a thread, and none depends on the caller's runtime staying responsive: a
///   separate thread serves the heartbeats.
#[async_trait]
pub trait Connection: Debug + Send + Sync {
    /// Declares a model's queues (requests, retries, dead letters) and the protocol's exchanges.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Topology`] if a queue exists with other arguments than the protocol's.
    async fn declare_model(&self, model: &ModelName) -> Result<()>;

    /// Declares a client's reply queue and binds it to the reply exchange.
    async fn declare_reply_queue(&self, queue: &str) -> Result<()>;

    /// Declares a worker's control queue, which is exclusive to this connection and deleted with
    /// it.
    ///
    /// The queue is bound to the control exchange with three keys: its own name, the model's name,
    /// and the revision's key if the worker knows its revision.
    async fn declare_control_queue(
        &self,
        queue: &str,
        model: &ModelName,
        revision: Option<&Revision>,
    ) -> Result<()>;

    /// Takes a lock that is released when this connection ends. Returns false if another connection
    /// has it.
    ///
    /// The lock is an exclusive queue of this name. A connection may take its own lock again.
    async fn lock(&self, name: &str) -> Result<bool>;

    /// Declares a request's run record and returns the number of its entries.
    ///
    /// An entry is any message published to the record. The record is a durable queue that is
    /// deleted if it is not declared again for
    /// [`RUN_RECORD_EXPIRES`](nsbridge_protocol::topology::RUN_RECORD_EXPIRES).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Topology`] if the queue exists with other arguments than the protocol's.
    async fn declare_run_record(&self, queue: &str) -> Result<u32>;

    /// Removes one entry from a run record, and deletes the record if it is then empty.
    ///
    /// Does nothing if the record does not exist.
    async fn strike_run_record(&self, queue: &str) -> Result<()>;

    /// Deletes a run record with all entries. Does nothing if the record does not exist.
    async fn delete_run_record(&self, queue: &str) -> Result<()>;

    /// Subscribes to `queue` on a new channel, with at most `prefetch` unsettled deliveries.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoQueue`] if there is no such queue, and [`Error::NodeDown`] if it is a reply queue
    /// whose node is down.
    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Consumer>;

    /// Opens a paused subscription to `queue` on a new channel. It takes deliveries after
    /// [`resume_with`](Consumer::resume_with), at most `prefetch` at a time.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoQueue`] if there is no such queue; a backend may return it at the first
    /// resume instead.
    async fn consume_paused(&self, queue: &str, prefetch: u16) -> Result<Consumer>;

    /// Opens a channel for publishing with publisher confirms.
    async fn publisher(&self) -> Result<Box<dyn Publisher>>;

    /// Returns the number of messages and consumers of a queue.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoQueue`] if there is no such queue, and [`Error::NodeDown`] if it is a reply queue
    /// whose node is down.
    async fn depth(&self, queue: &str) -> Result<Depth>;

    /// Returns true while the broker accepts no messages because it is short of memory or disk.
    ///
    /// Publishing waits meanwhile; consuming and settling continue.
    fn is_blocked(&self) -> bool;

    /// Waits until the connection ends, for any reason, and returns the error.
    async fn lost(&self) -> Error;

    /// Closes the connection in an orderly way.
    async fn close(&self);
}

/// Channel for publishing; every message is confirmed and `mandatory`.
#[async_trait]
pub trait Publisher: Debug + Send + Sync {
    /// Publishes a message; with an empty `exchange`, `key` is the name of a queue.
    ///
    /// Returns as soon as the message is queued for sending. It waits only while the connection can
    /// take no more; this is the back-pressure of a blocked broker.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`] if the channel is gone. It is then unknown whether the message
    /// arrived.
    async fn publish(&self, exchange: &str, key: &str, message: Message) -> Result<Confirm>;

    /// Returns true if the broker has refused a message on this channel that it may accept on a new
    /// one.
    ///
    /// RabbitMQ looks up the leader of a quorum queue at the channel's first message to that queue. A
    /// channel that then finds a leader on a node that has just died is refused until that node is
    /// back, although the queue has another leader. A caller therefore opens a new channel before it
    /// believes a [`Nack`](Confirmation::Nack). The refusal of a message that was published within
    /// [`Timing::fresh_channel`] of the channel's opening makes no channel stale, so that a full queue
    /// costs one new channel in that time.
    fn is_stale(&self) -> bool {
        false
    }
}

/// Future of the publisher confirm for one message.
pub type Confirm = std::pin::Pin<Box<dyn Future<Output = Result<Confirmation>> + Send>>;

/// Answer of the broker to a published message.
///
/// ```
/// use nsbridge_queue::{Broker, Confirmation, MemoryBroker, Message};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let connection = MemoryBroker::new().connect("example").await?;
/// let publisher = connection.publisher().await?;
/// let confirm = publisher.publish("", "nsbridge.unknown", Message::new(vec![7])).await?;
/// assert_eq!(confirm.await?, Confirmation::Returned);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// Ack: the broker is responsible for the message now.
    Ack,
    /// Returned as unroutable: no queue is bound to the key. The client is gone, or no worker has
    /// ever served the model.
    Returned,
    /// Nack: not taken, as when the queue is full. The same bytes may be published again, on a new
    /// channel if this one [is stale](Publisher::is_stale).
    Nack,
}

/// Fill level of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Depth {
    /// Messages that wait in the queue, without unsettled deliveries.
    pub messages: u32,
    /// Consumers that are subscribed.
    pub consumers: u32,
}
