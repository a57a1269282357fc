//! Which of the published messages came back.
//!
//! The broker returns an unroutable message just before it confirms it, but confirms others in
//! between, and many at once. lapin hands a returned message to whichever confirmation it happens
//! to complete next. So a return is matched here by what it says itself: exchange, key and body.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use lapin::Confirmation;
use lapin::message::BasicReturnMessage;
use tokio::sync::oneshot;

use super::fault;
use crate::{Confirmed, Error, Result};

/// How much of a body's two ends tells it from others: sealed frames begin with a random salt or
/// a stream and its counter, and end in an authentication tag.
const HEAD: usize = 128;
const TAIL: usize = 32;

/// What a published message is recognised by.
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

/// The messages whose publisher has no answer yet.
#[derive(Default)]
pub(super) struct Ledger {
    /// By the order of publishing.
    unanswered: BTreeMap<u64, Entry>,
    /// Confirmed since the last answers.
    fresh: Vec<u64>,
    /// Handed a foreign return: their own may still be waiting to be handed to somebody.
    doubtful: Vec<u64>,
    /// Returns that were handed out since the last answers.
    returned: Vec<Mark>,
    next: u64,
}

struct Entry {
    mark: Mark,
    answer: oneshot::Sender<Result<Confirmed>>,
    returned: bool,
    told: Option<Told>,
}

/// What lapin told about a message.
enum Told {
    /// No return was waiting when it was confirmed: its own, if any, was handed out before.
    Certain(Confirmed),
    /// It was handed a return, not necessarily its own.
    Handed(Confirmed),
    Failed(Error),
}

impl Ledger {
    /// Enters a message that is about to be sent.
    pub(super) fn enter(&mut self, mark: Mark, answer: oneshot::Sender<Result<Confirmed>>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.unanswered.insert(number, Entry { mark, answer, returned: false, told: None });
        number
    }

    /// Notes what lapin told about a message.
    pub(super) fn note(&mut self, (number, told): (u64, lapin::Result<Confirmation>)) {
        let (confirmed, handed) = match told {
            Ok(Confirmation::Ack(handed)) => (Ok(Confirmed::Taken), handed),
            Ok(Confirmation::Nack(handed)) => (Ok(Confirmed::Refused), handed),
            Ok(Confirmation::NotRequested) => (Ok(Confirmed::Taken), None),
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

    /// Answers every message about which all is known; `idle` if none is unconfirmed.
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
            tracing::debug!("the broker returned a message that nobody waits for");
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
            Some(_) if entry.returned => Ok(Confirmed::Returned),
            Some(Told::Certain(confirmed)) => Ok(confirmed),
            Some(Told::Handed(confirmed)) if nothing_waits => Ok(confirmed),
            told => {
                self.unanswered.insert(number, Entry { told, ..entry });
                self.doubtful.push(number);
                return;
            }
        };
        // Nobody listens if the caller has dropped its confirm.
        let _ = entry.answer.send(answer);
    }
}
