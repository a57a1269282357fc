//! Matching of returned messages to published ones.
//!
//! The broker returns an unroutable message just before its confirm. It may confirm other messages
//! in between, and many at once. lapin attaches a returned message to whichever confirm completes
//! next. This module therefore matches a return by its own exchange, key and body.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use lapin::message::BasicReturnMessage;
use tokio::sync::oneshot;

use super::fault;
use crate::Confirmation;
use crate::error::{Error, Result};

/// Number of bytes at the start of a body that identify it: sealed frames begin with a random salt,
/// or with a stream id and its counter.
const HEAD: usize = 128;
/// Number of bytes at the end of a body that identify it, which include the authentication tag.
const TAIL: usize = 32;

/// Hash that identifies a published message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Mark {
    fn of(returned: &BasicReturnMessage) -> Self {
        Self::new(returned.exchange.as_str(), returned.routing_key.as_str(), &returned.data)
    }

    pub(super) fn new(exchange: &str, key: &str, body: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        (exchange, key, body.len()).hash(&mut hasher);
        body[..body.len().min(HEAD)].hash(&mut hasher);
        body[body.len().saturating_sub(TAIL)..].hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Messages whose publisher has not received an answer yet.
#[derive(Default)]
pub(super) struct Ledger {
    /// Entries in the order of publishing.
    unanswered: BTreeMap<u64, Entry>,
    /// Messages confirmed since the last call of `answer`.
    fresh: Vec<u64>,
    /// Messages confirmed with a return that is not theirs. Their own may still be queued in lapin.
    doubtful: Vec<u64>,
    /// Returns received since the last call of `answer`.
    returned: Vec<Mark>,
    next: u64,
}

struct Entry {
    mark: Mark,
    answer: oneshot::Sender<Result<Confirmation>>,
    returned: bool,
    told: Option<Told>,
}

/// Outcome of a message as lapin reports it.
enum Told {
    /// Confirm without a return. No return was queued in lapin, so the message's own, if any, came
    /// before.
    Certain(Confirmation),
    /// Confirm with a return, which is not necessarily the message's own.
    Handed(Confirmation),
    Failed(Error),
}

impl Ledger {
    /// Adds a message that is about to be sent, and returns its number.
    pub(super) fn enter(
        &mut self,
        mark: Mark,
        answer: oneshot::Sender<Result<Confirmation>>,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        self.unanswered.insert(number, Entry { mark, answer, returned: false, told: None });
        number
    }

    /// Records lapin's outcome for a message.
    pub(super) fn note(&mut self, (number, told): (u64, lapin::Result<lapin::Confirmation>)) {
        let (confirmed, handed) = match told {
            Ok(lapin::Confirmation::Ack(handed)) => (Ok(Confirmation::Ack), handed),
            Ok(lapin::Confirmation::Nack(handed)) => (Ok(Confirmation::Nack), handed),
            Ok(lapin::Confirmation::NotRequested) => (Ok(Confirmation::Ack), None),
            Err(error) => (Err(fault::lost(&error)), None),
        };
        let told = match (confirmed, &handed) {
            (Ok(confirmed), Some(_)) => Told::Handed(confirmed),
            (Ok(confirmed), None) => Told::Certain(confirmed),
            (Err(error), _) => Told::Failed(error),
        };
        self.returned.extend(handed.as_ref().map(Mark::of));
        if let Some(entry) = self.unanswered.get_mut(&number) {
            entry.told = Some(told);
            self.fresh.push(number);
        }
    }

    /// Answers every message whose outcome is certain; `idle` is true if no message is unconfirmed.
    pub(super) fn answer(&mut self, idle: bool) {
        for mark in std::mem::take(&mut self.returned) {
            self.came_back(mark);
        }
        let fresh = std::mem::take(&mut self.fresh);
        let nothing_waits = idle || fresh.iter().any(|number| self.is_certain(*number));
        for number in std::mem::take(&mut self.doubtful) {
            self.answer_one(number, nothing_waits);
        }
        for number in fresh {
            self.answer_one(number, idle);
        }
    }

    fn came_back(&mut self, mark: Mark) {
        let same = |entry: &&mut Entry| entry.mark == mark && !entry.returned;
        if let Some(entry) = self.unanswered.values_mut().find(same) {
            entry.returned = true;
        } else {
            tracing::debug!("the broker returned a message without a waiting publisher");
        }
    }

    fn is_certain(&self, number: u64) -> bool {
        let entry = self.unanswered.get(&number);
        entry.is_some_and(|entry| matches!(entry.told, Some(Told::Certain(_))))
    }

    fn answer_one(&mut self, number: u64, nothing_waits: bool) {
        let Some(entry) = self.unanswered.remove(&number) else { return };
        let answer = match entry.told {
            Some(Told::Failed(error)) => Err(error),
            Some(_) if entry.returned => Ok(Confirmation::Returned),
            Some(Told::Certain(confirmed)) => Ok(confirmed),
            Some(Told::Handed(confirmed)) if nothing_waits => Ok(confirmed),
            told => {
                self.unanswered.insert(number, Entry { told, ..entry });
                self.doubtful.push(number);
                return;
            }
        };
        // Sending fails if the caller has dropped its confirm.
        let _ = entry.answer.send(answer);
    }
}
