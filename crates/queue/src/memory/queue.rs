//! Queue with its waiting messages, unsettled messages and consumers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nsbridge_protocol::topology::{self, header};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::peer::Peer;
use crate::delivery::{Delivery, Settle};
use crate::message;
use crate::message::{Header, Message};

/// Queue arguments, as RabbitMQ would receive them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) max_bytes: Option<u64>,
    /// True if a full queue drops its oldest messages; false if it refuses new ones.
    pub(super) drops_head: bool,
    /// Maximum number of waiting messages. Beyond it, the oldest are dropped.
    pub(super) max_length: Option<usize>,
    /// Maximum time that a message may wait.
    pub(super) ttl: Option<Duration>,
    /// Queue for messages that expire or exceed the delivery limit.
    pub(super) dead_letter_to: Option<String>,
    pub(super) delivery_limit: Option<u32>,
    /// Time that the queue outlives its last consumer.
    pub(super) lease: Option<Duration>,
    /// True if deliveries are counted, as in RabbitMQ's quorum queues; classic queues do not count.
    pub(super) counts: bool,
    /// Only connection that may consume.
    pub(super) owner: Option<u64>,
}

/// Message in a queue.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) message: Message,
    /// Reason for which the broker moved the message here from another queue.
    pub(super) death: Option<&'static str>,
    expires: Option<Instant>,
    /// Number of requeues.
    count: u32,
    redelivered: bool,
}

/// Message to be moved to another queue.
#[derive(Debug)]
pub(super) struct DeadLetter {
    pub(super) to: Option<String>,
    pub(super) message: Message,
    pub(super) reason: &'static str,
}

/// Consumer of a queue. It is dropped without the broker's lock: a delivery that was handed out while
/// its receiver was dropped stays in the channel, and its destructor takes that lock.
#[derive(Debug)]
pub(super) struct Subscriber {
    id: u64,
    connection: u64,
    peer: Weak<dyn Peer>,
    deliveries: mpsc::Sender<Delivery>,
    prefetch: usize,
    unsettled: usize,
    paused: bool,
}

#[derive(Debug)]
struct Unsettled {
    subscriber: u64,
    connection: u64,
    held: Held,
}

/// Queue and its consumers.
#[derive(Debug, Default)]
pub(super) struct Queue {
    name: String,
    pub(super) arguments: Arguments,
    /// Requeued messages, which go ahead of all others.
    returned: VecDeque<Held>,
    ready: VecDeque<Held>,
    ready_bytes: u64,
    unsettled: BTreeMap<u64, Unsettled>,
    subscribers: VecDeque<Subscriber>,
    /// Removed consumers, which have not been dropped.
    gone: Vec<Subscriber>,
    /// Time at which the queue is deleted if it has no consumer until then.
    pub(super) ends: Option<Instant>,
    next_tag: u64,
}

impl Queue {
    pub(super) fn new(name: &str, arguments: Arguments) -> Self {
        let mut queue = Self { name: name.to_owned(), arguments, ..Self::default() };
        queue.renew_lease();
        queue
    }

    /// Restarts the lease if there is one and the queue has no consumer.
    pub(super) fn renew_lease(&mut self) {
        let lease = self.arguments.lease.filter(|_| self.subscribers.is_empty());
        self.ends = lease.map(|lease| Instant::now() + lease);
    }

    pub(super) fn waiting(&self) -> usize {
        self.returned.len() + self.ready.len()
    }

    pub(super) fn consumers(&self) -> usize {
        self.subscribers.len()
    }

    /// Returns true if the message fits. An empty queue accepts a message larger than the limit.
    pub(super) fn has_room_for(&self, bytes: u64) -> bool {
        let limit = self.arguments.max_bytes.unwrap_or(u64::MAX);
        self.arguments.drops_head
            || self.ready_bytes == 0
            || self.ready_bytes.saturating_add(bytes) <= limit
    }

    /// Returns the next time at which the head or the queue itself expires.
    pub(super) fn alarm(&self) -> Option<Instant> {
        let head = self.head().and_then(|held| held.expires);
        [head, self.ends].into_iter().flatten().min()
    }

    fn head(&self) -> Option<&Held> {
        self.returned.front().or_else(|| self.ready.front())
    }

