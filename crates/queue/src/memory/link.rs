//! Connection to the memory broker, and everything that ends with it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use nsbridge_protocol::{ModelName, Revision};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::Shared;
use super::peer::Peer;
use super::queue::Queue;
use crate::delivery::{Consumer, Delivery, Settle, Subscription};
use crate::error::{Error, Result};
use crate::message::Message;
use crate::{Confirm, Confirmation, Connection, Depth, Publisher};

/// Connection that lives as long as any object created from it, as over AMQP.
pub(super) struct Link {
    shared: Arc<Shared>,
    id: u64,
    name: String,
    /// Reason for the end of the connection; `None` while it lives.
    ended: watch::Sender<Option<String>>,
    /// Deliveries that could not be handed over, to be dropped without the broker's lock.
    undeliverable: Mutex<Vec<Delivery>>,
}

impl Link {
    pub(super) fn open(shared: &Arc<Shared>, name: &str) -> Arc<Self> {
        let (ended, _) = watch::channel(None);
        let id = shared.state.lock().next_id();
        let link = Arc::new(Self {
            shared: Arc::clone(shared),
            id,
            name: name.to_owned(),
            ended,
            undeliverable: Mutex::default(),
        });
        shared.links.lock().insert(id, Arc::downgrade(&link));
        link
    }

