//! State of the memory broker: all queues and bindings, behind one lock.

use std::collections::{BTreeSet, HashMap, HashSet};

use nsbridge_protocol::topology::{self, CONTROL_EXCHANGE, REPLY_EXCHANGE, RETRY_TIERS};
use nsbridge_protocol::{ModelName, Priority, Revision};
use tokio::time::Instant;

use super::queue::{Arguments, DeadLetter, Queue, Subscriber};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::message::Message;
use crate::{Confirmation, Depth};

/// Queues, bindings and connections of a memory broker.
#[derive(Debug, Default)]
pub(super) struct State {
    queues: HashMap<String, Queue>,
    bindings: HashMap<(&'static str, String), BTreeSet<String>>,
    /// Names of queues whose node is down.
    down: HashSet<String>,
    /// Times at which something expires. Stale ones do no harm.
    alarms: BTreeSet<Instant>,
    /// Consumers that have ended, to be dropped without the lock.
    pub(super) gone: Vec<Subscriber>,
    pub(super) limits: Limits,
    next_id: u64,
}

impl State {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn next_alarm(&self) -> Option<Instant> {
        self.alarms.first().copied()
    }

    pub(super) fn declare_model(&mut self, model: &ModelName) -> Result<()> {
        let dead = topology::dead_queue(model);
        let work = Arguments {
            max_bytes: Some(self.limits.model_queue_bytes),
            dead_letter_to: Some(dead.clone()),
            delivery_limit: Some(self.limits.deliveries),
            counts: true,
            ..Arguments::default()
        };
        let quorum = Arguments { counts: true, ..Arguments::default() };
        let kept = Arguments {
            ttl: Some(topology::DEAD_LETTER_TTL),
            max_bytes: Some(self.limits.dead_queue_bytes),
            drops_head: true,
            ..quorum.clone()
        };
        self.declare(&dead, kept)?;
        for priority in Priority::ALL {
            let requests = topology::request_queue(model, priority);
            self.declare(&requests, work.clone())?;
            for tier in RETRY_TIERS {
                let dead_letter_to = Some(requests.clone());
                let max_bytes = Some(self.limits.retry_queue_bytes);
                let ttl = Some(tier.delay);
                let waits = Arguments { ttl, dead_letter_to, max_bytes, ..quorum.clone() };
                self.declare(&topology::retry_queue(model, priority, tier), waits)?;
            }
        }
        Ok(())
    }

    pub(super) fn declare_reply_queue(&mut self, queue: &str) -> Result<()> {
        let arguments = Arguments {
            max_bytes: Some(self.limits.reply_queue_bytes),
            lease: Some(self.limits.reply_lease),
            ..Arguments::default()
        };
        self.declare(queue, arguments)?;
        self.bind(REPLY_EXCHANGE, queue, queue);
        Ok(())
    }

    pub(super) fn declare_control_queue(
        &mut self,
        queue: &str,
        model: &ModelName,
        revision: Option<&Revision>,
        owner: u64,
    ) -> Result<()> {
        self.declare(queue, Arguments { owner: Some(owner), ..Arguments::default() })?;
        self.bind(CONTROL_EXCHANGE, queue, queue);
        self.bind(CONTROL_EXCHANGE, model.as_str(), queue);
        if let Some(revision) = revision {
            self.bind(CONTROL_EXCHANGE, &topology::revision_key(model, revision), queue);
        }
        Ok(())
    }

    /// Declares a queue that is exclusive to a connection. Returns false if another one has it.
    pub(super) fn lock(&mut self, name: &str, owner: u64) -> bool {
        self.declare(name, Arguments { owner: Some(owner), ..Arguments::default() }).is_ok()
    }

    pub(super) fn declare_run_record(&mut self, queue: &str) -> Result<u32> {
        let arguments = Arguments {
            lease: Some(topology::RUN_RECORD_EXPIRES),
            max_length: usize::try_from(topology::RUN_RECORD_LENGTH).ok(),
            ..Arguments::default()
        };
        self.declare(queue, arguments)?;
        let entries = self.queues.get(queue).map_or(0, Queue::waiting);
        Ok(u32::try_from(entries).unwrap_or(u32::MAX))
    }

    /// Removes one entry from a run record, and deletes the record with its last entry.
    pub(super) fn strike_run_record(&mut self, name: &str) {
        if let Some(record) = self.queues.get_mut(name) {
            record.take_one();
            if record.waiting() == 0 {
                self.delete(name);
            }
        }
    }

    pub(super) fn delete(&mut self, name: &str) {
        if let Some(queue) = self.queues.remove(name) {
            self.gone.extend(queue.end());
        }
    }

    #[cfg(feature = "testing")]
    pub(super) fn take_reply_queues_down(&mut self) {
        let replies = |name: &String, _: &mut Queue| name.starts_with(topology::REPLY_QUEUE_PREFIX);
        for (name, queue) in self.queues.extract_if(replies) {
            self.gone.extend(queue.end());
            self.down.insert(name);
        }
    }