    /// Appends a message at the tail.
    pub(super) fn push(&mut self, message: Message, death: Option<&'static str>) {
        let ttl = [self.arguments.ttl, message.properties.expiration];
        let expires = ttl.into_iter().flatten().min().map(|ttl| Instant::now() + ttl);
        self.ready_bytes += size(&message);
        self.ready.push_back(Held { message, death, expires, count: 0, redelivered: false });
        while self.arguments.max_length.is_some_and(|most| self.waiting() > most) {
            drop(self.pop());
        }
        let most = self.arguments.max_bytes.filter(|_| self.arguments.drops_head);
        while most.is_some_and(|most| self.ready_bytes > most) && self.pop().is_some() {}
    }

    pub(super) fn subscribe(
        &mut self,
        id: u64,
        peer: &Arc<dyn Peer>,
        deliveries: mpsc::Sender<Delivery>,
        prefetch: usize,
    ) {
        let (connection, peer) = (peer.id(), Arc::downgrade(peer));
        let subscriber =
            Subscriber { id, connection, peer, deliveries, prefetch, unsettled: 0, paused: false };
        self.subscribers.push_back(subscriber);
        self.ends = None;
    }

    pub(super) fn unsubscribe(&mut self, id: u64) {
        self.remove(|subscriber| subscriber.id == id);
        self.renew_lease();
    }

    fn remove(&mut self, goes: impl Fn(&Subscriber) -> bool) {
        let all = std::mem::take(&mut self.subscribers);
        let (gone, stay): (Vec<_>, Vec<_>) = all.into_iter().partition(goes);
        self.subscribers = stay.into();
        self.gone.extend(gone);
    }

    /// Takes the consumers that were removed.
    pub(super) fn take_gone(&mut self) -> Vec<Subscriber> {
        std::mem::take(&mut self.gone)
    }

    /// Ends the queue, and returns its consumers.
    pub(super) fn end(mut self) -> Vec<Subscriber> {
        self.gone.extend(self.subscribers);
        self.gone
    }

    /// Pauses the deliveries of a consumer.
    pub(super) fn pause(&mut self, id: u64) {
        for subscriber in self.subscribers.iter_mut().filter(|subscriber| subscriber.id == id) {
            subscriber.paused = true;
        }
    }

    /// Resumes the deliveries of a paused consumer under the number `next`, with this prefetch.
    /// Its unsettled deliveries of before do not count. Returns false if it was not paused.
    pub(super) fn resume(&mut self, id: u64, next: u64, prefetch: usize) -> bool {
        let paused = |subscriber: &&mut Subscriber| subscriber.id == id && subscriber.paused;
        let Some(subscriber) = self.subscribers.iter_mut().find(paused) else { return false };
        (subscriber.id, subscriber.prefetch) = (next, prefetch);
        (subscriber.unsettled, subscriber.paused) = (0, false);
        true
    }

    /// Removes the first waiting message.
    pub(super) fn take_one(&mut self) {
        drop(self.pop());
    }

    /// Removes an unsettled message; returns false if this tag is no longer unsettled.
    pub(super) fn ack(&mut self, tag: u64) -> bool {
        self.take_back(tag).is_some()
    }

    /// Returns an unsettled message to the head of the queue, and counts the delivery.
    pub(super) fn requeue(&mut self, tag: u64, dead: &mut Vec<DeadLetter>) -> bool {
        let Some(held) = self.take_back(tag) else { return false };
        self.put_back(held, dead);
        true
    }

    /// Requeues all unsettled messages of a connection, in the order of their delivery.
    pub(super) fn disconnect(&mut self, connection: u64, dead: &mut Vec<DeadLetter>) {
        let theirs = |unsettled: &Unsettled| unsettled.connection == connection;
        let tags: Vec<u64> =
            self.unsettled.iter().filter(|(_, held)| theirs(held)).map(|(tag, _)| *tag).collect();
        let before = self.subscribers.len();
        self.remove(|subscriber| subscriber.connection == connection);
        if self.subscribers.len() < before {
            self.renew_lease();
        }
        for tag in tags {
            self.requeue(tag, dead);
        }
    }

    /// Expires messages at the head, and hands out as many others as possible.
    pub(super) fn advance(&mut self, dead: &mut Vec<DeadLetter>) {
        self.expire_head(dead);
        while let Some(subscriber) = self.next_subscriber() {
            let Some(held) = self.pop() else {
                self.subscribers.push_front(subscriber);
                break;
            };
            self.hand_out(subscriber, held);
            self.expire_head(dead);
        }
    }

