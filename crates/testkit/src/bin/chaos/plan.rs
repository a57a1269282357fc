//! What a round is to do, and what must come of it. The checker reads it from the journal.

use serde::{Deserialize, Serialize};

use crate::order::{Does, Order, lone_run};

/// One round of a scenario.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) scenario: String,
    pub(crate) round: usize,
    pub(crate) seed: u64,
    pub(crate) asks: Vec<Ask>,
    pub(crate) rules: Rules,
}

/// One request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) seed: u64,
    pub(crate) order: Order,
    /// What must come, piece by piece, where the handler does not follow from the order.
    #[serde(default)]
    pub(crate) text: Option<Vec<String>>,
    /// When it is submitted, counted from the client's start.
    pub(crate) after_ms: u64,
    pub(crate) timeout_ms: u64,
    pub(crate) reading: Reading,
    /// There is no reason to run it more often.
    pub(crate) most_runs: Option<usize>,
    pub(crate) expect: Expect,
}

/// How the caller reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reading {
    /// As fast as it can.
    Eagerly,
    /// Not at all for this many milliseconds, then eagerly.
    AfterMs(u64),
    /// Up to this piece; then it cancels.
    UntilPiece(usize),
}

/// What must become of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Expect {
    /// The whole text, each piece once, in order.
    Text,
    /// This failure, and of the text no more than its beginning.
    Failure(String),
    /// The client cancels: its run ends within so many milliseconds.
    Cancelled(u64),
    /// Its client dies: no run goes on so many milliseconds later.
    Abandoned(u64),
    /// The attempts differ, which the handler must not do: the caller is told once, and gets the
    /// whole text of one attempt.
    OneOfSeveral,
}

/// What must be true of a round as a whole.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rules {
    /// At least so many requests were taken up again by another attempt: a fault that hits nothing
    /// proves nothing.
    pub(crate) taken_up: usize,
    /// At least so many runs went on after pieces that the client had.
    pub(crate) resumed: usize,
    /// No attempt has a higher number: nothing was delivered more often.
    pub(crate) most_attempts: Option<u32>,
    /// At least so many requests were enqueued anew by their client, under another salt.
    pub(crate) asked_again: usize,
    /// At least so many times a worker died that had a request which waited to run alone.
    pub(crate) died_waiting: usize,
    /// At least so many runs were for a caller that nobody knows: those of forged copies.
    pub(crate) for_nobody: usize,
    /// What the requests from a number on may take, beside those before, which nothing disturbs.
    pub(crate) pace: Option<Pace>,
    /// At least so many frames were sent again, the same bytes, because the broker refused them.
    pub(crate) sent_again: usize,
    /// Some caller waited at least so many milliseconds between two pieces.
    pub(crate) stalled_ms: u64,
    /// No request ran twice.
    pub(crate) one_run_each: bool,
    /// What processes hold does not grow.
    pub(crate) flat: bool,
    /// The same sealed bytes are published twice: two workers may both run them.
    pub(crate) published_twice: bool,
    /// This many dead letters, with this reason.
    pub(crate) dead: Option<(usize, String)>,
}

/// How much slower requests may be because of the faults.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Pace {
    /// So many requests come first, all at once, and end before the first fault. The others are
    /// asked all at once too.
    pub(crate) undisturbed: usize,
    /// From the first to the last the others may take so many times as long.
    pub(crate) at_most: f64,
}

impl Ask {
    /// A request for `pieces` pieces, one every `every_ms` milliseconds, within a minute.
    pub(crate) fn new(pieces: usize, every_ms: u64) -> Self {
        Self {
            seed: 0,
            order: Order { n: 0, pieces, every_ms, deaf: false, does: Does::Say, prompt: None },
            text: None,
            after_ms: 0,
            timeout_ms: 60_000,
            reading: Reading::Eagerly,
            most_runs: None,
            expect: Expect::Text,
        }
    }

    pub(crate) fn does(mut self, does: Does) -> Self {
        self.order.does = does;
        self
    }

    /// What the engine is to go on with.
    pub(crate) fn going_on(mut self, prompt: &str) -> Self {
        self.order.prompt = Some(prompt.to_owned());
        self
    }

    /// What a worker says that nothing disturbs.
    pub(crate) fn lone_run(&self) -> Vec<String> {
        self.text.clone().unwrap_or_else(|| lone_run(self.seed, self.order.pieces))
    }

    pub(crate) fn deaf(mut self, deaf: bool) -> Self {
        self.order.deaf = deaf;
        self
    }

    pub(crate) fn at_most(mut self, runs: usize) -> Self {
        self.most_runs = Some(runs);
        self
    }

    pub(crate) fn after(mut self, ms: u64) -> Self {
        self.after_ms = ms;
        self
    }

    pub(crate) fn within(mut self, ms: u64) -> Self {
        self.timeout_ms = ms;
        self
    }

    pub(crate) fn reading(mut self, reading: Reading) -> Self {
        self.reading = reading;
        self
    }

    pub(crate) fn expect(mut self, expect: Expect) -> Self {
        self.expect = expect;
        self
    }
}
