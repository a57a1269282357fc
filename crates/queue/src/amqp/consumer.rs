//! Deliveries of a subscription and their settlement.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{Acker, Channel};
use nsbridge_protocol::topology;
use tokio::sync::{mpsc, oneshot};

use super::frame_filter::Bodies;
use super::io::Io;
use super::lifetime::{Life, Settings};
use super::{convert, fault};
use crate::delivery::{Consumer, Delivery, Settle, Subscription};
use crate::error::{Error, Result};

/// Subscribes to `queue` on `channel`, paused unless it `flows`.
///
/// A prefetch of 0, which means "no limit" in AMQP, is treated as 1.
pub(super) async fn subscribe(
    settings: &Settings,
    life: Life,
    channel: Channel,
    queue: &str,
    prefetch: u16,
    flows: bool,
) -> Result<Consumer> {
    let prefetch = prefetch.max(1);
    let bodies = Arc::clone(&settings.bodies);
    bodies.limit(channel.id(), topology::largest_body(queue) as u64);
    let stream = if flows { Some(consume(&channel, queue, prefetch).await?) } else { None };
    let (sender, receiver) = mpsc::channel(prefetch.into());
    let held = Held {
        channel,
        life: life.clone(),
        counts_acquired: settings.counts_acquired,
        bodies,
        io: Arc::clone(&settings.io),
    };
    let (orders, orders_come) = mpsc::channel(1);
    let (queue, poll) = (queue.to_owned(), settings.timing.channel_poll);
    let forward = Forward { queue, held, sender, orders: orders_come, poll };
    settings.io.spawn(forward.run(stream));
    Ok(Consumer::new(receiver, Control { orders, life }))
}

/// Starts a consumer with a prefetch of its own. The broker gives the channel's prefetch to each
/// consumer that starts after it was set.
async fn consume(channel: &Channel, queue: &str, prefetch: u16) -> Result<lapin::Consumer> {
    let limited = channel.basic_qos(prefetch, BasicQosOptions::default()).await;
    limited.map_err(|error| fault::lost(&error))?;
    let stream = channel.basic_consume(
        fault::name(queue)?,
        ShortString::default(),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    );
    stream.await.map_err(|error| fault::using(queue, &error))
}

/// Pauses and resumes the task that forwards deliveries.
struct Control {
    orders: mpsc::Sender<Order>,
    life: Life,
}

/// Request to start or stop the flow of deliveries, answered when it has taken effect.
struct Order {
    /// Prefetch of the flow; `None` stops it.
    flow: Option<u16>,
    done: oneshot::Sender<Result<()>>,
}

impl Control {
    async fn order(&self, flow: Option<u16>) -> Result<()> {
        let ended = || Error::Lost { reason: "the subscription has ended".to_owned() };
        let (done, answer) = oneshot::channel();
        let ordering = async {
            self.orders.send(Order { flow, done }).await.map_err(|_| ended())?;
            answer.await.unwrap_or_else(|_| Err(ended()))
        };
        self.life.during(ordering).await
    }
}

#[async_trait]
impl Subscription for Control {
    async fn pause(&self) -> Result<()> {
        self.order(None).await
    }

    async fn resume(&self, prefetch: u16) -> Result<()> {
        self.order(Some(prefetch)).await
    }
}

/// State that keeps a channel open: shared by the subscription and every unsettled delivery.
#[derive(Clone)]
struct Held {
    channel: Channel,
    life: Life,
    counts_acquired: bool,
    bodies: Arc<Bodies>,
    io: Arc<Io>,
}

/// Task that forwards deliveries until the consumer is dropped or the channel is gone.
struct Forward {
    queue: String,
    held: Held,
    sender: mpsc::Sender<Delivery>,
    orders: mpsc::Receiver<Order>,
    /// Polling interval of the channel while there is no stream.
    poll: Duration,
}

impl Forward {
    async fn run(mut self, mut stream: Option<lapin::Consumer>) {
        loop {
            tokio::select! {
                biased;
                () = self.sender.closed() => break,
                _ = self.held.life.ended() => return,
                Some(Order { flow, done }) = self.orders.recv() => {
                    // lapin may never complete a call if the connection dies during it.
                    let life = self.held.life.clone();
                    let changed = life.during(self.change(&mut stream, flow)).await;
                    let failed = changed.is_err();
                    let _ = done.send(changed);
                    if failed {
                        return;
                    }
                }
                () = closed(&self.held.channel, self.poll), if stream.is_none() => return,
                next = next(&mut stream) => {
                    let Some(Ok(message)) = next else { return };
                    if self.sender.send(self.held.delivery(message)).await.is_err() {
                        break;
                    }
                }
            }
        }
        // Deliveries that were prefetched but not handed out are requeued: a delivery requeues
        // itself when dropped.
        let given_back = self.cancel(&mut stream, drop);
        if self.held.life.during(given_back).await.is_ok() {
            self.held.bodies.forget(self.held.channel.id());
        }
    }

    async fn change(&self, stream: &mut Option<lapin::Consumer>, flow: Option<u16>) -> Result<()> {
        let Some(prefetch) = flow else {
            // `try_send` cannot fail for lack of space: the capacity of the channel is the
            // largest prefetch.
            return self.cancel(stream, |delivery| drop(self.sender.try_send(delivery))).await;
        };
        if stream.is_none() {
            *stream = Some(consume(&self.held.channel, &self.queue, prefetch).await?);
        }
        Ok(())
    }

