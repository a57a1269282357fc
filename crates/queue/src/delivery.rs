//! Deliveries and consumers.

use std::fmt;

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::error::Result;
use crate::message::Message;

/// Message delivered by the broker, to be settled exactly once.
///
/// Dropping an unsettled delivery requeues the message.
///
/// ```
/// use nsbridge_protocol::topology::model_queue;
/// use nsbridge_queue::{Broker, MemoryBroker, Message};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let model = "tale-7m".parse()?;
/// # let connection = MemoryBroker::new().connect("example").await?;
/// # connection.declare_model(&model).await?;
/// # let publisher = connection.publisher().await?;
/// # publisher.publish("", &model_queue(&model), Message::new(vec![7])).await?.await?;
/// let mut consumer = connection.consume(&model_queue(&model), 1).await?;
/// let delivery = consumer.recv().await.expect("a message waits");
/// assert_eq!(delivery.earlier_deliveries, 0);
/// drop(delivery);
/// let again = consumer.recv().await.expect("it was requeued");
/// assert!(again.redelivered);
/// assert_eq!(again.earlier_deliveries, 1);
/// # Ok(())
/// # }
/// ```
pub struct Delivery {
    /// Delivered message.
    pub message: Message,
    /// Number of earlier deliveries, counted by the broker.
    ///
    /// It is 0 for a first delivery, even if the publisher set a count in the headers.
    pub earlier_deliveries: u64,
    /// Redelivered flag of the broker.
    pub redelivered: bool,
    /// Reason for which the broker moved the message here from another queue, such as `expired` or
    /// `delivery_limit`.
    ///
    /// A publisher can forge it, so it is only a hint.
    pub death: Option<String>,
    /// Size of the body in bytes, if it exceeds the limit of this queue
    /// ([`largest_body`](nsbridge_protocol::topology::largest_body)).
    ///
    /// Such a body is dropped as it arrives, and the message has an empty one.
    pub oversized: Option<u64>,
    settle: Option<Box<dyn Settle>>,
}

/// Settlement of one delivery, implemented by a backend.
#[async_trait]
pub trait Settle: Send + Sync {
    /// Removes the message from its queue. Returns false if this consumer no longer holds it.
    async fn ack(self: Box<Self>) -> Result<bool>;

    /// Acknowledges a batch whose last delivery this is. Returns false if this consumer no longer
    /// holds all of them.
    ///
    /// `earlier` holds the rest of the batch in the order of delivery, and no delivery of the
    /// consumer before the last one is unsettled outside it. A backend may therefore send one
    /// acknowledgement for all. By default each is acknowledged alone.
    async fn ack_all(self: Box<Self>, earlier: Vec<Box<dyn Settle>>) -> Result<bool> {
        let mut held = true;
        for settle in earlier {
            held &= settle.ack().await?;
        }
        Ok(self.ack().await? && held)
    }

    /// Returns the message to the head of its queue. Returns false if this consumer no longer holds
    /// it.
    async fn requeue(self: Box<Self>) -> Result<bool>;

    /// Requeues the message without waiting, for use in a destructor.
    fn requeue_later(self: Box<Self>);
}

impl Delivery {
    /// Creates a delivery that `settle` settles; `count` is used only if the message is
    /// redelivered.
    pub fn new(message: Message, redelivered: bool, count: u64, settle: Box<dyn Settle>) -> Self {
        let earlier_deliveries = if redelivered { count } else { 0 };
        Self {
            message,
            earlier_deliveries,
            redelivered,
            death: None,
            oversized: None,
            settle: Some(settle),
        }
    }

    /// Sets the reason for which the broker moved the message here.
    #[must_use]
    pub fn moved_by_broker(mut self, reason: Option<String>) -> Self {
        self.death = reason;
        self
    }

    /// Sets the size of the dropped body.
    #[must_use]
    pub fn without_body(mut self, size: Option<u64>) -> Self {
        self.oversized = size;
        self
    }

