//! Messages on their way in.

use std::fmt;

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::{Message, Result};

/// A message handed out by the broker, to be settled exactly once.
///
/// Dropping it unsettled requeues it.
pub struct Delivery {
    /// The message.
    pub message: Message,
    /// How often it was delivered before, by the broker's own count. On a first delivery this is
    /// 0 whatever a publisher wrote into the headers.
    pub deliveries: u64,
    /// Whether the broker says that it was delivered before.
    pub redelivered: bool,
    /// Why the broker itself moved it here from another queue, in the broker's words: `expired` or
    /// `delivery_limit`, for example. A publisher can write that too, so it is only a hint.
    pub death: Option<String>,
    /// The size of the body, if it was larger than a message of this queue may be
    /// ([`largest_body`](nsbridge_protocol::topology::largest_body)). It was dropped as it came, and
    /// the message has none.
    pub oversized: Option<u64>,
    settle: Option<Box<dyn Settle>>,
}

/// How a backend settles one delivery.
#[async_trait]
pub trait Settle: Send + Sync {
    /// Removes the message from its queue. `false` if it is no longer this consumer's to remove.
    async fn ack(self: Box<Self>) -> Result<bool>;

    /// Puts the message back at the head of its queue. `false` if it is no longer this consumer's.
    async fn requeue(self: Box<Self>) -> Result<bool>;

    /// The same, from a destructor.
    fn requeue_later(self: Box<Self>);
}

impl Delivery {
    /// A delivery that `settle` settles.
    pub fn new(message: Message, redelivered: bool, count: u64, settle: Box<dyn Settle>) -> Self {
        let deliveries = if redelivered { count } else { 0 };
        Self {
            message,
            deliveries,
            redelivered,
            death: None,
            oversized: None,
            settle: Some(settle),
        }
    }

    /// The same, which the broker moved here for this reason.
    #[must_use]
    pub fn moved_by_broker(mut self, reason: Option<String>) -> Self {
        self.death = reason;
        self
    }

    /// The same, whose body had this size and was dropped.
    #[must_use]
    pub fn without_body(mut self, size: Option<u64>) -> Self {
        self.oversized = size;
        self
    }

    /// Tells the broker that the message is done with.
    ///
    /// `Ok(false)` means that it was not ours any more: the connection it came on is gone and
    /// somebody else has it now. That is not success.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if the channel went away in between.
    pub async fn ack(mut self) -> Result<bool> {
        match self.settle.take() {
            Some(settle) => settle.ack().await,
            None => Ok(false),
        }
    }

    /// Gives the message back, to the head of its queue.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if the channel is gone, which has the same effect.
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
            .field("deliveries", &self.deliveries)
            .finish_non_exhaustive()
    }
}

/// How a backend controls one subscription. Dropping it ends the subscription.
#[async_trait]
pub trait Subscription: Send + Sync {
    /// Stops new deliveries. Once it returns, all that were on their way have been handed out.
    async fn pause(&self) -> Result<()>;

    /// Lets deliveries come again.
    async fn resume(&self) -> Result<()>;
}

/// A subscription to one queue.
pub struct Consumer {
    deliveries: mpsc::Receiver<Delivery>,
    /// Ends the subscription when dropped.
    subscription: Box<dyn Subscription>,
}

impl Consumer {
    /// A consumer fed through `deliveries`; `subscription` is dropped with it, and cancels then.
    pub fn new(
        deliveries: mpsc::Receiver<Delivery>,
        subscription: impl Subscription + 'static,
    ) -> Self {
        Self { deliveries, subscription: Box::new(subscription) }
    }

    /// Stops new deliveries; those that were handed out stay this consumer's, on the same channel.
    ///
    /// Once it returns, [`recv`](Self::recv) gives what was on its way, and then waits for
    /// [`resume`](Self::resume).
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if the channel is gone.
    pub async fn pause(&self) -> Result<()> {
        self.subscription.pause().await
    }

    /// Lets deliveries come again.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if the channel is gone, [`Error::NoQueue`](crate::Error)
    /// if the queue is.
    pub async fn resume(&self) -> Result<()> {
        self.subscription.resume().await
    }

    /// The next message; `None` once the subscription is over, which includes a lost connection.
    ///
    /// Cancel safe: a message is never lost in a `select!`.
    pub async fn recv(&mut self) -> Option<Delivery> {
        self.deliveries.recv().await
    }

    /// The next message, if one has come already.
    pub fn try_recv(&mut self) -> Option<Delivery> {
        self.deliveries.try_recv().ok()
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}