    fn declare(&mut self, name: &str, arguments: Arguments) -> Result<()> {
        if self.down.contains(name) {
            return Err(Error::NodeDown { queue: name.to_owned() });
        }
        if self.queues.get(name).is_some_and(|queue| queue.arguments != arguments) {
            let broker_says = format!("it was not declared with {arguments:?}");
            return Err(Error::Topology { queue: name.to_owned(), broker_says });
        }
        let queue = self.queues.entry(name.to_owned());
        let queue = queue.or_insert_with(|| Queue::new(name, arguments));
        queue.renew_lease();
        self.alarms.extend(queue.alarm());
        Ok(())
    }

    fn bind(&mut self, exchange: &'static str, key: &str, queue: &str) {
        self.bindings.entry((exchange, key.to_owned())).or_default().insert(queue.to_owned());
    }

    /// Returns a queue that this connection may consume from.
    pub(super) fn queue_for(&mut self, name: &str, connection: u64) -> Result<&mut Queue> {
        let free = |queue: &&mut Queue| queue.arguments.owner.is_none_or(|own| own == connection);
        let is_down = self.down.contains(name);
        let missing = || match name.to_owned() {
            queue if is_down => Error::NodeDown { queue },
            queue => Error::NoQueue { queue },
        };
        self.queues.get_mut(name).filter(free).ok_or_else(missing)
    }

    pub(super) fn depth(&mut self, name: &str, connection: u64) -> Result<Depth> {
        let queue = self.queue_for(name, connection)?;
        let count = |count| u32::try_from(count).unwrap_or(u32::MAX);
        Ok(Depth { messages: count(queue.waiting()), consumers: count(queue.consumers()) })
    }

    /// Routes a message; returns `None` if there is no such exchange.
    pub(super) fn publish(
        &mut self,
        exchange: &str,
        key: &str,
        message: Message,
    ) -> Option<Confirmation> {
        let mut targets = self.targets(exchange, key)?;
        let bytes = message.body.len() as u64;
        let has_room = |name: &String| match self.queues.get(name) {
            Some(queue) => queue.has_room_for(bytes),
            None => !self.down.contains(name),
        };
        let Some(last) = targets.pop() else { return Some(Confirmation::Returned) };
        if !targets.iter().chain([&last]).all(has_room) {
            return Some(Confirmation::Nack);
        }
        for name in targets {
            self.put(&name, message.clone(), None);
        }
        self.put(&last, message, None);
        Some(Confirmation::Ack)
    }

    fn targets(&self, exchange: &str, key: &str) -> Option<Vec<String>> {
        let exchange = match exchange {
            "" => {
                let exists = self.queues.contains_key(key) || self.down.contains(key);
                return Some(exists.then(|| key.to_owned()).into_iter().collect());
            }
            CONTROL_EXCHANGE => CONTROL_EXCHANGE,
            REPLY_EXCHANGE => REPLY_EXCHANGE,
            _ => return None,
        };
        let bound = self.bindings.get(&(exchange, key.to_owned()));
        Some(bound.map(|queues| queues.iter().cloned().collect()).unwrap_or_default())
    }

    fn put(&mut self, name: &str, message: Message, death: Option<&'static str>) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        queue.push(message, death);
        self.with(name, |_, _| ());
    }

    /// Changes a queue, then lets it and the queues that it dead-letters to hand out what they can.
    pub(super) fn with<T: Default>(
        &mut self,
        name: &str,
        work: impl FnOnce(&mut Queue, &mut Vec<DeadLetter>) -> T,
    ) -> T {
        let Some(queue) = self.queues.get_mut(name) else { return T::default() };
        let mut dead = Vec::new();
        let done = work(queue, &mut dead);
        queue.advance(&mut dead);
        self.gone.extend(queue.take_gone());
        self.alarms.extend(queue.alarm());
        self.bury(dead);
        done
    }

    /// Moves dead letters to their queues.
    ///
    /// A full queue accepts them. RabbitMQ keeps them in the source queue instead, but does not
    /// lose them either.
    fn bury(&mut self, dead: Vec<DeadLetter>) {
        for letter in dead {
            if let Some(to) = letter.to {
                self.put(&to, letter.message, Some(letter.reason));
            }
        }
    }

    /// Ends a connection: deletes its exclusive queues and requeues its unsettled messages.
    pub(super) fn disconnect(&mut self, id: u64) {
        self.remove_queues(|queue| queue.arguments.owner == Some(id));
        let names: Vec<String> = self.queues.keys().cloned().collect();
        for name in names {
            self.with(&name, |queue, dead| queue.disconnect(id, dead));
        }
    }

    /// Expires everything that is due.
    pub(super) fn sweep(&mut self) {
        let now = Instant::now();
        while self.next_alarm().is_some_and(|alarm| alarm <= now) {
            self.alarms.pop_first();
        }
        self.remove_queues(|queue| queue.ends.is_some_and(|ends| ends <= now));
        let names: Vec<String> = self.queues.keys().cloned().collect();
        for name in names {
            self.with(&name, |_, _| ());
        }
    }

    fn remove_queues(&mut self, goes: impl Fn(&Queue) -> bool) {
        let ended = self.queues.extract_if(|_, queue| goes(queue));
        self.gone.extend(ended.flat_map(|(_, queue)| queue.end()));
        let (queues, down) = (&self.queues, &self.down);
        self.bindings.retain(|_, bound| {
            bound.retain(|name| queues.contains_key(name) || down.contains(name));
            !bound.is_empty()
        });
    }
}