    /// Cancels the consumer, and passes the deliveries that were in transit to `each`.
    async fn cancel(
        &self,
        stream: &mut Option<lapin::Consumer>,
        each: impl Fn(Delivery),
    ) -> Result<()> {
        let Some(mut ending) = stream.take() else { return Ok(()) };
        let options = BasicCancelOptions::default();
        let cancelled = self.held.channel.basic_cancel(ending.tag(), options).await;
        cancelled.map_err(|error| fault::lost(&error))?;
        while let Some(Ok(message)) = ending.next().await {
            each(self.held.delivery(message));
        }
        Ok(())
    }
}

/// Waits until a channel is closed. While there is a stream, the stream reports that.
async fn closed(channel: &Channel, poll: Duration) {
    while channel.status().connected() {
        tokio::time::sleep(poll).await;
    }
}

/// Waits for the next message. None arrives while the flow is paused.
async fn next(
    stream: &mut Option<lapin::Consumer>,
) -> Option<lapin::Result<lapin::message::Delivery>> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

impl Held {
    fn delivery(&self, message: lapin::message::Delivery) -> Delivery {
        let count = convert::deliveries(&message.properties, self.counts_acquired);
        let death = convert::death(&message.properties);
        let dropped = if message.data.is_empty() {
            self.bodies.take(self.channel.id(), message.delivery_tag)
        } else {
            None
        };
        let incoming = convert::incoming(message.data, &message.properties);
        let tag = Tag { tag: message.delivery_tag, acker: message.acker, held: self.clone() };
        Delivery::new(incoming, message.redelivered, count, Box::new(tag))
            .moved_by_broker(death)
            .without_body(dropped)
    }
}

/// Delivery tag, valid only on its own channel and for that channel's lifetime.
struct Tag {
    tag: u64,
    acker: Acker,
    held: Held,
}

impl Tag {
    async fn acknowledge(&self, options: BasicAckOptions) -> Result<bool> {
        if !self.acker.usable() {
            return Ok(false);
        }
        let settled = self.held.channel.basic_ack(self.tag, options);
        let settled = async { settled.await.map(|()| true).map_err(|error| fault::lost(&error)) };
        self.held.life.during(settled).await
    }

    /// Nacks through the channel directly, because lapin's own acker takes two more hops between
    /// tasks.
    async fn nack(&self) -> Result<bool> {
        if !self.acker.usable() {
            return Ok(false);
        }
        let options = BasicNackOptions { requeue: true, multiple: false };
        let settled = self.held.channel.basic_nack(self.tag, options);
        let settled = async { settled.await.map(|()| true).map_err(|error| fault::lost(&error)) };
        self.held.life.during(settled).await
    }
}

#[async_trait]
impl Settle for Tag {
    async fn ack(self: Box<Self>) -> Result<bool> {
        self.acknowledge(BasicAckOptions { multiple: false }).await
    }

    async fn ack_all(self: Box<Self>, earlier: Vec<Box<dyn Settle>>) -> Result<bool> {
        // The channel has no other consumer, so that the tags below this one are all `earlier`.
        drop(earlier);
        self.acknowledge(BasicAckOptions { multiple: true }).await
    }

    async fn requeue(self: Box<Self>) -> Result<bool> {
        self.nack().await
    }

    fn requeue_later(self: Box<Self>) {
        if !self.acker.usable() {
            return;
        }
        let io = Arc::clone(&self.held.io);
        io.spawn(async move {
            if let Err(error) = self.nack().await {
                tracing::debug!(%error, "a delivery went back with its channel");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use nsbridge_base::random::random;
    use nsbridge_protocol::topology::reply_queue;
    use tokio::sync::watch;
    use tokio::time::timeout;

    use super::super::topology::declare_reply_queue;
    use super::{Life, Settings, subscribe};
    use crate::amqp::AmqpBroker;
    use crate::amqp::frame_filter::Filter;
    use crate::timing::Timing;

    #[tokio::test]
    async fn a_paused_subscription_ends_with_its_channel() {
        let timing = Timing { channel_poll: Duration::from_millis(10), ..Timing::default() };
        let broker = AmqpBroker::new(&nsbridge_testkit::amqp_url()).unwrap().with_timing(timing);
        let Filter { connection, bodies, .. } = broker.open("paused").await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let queue = reply_queue(u128::from(random()));
        declare_reply_queue(&channel, &queue, &broker.limits).await.unwrap();

        let io = Arc::clone(&broker.io);
        let (limits, timing) = (broker.limits, broker.timing.clone());
        let settings = Settings { bodies, limits, timing, counts_acquired: false, io };
        let (_lives, ended) = watch::channel(None);
        let life = Life::new(ended);
        let paused = subscribe(&settings, life, channel.clone(), &queue, 1, false).await;
        channel.close(200, "closed by a test".into()).await.unwrap();
        let ended = timeout(Duration::from_secs(10), paused.unwrap().recv()).await;
        assert!(ended.expect("the subscription goes on").is_none());
    }
}