    /// Acknowledges the message, which removes it from its queue.
    ///
    /// `Ok(false)` means that this consumer no longer held the message: the connection that
    /// delivered it is gone, and another consumer may have it now. The message was not
    /// acknowledged.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`](crate::Error::Lost) if the channel closes during the call.
    pub async fn ack(mut self) -> Result<bool> {
        match self.settle.take() {
            Some(settle) => settle.ack().await,
            None => Ok(false),
        }
    }

    /// Acknowledges several messages of one consumer, with one message to the broker if the backend
    /// can. The result is as for [`ack`](Self::ack): `Ok(false)` if one of them was no longer held.
    ///
    /// `batch` holds them in the order of delivery. It must hold every unsettled delivery of the
    /// consumer up to its last one: RabbitMQ acknowledges them all (`multiple` of `basic.ack`).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`](crate::Error::Lost) if the channel closes during the call.
    pub async fn ack_all(batch: Vec<Self>) -> Result<bool> {
        let mut earlier: Vec<_> =
            batch.into_iter().filter_map(|mut delivery| delivery.settle.take()).collect();
        match earlier.pop() {
            Some(last) => last.ack_all(earlier).await,
            None => Ok(true),
        }
    }

    /// Returns the message to the head of its queue.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`](crate::Error::Lost) if the channel is gone, which requeues the
    /// message too.
    pub async fn requeue(mut self) -> Result<bool> {
        match self.settle.take() {
            Some(settle) => settle.requeue().await,
            None => Ok(false),
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(settle) = self.settle.take() {
            settle.requeue_later();
        }
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("message", &self.message)
            .field("earlier_deliveries", &self.earlier_deliveries)
            .finish_non_exhaustive()
    }
}

/// Control of one subscription, implemented by a backend. Dropping it ends the subscription.
#[async_trait]
pub trait Subscription: Send + Sync {
    /// Stops new deliveries. Returns after those that were in transit have been handed out.
    async fn pause(&self) -> Result<()>;

    /// Resumes deliveries with this prefetch. Deliveries from before the pause do not count.
    async fn resume(&self, prefetch: u16) -> Result<()>;
}

/// Subscription to one queue.
pub struct Consumer {
    deliveries: mpsc::Receiver<Delivery>,
    /// Ends the subscription when dropped.
    subscription: Box<dyn Subscription>,
    prefetch: u16,
}

impl Consumer {
    /// Creates a consumer that receives from `deliveries`; dropping it ends `subscription`. The
    /// prefetch of the subscription is the capacity of `deliveries`.
    pub fn new(
        deliveries: mpsc::Receiver<Delivery>,
        subscription: impl Subscription + 'static,
    ) -> Self {
        let prefetch = u16::try_from(deliveries.max_capacity()).unwrap_or(u16::MAX);
        Self { deliveries, subscription: Box::new(subscription), prefetch }
    }

    /// Stops new deliveries. Deliveries already handed out stay valid on the same channel.
    ///
    /// After it returns, [`recv`](Self::recv) yields the deliveries that were in transit, and then
    /// waits for [`resume`](Self::resume).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`](crate::Error::Lost) if the channel is gone.
    pub async fn pause(&self) -> Result<()> {
        self.subscription.pause().await
    }

    /// Resumes deliveries. Deliveries from before the pause do not count towards the prefetch.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`](crate::Error::Lost) if the channel is gone, and
    /// [`Error::NoQueue`](crate::Error) if the queue is gone.
    pub async fn resume(&self) -> Result<()> {
        self.resume_with(self.prefetch).await
    }

    /// Resumes deliveries with another prefetch, of at least 1 and at most that of the
    /// subscription. Deliveries from before the pause do not count towards it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`resume`](Self::resume).
    pub async fn resume_with(&self, prefetch: u16) -> Result<()> {
        self.subscription.resume(prefetch.clamp(1, self.prefetch)).await
    }

    /// Waits for the next message; returns `None` after the end of the subscription or the
    /// connection.
    ///
    /// Cancel safe: no message is lost in a `select!`.
    pub async fn recv(&mut self) -> Option<Delivery> {
        self.deliveries.recv().await
    }

    /// Returns the next message if one has already arrived.
    pub fn try_recv(&mut self) -> Option<Delivery> {
        self.deliveries.try_recv().ok()
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}
