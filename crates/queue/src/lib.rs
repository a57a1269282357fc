//! The queue between clients and workers: RabbitMQ, or memory within one process.
//!
//! [`Broker`] and [`Connection`] are what a backend implements. Both backends run the conformance
//! list in `testing`, so what is proven on one holds on the other.
//!
//! The vocabulary is AMQP 0-9-1's, narrowed to the protocol's own topology: nobody can declare a
//! queue with other arguments than the ones every worker agrees on.

#[cfg(feature = "amqp")]
mod amqp;
mod delivery;
mod error;
mod limits;
mod link;
mod memory;
mod message;
#[cfg(feature = "testing")]
pub mod testing;

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use nsbridge_protocol::{ModelName, Revision};

#[cfg(feature = "amqp")]
pub use amqp::AmqpBroker;
pub use delivery::{Consumer, Delivery, Settle, Subscription};
pub use error::{Error, Result};
pub use limits::Limits;
pub use link::{Link, random_part};
pub use memory::MemoryBroker;
pub use message::{Header, Message, Properties};

/// Something that holds queues.
#[async_trait]
pub trait Broker: Debug + Send + Sync + 'static {
    /// Opens a connection; `name` is what the broker's own tools show.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] or [`Error::Denied`].
    async fn connect(&self, name: &str) -> Result<Arc<dyn Connection>>;

    /// Whether a broker answers at its address. This is cheaper than a connection, for the broker and
    /// for callers, which ask it often while the broker is away.
    async fn listens(&self) -> bool;
}

/// One connection: the unit of loss. When it goes, all of its channels go.
///
/// # Contract
///
/// - Deliveries that are unsettled when their channel goes return to the head of their queue.
/// - A connection never repairs itself. Whoever holds it learns of the end through
///   [`lost`](Self::lost) and opens another: recovery behind one's back redelivers running jobs.
/// - No method blocks a thread, and none depends on the caller's runtime staying responsive: the
///   broker's heartbeat is served elsewhere.
#[async_trait]
pub trait Connection: Debug + Send + Sync {
    /// Makes sure that a model's queues (requests, retries, dead letters) and the protocol's
    /// exchanges exist.
    ///
    /// # Errors
    ///
    /// [`Error::Topology`] if a queue exists with other arguments than the protocol's.
    async fn declare_model(&self, model: &ModelName) -> Result<()>;

    /// Makes sure that a client's reply queue exists and is bound to the reply exchange.
    async fn declare_reply_queue(&self, queue: &str) -> Result<()>;

    /// Makes a worker's control queue, bound to the control exchange with three keys: its own name,
    /// the model's, and that of the model's revision if the worker knows one. It is exclusive to
    /// this connection and goes with it.
    async fn declare_control_queue(
        &self,
        queue: &str,
        model: &ModelName,
        revision: Option<&Revision>,
    ) -> Result<()>;

    /// Makes sure that a request's run record exists, a durable queue that goes when it was not
    /// declared for [`RUN_RECORD_EXPIRES`](nsbridge_protocol::topology::RUN_RECORD_EXPIRES).
    /// Returns the number of its entries. An entry is any message published to it.
    ///
    /// # Errors
    ///
    /// [`Error::Topology`] if the queue exists with other arguments than the protocol's.
    async fn declare_run_record(&self, queue: &str) -> Result<u32>;

    /// Removes one entry from a run record, and an empty record. A record that does not exist is
    /// left alone.
    async fn strike_run_record(&self, queue: &str) -> Result<()>;

    /// Deletes a run record with all entries. A record that does not exist is left alone.
    async fn delete_run_record(&self, queue: &str) -> Result<()>;

    /// Takes messages from `queue` on a channel of its own, at most `prefetch` unsettled at once.
    ///
    /// # Errors
    ///
    /// [`Error::NoQueue`] if there is no such queue.
    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Consumer>;

    /// Opens a channel for publishing with confirms.
    async fn publisher(&self) -> Result<Box<dyn Publisher>>;

    /// How many messages and consumers a queue has.
    ///
    /// # Errors
    ///
    /// [`Error::NoQueue`] if there is no such queue.
    async fn depth(&self, queue: &str) -> Result<Depth>;

    /// Whether the broker takes no messages now, because it runs out of memory or disk. Publishing
    /// waits meanwhile; what is consumed and settled goes on.
    fn is_blocked(&self) -> bool;

    /// Waits until the connection is gone, for whatever reason, and tells it.
    async fn lost(&self) -> Error;

    /// Ends the connection in good order.
    async fn close(&self);
}

/// A channel that publishes, every message confirmed and `mandatory`.
#[async_trait]
pub trait Publisher: Debug + Send + Sync {
    /// Hands a message to the broker; `exchange` is empty for "the queue named `key`".
    ///
    /// Returns as soon as the message is on its way. Waits only while the connection cannot take
    /// more, which is how a blocked broker holds its publishers back.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the channel is gone. Whether the message arrived is then unknown.
    async fn publish(&self, exchange: &str, key: &str, message: Message) -> Result<Confirm>;
}

/// The broker's answer to one published message, some time later.
pub type Confirm = std::pin::Pin<Box<dyn Future<Output = Result<Confirmed>> + Send>>;

/// What became of a published message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// The broker is responsible for it now.
    Taken,
    /// No queue wanted it: the receiver is gone.
    Returned,
    /// The queue is full; the same bytes may be tried again.
    Refused,
}

/// How full a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Messages that wait, without those handed out.
    pub messages: u32,
    /// Consumers that are subscribed.
    pub consumers: u32,
}