    #[cfg(feature = "testing")]
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn end(&self, reason: &str) {
        let first = self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert_with(|| reason.to_owned());
            first
        });
        if first {
            self.shared.links.lock().remove(&self.id);
            self.shared.change(|state| state.disconnect(self.id));
        }
    }

    pub(super) fn ended(&self) -> watch::Receiver<Option<String>> {
        self.ended.subscribe()
    }

    /// Waits for the simulated latency of a call. Returns an error if the connection has ended by
    /// then.
    async fn arrive(&self) -> Result<()> {
        self.shared.arrival().await;
        self.check()
    }

    fn check(&self) -> Result<()> {
        match &*self.ended.borrow() {
            Some(reason) => Err(Error::Lost { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Drops deliveries that could not be handed over, which requeues them.
    fn clear(&self) {
        let undeliverable = std::mem::take(&mut *self.undeliverable.lock());
        drop(undeliverable);
    }
}

impl Peer for Link {
    fn id(&self) -> u64 {
        self.id
    }

    fn settle(self: Arc<Self>, queue: &str, tag: u64) -> Box<dyn Settle> {
        Box::new(Tag { link: self, queue: queue.to_owned(), tag })
    }

    fn drop_later(&self, delivery: Delivery) {
        self.undeliverable.lock().push(delivery);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end("it was dropped");
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Handle of a connection for its users.
#[derive(Debug)]
pub(super) struct MemoryConnection(pub(super) Arc<Link>);

impl MemoryConnection {
    async fn subscribe(&self, queue: &str, prefetch: u16, flows: bool) -> Result<Consumer> {
        self.0.arrive().await?;
        let prefetch = usize::from(prefetch.max(1));
        let (sender, receiver) = mpsc::channel(prefetch);
        let peer: Arc<dyn Peer> = self.0.clone();
        let id = self.0.shared.change(|state| {
            let id = state.next_id();
            let subscribed = state.queue_for(queue, self.0.id)?;
            subscribed.subscribe(id, &peer, sender, prefetch);
            if !flows {
                subscribed.pause(id);
            }
            state.with(queue, |_, _| ());
            Ok(id)
        })?;
        let link = Arc::clone(&self.0);
        let id = AtomicU64::new(id);
        Ok(Consumer::new(receiver, Subscribed { link, queue: queue.to_owned(), id }))
    }
}

#[async_trait]
impl Connection for MemoryConnection {
    async fn declare_model(&self, model: &ModelName) -> Result<()> {
        self.0.arrive().await?;
        self.0.shared.change(|state| state.declare_model(model))
    }

    async fn declare_reply_queue(&self, queue: &str) -> Result<()> {
        self.0.arrive().await?;
        self.0.shared.change(|state| state.declare_reply_queue(queue))
    }

    async fn declare_control_queue(
        &self,
        queue: &str,
        model: &ModelName,
        revision: Option<&Revision>,
    ) -> Result<()> {
        self.0.arrive().await?;
        let owner = self.0.id;
        self.0.shared.change(|state| state.declare_control_queue(queue, model, revision, owner))
    }

    async fn lock(&self, name: &str) -> Result<bool> {
        self.0.arrive().await?;
        let owner = self.0.id;
        Ok(self.0.shared.change(|state| state.lock(name, owner)))
    }

    async fn declare_run_record(&self, queue: &str) -> Result<u32> {
        self.0.arrive().await?;
        self.0.shared.change(|state| state.declare_run_record(queue))
    }

    async fn strike_run_record(&self, queue: &str) -> Result<()> {
        self.0.arrive().await?;
        self.0.shared.change(|state| state.strike_run_record(queue));
        Ok(())
    }

    async fn delete_run_record(&self, queue: &str) -> Result<()> {
        self.0.arrive().await?;
        self.0.shared.change(|state| state.delete(queue));
        Ok(())
    }

    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Consumer> {
        self.subscribe(queue, prefetch, true).await
    }

    async fn consume_paused(&self, queue: &str, prefetch: u16) -> Result<Consumer> {
        self.subscribe(queue, prefetch, false).await
    }

    async fn publisher(&self) -> Result<Box<dyn Publisher>> {
        self.0.arrive().await?;
        let (closed, _) = watch::channel(false);
        let strandings = self.0.shared.strandings();
        Ok(Box::new(MemoryPublisher { link: Arc::clone(&self.0), strandings, closed }))
    }

    async fn depth(&self, queue: &str) -> Result<Depth> {
        self.0.arrive().await?;
        self.0.shared.change(|state| state.depth(queue, self.0.id))
    }

    fn is_blocked(&self) -> bool {
        self.0.shared.is_blocked()
    }

    async fn lost(&self) -> Error {
        let mut ended = self.0.ended();
        let reason = match ended.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => String::new(),
        };
        Error::Lost { reason }
    }

    async fn close(&self) {
        self.0.end("we closed it");
    }
}

struct Subscribed {
    link: Arc<Link>,
    queue: String,
    /// Number of the consumer. As over AMQP, a resume starts another consumer.
    id: AtomicU64,
}

impl Subscribed {
    fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Subscription for Subscribed {
    async fn pause(&self) -> Result<()> {
        self.link.check()?;
        let (shared, id) = (&self.link.shared, self.id());
        shared.change(|state| state.with(&self.queue, |queue, _| queue.pause(id)));
        Ok(())
    }

    async fn resume(&self, prefetch: u16) -> Result<()> {
        let (shared, id) = (&self.link.shared, self.id());
        shared.change(|state| state.queue_for(&self.queue, self.link.id).map(drop))?;
        self.link.check()?;
        shared.change(|state| {
            let next = state.next_id();
            let resume = |queue: &mut Queue, _: &mut _| queue.resume(id, next, prefetch.into());
            if state.with(&self.queue, resume) {
                self.id.store(next, Ordering::Relaxed);
            }
        });
        Ok(())
    }
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        let id = self.id();
        let ends = |state: &mut super::state::State| {
            state.with(&self.queue, |queue, _| queue.unsubscribe(id));
        };
        self.link.shared.change(ends);
        self.link.clear();
    }
}

/// Delivery tag.
struct Tag {
    link: Arc<Link>,
    queue: String,
    tag: u64,
}

impl Tag {
    fn put_back(&self) -> bool {
        let tag = self.tag;
        let shared = &self.link.shared;
        shared.change(|state| state.with(&self.queue, |queue, dead| queue.requeue(tag, dead)))
    }
}

#[async_trait]
impl Settle for Tag {
    async fn ack(self: Box<Self>) -> Result<bool> {
        let tag = self.tag;
        let shared = &self.link.shared;
        Ok(shared.change(|state| state.with(&self.queue, |queue, _| queue.ack(tag))))
    }

    async fn requeue(self: Box<Self>) -> Result<bool> {
        Ok(self.put_back())
    }

    fn requeue_later(self: Box<Self>) {
        self.put_back();
    }
}

/// Channel for publishing.
#[derive(Debug)]
struct MemoryPublisher {
    link: Arc<Link>,
    /// Number of strandings at its opening.
    strandings: u64,
    /// True once the channel is closed. Publishing to a missing exchange closes it, as in AMQP.
    closed: watch::Sender<bool>,
}

#[async_trait]
impl Publisher for MemoryPublisher {
    async fn publish(&self, exchange: &str, key: &str, message: Message) -> Result<Confirm> {
        let mut ended = self.link.ended();
        tokio::select! {
            biased;
            _ = ended.wait_for(Option::is_some) => {}
            () = self.link.shared.unblocked() => {}
        }
        self.link.arrive().await?;
        if *self.closed.borrow() {
            return Err(no_exchange());
        }
        if exchange.is_empty() && self.is_stale() {
            return Ok(Box::pin(std::future::ready(Ok(Confirmation::Nack))));
        }
        let routed = self.link.shared.change(|state| state.publish(exchange, key, message));
        let confirmed: Result<Confirmation> = routed.ok_or_else(|| {
            self.closed.send_replace(true);
            no_exchange()
        });
        Ok(Box::pin(std::future::ready(confirmed)))
    }

    fn is_stale(&self) -> bool {
        self.link.shared.strandings() > self.strandings
    }
}

fn no_exchange() -> Error {
    Error::Lost { reason: "the channel was closed: there is no such exchange".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::memory::MemoryBroker;

    /// A delivery that is handed out while its receiver is dropped stays in the channel: tokio drops
    /// it with the last sender, which is the queue's.
    #[tokio::test]
    async fn a_delivery_that_its_consumer_has_not_seen_is_requeued_without_the_brokers_lock() {
        for by_disconnect in [false, true] {
            let shared = Arc::clone(&MemoryBroker::new().shared);
            let link = Link::open(&shared, "worker");
            let connection = MemoryConnection(Arc::clone(&link));
            connection.declare_model(&"m".parse().unwrap()).await.unwrap();
            let publisher = connection.publisher().await.unwrap();
            let confirm = publisher.publish("", "nsbridge.m", Message::new(vec![1])).await;
            confirm.unwrap().await.unwrap();
            let (sender, receiver) = mpsc::channel(2);
            let permit = sender.clone().reserve_owned().await.unwrap();
            let peer: Arc<dyn Peer> = link.clone();
            let id = shared.change(|state| {
                let id = state.next_id();
                state.with("nsbridge.m", |queue, _| queue.subscribe(id, &peer, sender, 2));
                id
            });
            let mut receiver = receiver;
            let delivery = receiver.recv().await.unwrap();
            drop(receiver);
            permit.send(delivery);
            let queue = "nsbridge.m".to_owned();
            let subscribed = Subscribed { link: Arc::clone(&link), queue, id: AtomicU64::new(id) };
            let (told, ended) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                if by_disconnect {
                    link.end("it was closed");
                }
                drop(subscribed);
                told.send(()).unwrap();
            });
            ended.recv_timeout(Duration::from_secs(10)).expect("the lock is free");
            let waiting = shared.change(|state| state.depth("nsbridge.m", 0)).unwrap().messages;
            assert_eq!(waiting, 1);
        }
    }
}