    /// Expires messages at the head only, as RabbitMQ does; messages behind the head expire when
    /// they reach it.
    fn expire_head(&mut self, dead: &mut Vec<DeadLetter>) {
        let now = Instant::now();
        let is_over = |held: &Held| held.expires.is_some_and(|expires| expires <= now);
        while self.head().is_some_and(is_over) {
            if let Some(held) = self.pop() {
                dead.push(self.dead_letter(held.message, "expired"));
            }
        }
    }

    fn pop(&mut self) -> Option<Held> {
        let held = self.returned.pop_front().or_else(|| self.ready.pop_front())?;
        self.ready_bytes = self.ready_bytes.saturating_sub(size(&held.message));
        Some(held)
    }

    /// Removes and returns the next consumer in turn that may receive another message.
    fn next_subscriber(&mut self) -> Option<Subscriber> {
        let can_take = |subscriber: &Subscriber| {
            subscriber.unsettled < subscriber.prefetch
                && !subscriber.paused
                && !subscriber.deliveries.is_closed()
        };
        let place = self.subscribers.iter().position(can_take)?;
        self.subscribers.remove(place)
    }

    fn hand_out(&mut self, mut subscriber: Subscriber, held: Held) {
        let Some(peer) = subscriber.peer.upgrade() else {
            self.ready_bytes += size(&held.message);
            return self.returned.push_front(held);
        };
        self.next_tag += 1;
        let tag = self.next_tag;
        let delivery = self.delivery(&held, peer.clone().settle(&self.name, tag));
        let (id, connection) = (subscriber.id, peer.id());
        self.unsettled.insert(tag, Unsettled { subscriber: id, connection, held });
        subscriber.unsettled += 1;
        // A consumer that is dropped at this moment requeues the delivery in its destructor, which
        // takes the lock that is held here. The delivery must therefore be dropped later.
        if let Err(refused) = subscriber.deliveries.try_send(delivery) {
            peer.drop_later(refused.into_inner());
        }
        self.subscribers.push_back(subscriber);
    }

    fn delivery(&self, held: &Held, settle: Box<dyn Settle>) -> Delivery {
        let limit = topology::largest_body(&self.name) as u64;
        let dropped = Some(size(&held.message)).filter(|size| *size > limit);
        let mut message = match dropped {
            None => held.message.clone(),
            Some(_) => Message { body: Vec::new(), properties: held.message.properties.clone() },
        };
        // RabbitMQ 4 shows a publisher's own header until its own count is above 0.
        let shown = if held.count > 0 && self.arguments.counts {
            u64::from(held.count)
        } else {
            spoofed_count(&message)
        };
        message.properties.headers.retain(|name, _| !message::is_brokers(name));
        let count = if self.arguments.counts { shown } else { 0 };
        Delivery::new(message, held.redelivered, count, settle)
            .moved_by_broker(held.death.map(str::to_owned))
            .without_body(dropped)
    }

    fn take_back(&mut self, tag: u64) -> Option<Held> {
        let unsettled = self.unsettled.remove(&tag)?;
        let holder = |subscriber: &&mut Subscriber| subscriber.id == unsettled.subscriber;
        if let Some(subscriber) = self.subscribers.iter_mut().find(holder) {
            subscriber.unsettled -= 1;
        }
        Some(unsettled.held)
    }

    fn put_back(&mut self, mut held: Held, dead: &mut Vec<DeadLetter>) {
        held.redelivered = true;
        held.count += 1;
        if self.arguments.delivery_limit.is_some_and(|limit| held.count > limit) {
            dead.push(self.dead_letter(held.message, "delivery_limit"));
            return;
        }
        self.ready_bytes += size(&held.message);
        self.returned.push_back(held);
    }

    /// Creates a dead letter without expiration, as RabbitMQ does; otherwise it would expire again
    /// at once.
    fn dead_letter(&self, mut message: Message, reason: &'static str) -> DeadLetter {
        message.properties.expiration = None;
        DeadLetter { to: self.arguments.dead_letter_to.clone(), message, reason }
    }
}

fn size(message: &Message) -> u64 {
    message.body.len() as u64
}

fn spoofed_count(message: &Message) -> u64 {
    match message.properties.headers.get(header::DELIVERY_COUNT) {
        Some(Header::Int(count)) => u64::try_from(*count).unwrap_or(0),
        _ => 0,
    }
}
