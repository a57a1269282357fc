//! Deliveries from a subscription, and their settling.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{Acker, Channel};
use tokio::sync::mpsc;

use super::connection::{Life, Settings};
use super::io::Io;
use super::{convert, fault};
use crate::{Consumer, Delivery, Result, Settle};

/// Subscribes to `queue` on `channel`.
///
/// AMQP's prefetch of 0 means "without limit", which nobody here wants: it is taken as 1.
pub(super) async fn subscribe(
    settings: &Settings,
    life: Life,
    channel: Channel,
    queue: &str,
    prefetch: u16,
) -> Result<Consumer> {
    let prefetch = prefetch.max(1);
    let limited = channel.basic_qos(prefetch, BasicQosOptions::default()).await;
    limited.map_err(|error| fault::lost(&error))?;
    let stream = channel.basic_consume(
        fault::name(queue)?,
        ShortString::default(),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    );
    let stream = stream.await.map_err(|error| fault::using(queue, &error))?;
    let (sender, receiver) = mpsc::channel(prefetch.into());
    let subscription = Subscription {
        channel,
        life,
        counts_acquired: settings.counts_acquired,
        io: Arc::clone(&settings.io),
    };
    settings.io.spawn(forward(stream, subscription, sender));
    Ok(Consumer::new(receiver, ()))
}

/// What keeps a channel open: the subscription, and every delivery that is not settled.
#[derive(Clone)]
struct Subscription {
    channel: Channel,
    life: Life,
    counts_acquired: bool,
    io: Arc<Io>,
}

/// Hands deliveries on until the consumer is dropped or the channel is gone.
///
/// What was sent ahead and not handed out goes back: a delivery requeues itself when dropped.
async fn forward(
    mut stream: lapin::Consumer,
    subscription: Subscription,
    sender: mpsc::Sender<Delivery>,
) {
    loop {
        let next = tokio::select! {
            biased;
            () = sender.closed() => break,
            next = stream.next() => next,
            _ = subscription.life.ended() => return,
        };
        let Some(Ok(message)) = next else { return };
        if sender.send(subscription.delivery(message)).await.is_err() {
            break;
        }
    }
    let cancelling = subscription.channel.basic_cancel(stream.tag(), BasicCancelOptions::default());
    let given_back = async {
        if cancelling.await.is_ok() {
            while let Some(Ok(message)) = stream.next().await {
                drop(subscription.delivery(message));
            }
        }
        Ok(())
    };
    drop(subscription.life.during(given_back).await);
}

impl Subscription {
    fn delivery(&self, message: lapin::message::Delivery) -> Delivery {
        let count = convert::deliveries(&message.properties, self.counts_acquired);
        let death = convert::death(&message.properties);
        let incoming = convert::incoming(message.data, &message.properties);
        let tag =
            Tag { tag: message.delivery_tag, acker: message.acker, subscription: self.clone() };
        Delivery::new(incoming, message.redelivered, count, Box::new(tag)).moved_by_broker(death)
    }
}

/// A delivery tag. It is valid on its own channel only, and never again after that is gone.
struct Tag {
    tag: u64,
    acker: Acker,
    subscription: Subscription,
}

impl Tag {
    /// Straight to the channel: lapin's own acker takes two more hops between its tasks.
    async fn nack(&self) -> Result<bool> {
        if !self.acker.usable() {
            return Ok(false);
        }
        let options = BasicNackOptions { requeue: true, multiple: false };
        let settled = self.subscription.channel.basic_nack(self.tag, options);
        let settled = async { settled.await.map(|()| true).map_err(|error| fault::lost(&error)) };
        self.subscription.life.during(settled).await
    }
}

#[async_trait]
impl Settle for Tag {
    async fn ack(self: Box<Self>) -> Result<bool> {
        if !self.acker.usable() {
            return Ok(false);
        }
        let options = BasicAckOptions { multiple: false };
        let settled = self.subscription.channel.basic_ack(self.tag, options);
        let settled = async { settled.await.map(|()| true).map_err(|error| fault::lost(&error)) };
        self.subscription.life.during(settled).await
    }

    async fn requeue(self: Box<Self>) -> Result<bool> {
        self.nack().await
    }

    fn requeue_later(self: Box<Self>) {
        if !self.acker.usable() {
            return;
        }
        let io = Arc::clone(&self.subscription.io);
        io.spawn(async move {
            if let Err(error) = self.nack().await {
                tracing::debug!(%error, "a delivery went back with its channel");
            }
        });
    }
}
