//! Plan of a round: its requests and their expected outcomes. The checker reads it from the
//! journal.

use nsbridge_protocol::{Priority, TextInput};
use serde::{Deserialize, Serialize};

use crate::order::{Does, Order, Piece, lone_run};

/// Round of a scenario.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) scenario: String,
    pub(crate) round: usize,
    pub(crate) seed: u64,
    pub(crate) asks: Vec<Ask>,
    pub(crate) rules: Rules,
}

/// Planned request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) seed: u64,
    pub(crate) order: Order,
    /// Expected pieces, if they do not follow from the order.
    #[serde(default)]
    pub(crate) reply: Option<Vec<Piece>>,
    /// Time of submission in milliseconds after the client's start.
    pub(crate) after_ms: u64,
    pub(crate) timeout_ms: u64,
    #[serde(default)]
    pub(crate) priority: Priority,
    pub(crate) reading: Reading,
    /// True if the caller submits the request again each second while the broker refuses it.
    #[serde(default)]
    pub(crate) insists: bool,
    /// Maximum number of runs; `None` is no limit.
    pub(crate) most_runs: Option<usize>,
    pub(crate) expect: Expect,
}

/// Read pattern of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reading {
    /// Reads as fast as possible.
    Eagerly,
    /// Reads nothing until the driver opens the gate of the round, then as fast as possible.
    AfterGate,
    /// Reads up to this piece, then cancels.
    UntilPiece(usize),
}

/// Expected outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Expect {
    /// Whole text, each piece once and in order.
    Text,
    /// Failure with this code, after at most a prefix of the text.
    Failure(String),
    /// Cancellation by the client; the run ends within this number of milliseconds.
    Cancelled(u64),
    /// End by the request's time limit; the run ends within this number of milliseconds after it.
    Deadline(u64),
    /// Death of the client; no run continues after this number of milliseconds.
    Abandoned(u64),
    /// Whole text of one attempt, after one restart event. The attempts differ, which breaks the
    /// handler's contract.
    OneOfSeveral,
}

/// Conditions that a round as a whole must meet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rules {
    /// Minimum number of requests that another attempt took up again. A fault without effect proves
    /// nothing, so a smaller number fails the round.
    pub(crate) taken_up: usize,
    /// Minimum number of runs that continued after pieces that the client had.
    pub(crate) resumed: usize,
    /// Maximum attempt number. A higher one shows an unexpected redelivery.
    pub(crate) most_attempts: Option<u32>,
    /// Minimum number of requests that their client enqueued again, with another salt.
    pub(crate) asked_again: usize,
    /// Minimum number of times that a worker died while a request in it waited to run alone.
    pub(crate) died_waiting: usize,
    /// Minimum number of runs of forged copies, whose reply queue does not exist.
    pub(crate) without_client: usize,
    /// Limit on the slowdown by faults.
    pub(crate) pace: Option<Pace>,
    /// Minimum number of frames that the worker sent again with the same bytes, because the broker
    /// refused them.
    pub(crate) sent_again: usize,
    /// Lower limit of the longest wait between two pieces of any reply, in milliseconds.
    pub(crate) stalled_ms: u64,
    /// Maximum time from the submission of an interactive request to its first piece, in
    /// milliseconds; `None` is no limit.
    #[serde(default)]
    pub(crate) prompt_ms: Option<u64>,
    /// True if no request may run twice.
    pub(crate) one_run_each: bool,
    /// True if memory and descriptors of the processes must not grow.
    pub(crate) flat: bool,
    /// True if the same sealed bytes are published twice, so that two workers may both run them.
    pub(crate) published_twice: bool,
    /// True if the requests go through gateways. Each gateway that continues a reply submits it as a
    /// job of its own, so several jobs of a request may run at once; and the gateway draws the
    /// seeds, which the workers record.
    #[serde(default)]
    pub(crate) through_gateways: bool,
    /// Expected number of dead letters, all with this reason.
    pub(crate) dead: Option<(usize, String)>,
}

/// Maximum slowdown of requests by faults.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Pace {
    /// Number of requests at the start of the plan that end before the first fault. They are
    /// submitted all at once, and so are the others.
    pub(crate) undisturbed: usize,
    /// Maximum ratio of the wall time of the other requests to that of the undisturbed ones.
    pub(crate) at_most: f64,
}

impl Ask {
    /// Creates a request for `pieces` pieces, one every `every_ms` milliseconds, with a timeout of
    /// a minute.
    pub(crate) fn new(pieces: usize, every_ms: u64) -> Self {
        Self {
            seed: 0,
            order: Order { n: 0, pieces, every_ms, deaf: false, does: Does::Say, input: None },
            reply: None,
            after_ms: 0,
            timeout_ms: 60_000,
            priority: Priority::Interactive,
            reading: Reading::Eagerly,
            insists: false,
            most_runs: None,
            expect: Expect::Text,
        }
    }

    /// Creates a request for the engine handler, with a timeout of a minute.
    pub(crate) fn of_engine(input: &TextInput) -> serde_json::Result<Self> {
        let mut ask = Self::new(0, 0);
        ask.order.input = Some(serde_json::to_value(input)?);
        Ok(ask)
    }

    pub(crate) fn does(mut self, does: Does) -> Self {
        self.order.does = does;
        self
    }

    /// Returns the order of a request outside of the plan, as a text.
    pub(crate) fn order_text(mut self, n: usize) -> serde_json::Result<String> {
        self.order.n = n;
        serde_json::to_string(&self.order)
    }

    /// Returns the pieces of an undisturbed run.
    pub(crate) fn lone_run(&self) -> Vec<Piece> {
        self.reply.clone().unwrap_or_else(|| lone_run(self.seed, self.order.pieces))
    }

    pub(crate) fn deaf(mut self, deaf: bool) -> Self {
        self.order.deaf = deaf;
        self
    }

    pub(crate) fn at_most(mut self, runs: usize) -> Self {
        self.most_runs = Some(runs);
        self
    }

    pub(crate) fn insists(mut self) -> Self {
        self.insists = true;
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

    pub(crate) fn bulk(mut self) -> Self {
        self.priority = Priority::Bulk;
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
