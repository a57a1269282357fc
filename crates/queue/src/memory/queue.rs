//! One queue: what waits, what is handed out, and who takes it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nsbridge_protocol::topology::{self, header};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::peer::Peer;
use crate::{Delivery, Header, Message, Settle, message};

/// What a queue is declared with: the arguments that RabbitMQ would get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) max_bytes: Option<u64>,
    /// Whether the oldest messages make room where there is none; else publishers are refused.
    pub(super) drops_head: bool,
    /// The most messages that may wait; older ones make room.
    pub(super) max_length: Option<usize>,
    /// How long a message may wait.
    pub(super) ttl: Option<Duration>,
    /// Where a message goes that expires or is delivered too often.
    pub(super) dead_letter_to: Option<String>,
    pub(super) delivery_limit: Option<u32>,
    /// How long the queue outlives its last consumer.
    pub(super) lease: Option<Duration>,
    /// Whether deliveries are counted: RabbitMQ's quorum queues do, its classic ones do not.
    pub(super) counts: bool,
    /// The only connection that may consume.
    pub(super) owner: Option<u64>,
}

/// A message in a queue.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) message: Message,
    /// Why the broker moved it here from another queue.
    pub(super) death: Option<&'static str>,
    expires: Option<Instant>,
    /// How often it came back.
    count: u32,
    redelivered: bool,
}

/// A message that must leave for another queue.
#[derive(Debug)]
pub(super) struct DeadLetter {
    pub(super) to: Option<String>,
    pub(super) message: Message,
    pub(super) reason: &'static str,
}

#[derive(Debug)]
struct Subscriber {
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

/// A queue and its consumers.
#[derive(Debug, Default)]
pub(super) struct Queue {
    name: String,
    pub(super) arguments: Arguments,
    /// What came back waits ahead of everything else.
    returned: VecDeque<Held>,
    ready: VecDeque<Held>,
    ready_bytes: u64,
    unsettled: BTreeMap<u64, Unsettled>,
    subscribers: VecDeque<Subscriber>,
    /// When the queue goes if nobody consumes from it until then.
    pub(super) ends: Option<Instant>,
    next_tag: u64,
}

impl Queue {
    pub(super) fn new(name: &str, arguments: Arguments) -> Self {
        let mut queue = Self { name: name.to_owned(), arguments, ..Self::default() };
        queue.renew_lease();
        queue
    }

    /// Starts the lease anew, if there is one and nobody consumes.
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

    /// Whether there is room; a message larger than the limit still fits an empty queue.
    pub(super) fn has_room_for(&self, bytes: u64) -> bool {
        let limit = self.arguments.max_bytes.unwrap_or(u64::MAX);
        self.arguments.drops_head
            || self.ready_bytes == 0
            || self.ready_bytes.saturating_add(bytes) <= limit
    }

    /// The next moment at which something expires: the head, or the queue.
    pub(super) fn alarm(&self) -> Option<Instant> {
        let head = self.head().and_then(|held| held.expires);
        [head, self.ends].into_iter().flatten().min()
    }

    fn head(&self) -> Option<&Held> {
        self.returned.front().or_else(|| self.ready.front())
    }

    /// Puts a message at the tail.
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
        self.subscribers.retain(|subscriber| subscriber.id != id);
        self.renew_lease();
    }

    /// Stops what a consumer is handed, or lets it come again.
    pub(super) fn pause(&mut self, id: u64, paused: bool) {
        for subscriber in self.subscribers.iter_mut().filter(|subscriber| subscriber.id == id) {
            subscriber.paused = paused;
        }
    }

    /// Removes the first message that waits.
    pub(super) fn take_one(&mut self) {
        drop(self.pop());
    }

    /// Removes a message that was handed out; `false` if it is not out under this tag any more.
    pub(super) fn ack(&mut self, tag: u64) -> bool {
        self.take_back(tag).is_some()
    }

    /// Puts a message that was handed out back ahead of all others, and counts that.
    pub(super) fn requeue(&mut self, tag: u64, dead: &mut Vec<DeadLetter>) -> bool {
        let Some(held) = self.take_back(tag) else { return false };
        self.put_back(held, dead);
        true
    }

    /// Takes back all that a connection holds, in the order in which it was handed out.
    pub(super) fn disconnect(&mut self, connection: u64, dead: &mut Vec<DeadLetter>) {
        let theirs = |unsettled: &Unsettled| unsettled.connection == connection;
        let tags: Vec<u64> =
            self.unsettled.iter().filter(|(_, held)| theirs(held)).map(|(tag, _)| *tag).collect();
        let before = self.subscribers.len();
        self.subscribers.retain(|subscriber| subscriber.connection != connection);
        if self.subscribers.len() < before {
            self.renew_lease();
        }
        for tag in tags {
            self.requeue(tag, dead);
        }
    }

    /// Removes what has expired at the head, and hands out what can be.
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

    /// Only the head expires, as in RabbitMQ; whatever it hides waits for its turn.
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

    /// The next consumer in turn that may have another message; it is taken out of the row.
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
        // A consumer that goes at this moment gives the delivery back through its destructor,
        // which takes the lock that is held here: that must happen later.
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
        // RabbitMQ 4 shows a publisher's own header until it counts itself.
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

    /// The broker takes the expiration off what it moves, or it would expire again at once.
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
