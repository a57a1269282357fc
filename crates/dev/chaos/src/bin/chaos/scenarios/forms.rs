//! Requests of several forms to an engine of text, and their faults.

use std::ops::Range;

use anyhow::{Result, bail};
use nsbridge_protocol::TextInput;
use serde_json::{Value, json};

use crate::document;
use crate::engine::{Lone, OfText};
use crate::follow::{is_over, pieces, was_stopped};
use crate::plan::{Ask, Expect, Reading};
use crate::stage::Stage;

/// Maximum number of seeds that are tried for a request.
const MAX_SEEDS: usize = 20;

/// Requests of several forms, with sizes that suit the speed of an engine.
pub(super) struct Forms {
    /// One input of each form.
    pub(super) inputs: Vec<TextInput>,
    /// Minimum number of pieces of a reply.
    pub(super) least_pieces: usize,
    /// Least and most number of pieces that a caller has of each reply when a fault comes.
    pub(super) moment_pieces: (usize, usize),
    /// Time limit of a request, in milliseconds.
    pub(super) timeout_ms: u64,
    /// Time in which a canceled run must stop, in milliseconds.
    pub(super) canceled_within_ms: u64,
}

impl Forms {
    /// Adds a request of each form, with the reply of an undisturbed engine.
    pub(super) fn ask_each<H: OfText>(
        &self,
        stage: &mut Stage,
        lone: &Lone<H>,
    ) -> Result<Range<usize>> {
        let first = stage.plan.asks.len();
        for input in &self.inputs {
            let n = stage.ask(Ask::of_engine(input)?.within(self.timeout_ms));
            self.answer(stage, lone, n)?;
        }
        Ok(first..stage.plan.asks.len())
    }

    /// Draws the seed of request `n` until its undisturbed reply is long and whole: a model is free to
    /// call the tool again where no token is left for it, or not at all.
    fn answer<H: OfText>(&self, stage: &mut Stage, lone: &Lone<H>, n: usize) -> Result<()> {
        for _ in 0..MAX_SEEDS {
            let ask = &mut stage.plan.asks[n];
            let reply = lone.run(&ask.order, ask.seed)?;
            let input = ask.order.input.as_ref();
            let is_whole = input.is_some_and(|input| document::check(input, &reply).is_ok());
            if is_whole && reply.len() >= self.least_pieces {
                ask.reply = Some(reply);
                return Ok(());
            }
            ask.seed = stage.random.next() >> 11;
        }
        bail!("no seed of {MAX_SEEDS} makes a long and whole reply to request {n}")
    }

    /// Adds requests equal to these, whose callers cancel in mid-stream.
    pub(super) fn cancel_each(&self, stage: &mut Stage, asks: Range<usize>) -> Range<usize> {
        let first = stage.plan.asks.len();
        let (least, most) = self.moment_pieces;
        for n in asks {
            let ask = stage.plan.asks[n].clone();
            let until = Reading::UntilPiece(stage.random.between(least, most));
            let (seed, expect) = (ask.seed, Expect::Cancelled(self.canceled_within_ms));
            let twin = stage.ask(ask.reading(until).expect(expect));
            stage.plan.asks[twin].seed = seed;
        }
        first..stage.plan.asks.len()
    }

    /// Submits these requests, and injects the fault when all replies are in the middle. `fault` takes
    /// the process that runs one of them, such as `w1.2`.
    pub(super) fn in_the_middle(
        &self,
        stage: &mut Stage,
        asks: Range<usize>,
        fault: impl FnOnce(&mut Stage, &str) -> Result<()>,
    ) -> Result<()> {
        stage.start_client_for(&asks.clone().collect::<Vec<_>>())?;
        let moment = stage.random.between(self.moment_pieces.0, self.moment_pieces.1);
        let life = runner_of_each(stage, asks, moment)?;
        fault(stage, &life)
    }
}

/// Waits until the caller of each request has this many pieces, and returns the process that runs one of
/// them.
pub(super) fn runner_of_each(
    stage: &mut Stage,
    asks: Range<usize>,
    moment: usize,
) -> Result<String> {
    stage.until(&format!("piece {moment} of each of requests {asks:?}"), |lines| {
        asks.clone().all(|n| pieces(lines, n) >= moment || is_over(lines, n))
    })?;
    stage.runner_in_the_middle(asks, moment)
}

/// Submits these requests beside those that are canceled, and waits until the canceled runs have stopped.
pub(super) fn cancel(
    stage: &mut Stage,
    beside: &Range<usize>,
    canceled: &Range<usize>,
) -> Result<()> {
    stage.fault("cancel", "a request of each form")?;
    stage.start_client_for(&beside.clone().chain(canceled.clone()).collect::<Vec<_>>())?;
    stage
        .until("the canceled runs to stop", |lines| canceled.clone().all(|n| was_stopped(lines, n)))
}

/// Waits until these requests are answered.
pub(super) fn until_over(stage: &mut Stage, mut asks: Range<usize>) -> Result<()> {
    asks.try_for_each(|n| stage.until_over(n))
}

/// Restarts the broker.
pub(super) fn restart_broker(stage: &Stage) -> Result<()> {
    stage.fault("restart", "the broker")?;
    stage.node()?.restart()
}

/// Returns a schema of documents of at most `11 + 43 * days` characters of JSON without spaces.
pub(super) fn days(days: usize) -> Value {
    let day = json!({
        "type": "object",
        "properties": {
            "sea": { "enum": ["calm", "high", "low"] },
            "name": { "type": "string", "pattern": "^[A-Z][a-z]{2,7}$" },
            "fish": { "type": "integer", "minimum": 0, "maximum": 99 },
        },
        "required": ["sea", "name", "fish"],
        "additionalProperties": false,
    });
    json!({
        "type": "object",
        "properties": {
            "days": { "type": "array", "items": day, "minItems": days, "maxItems": days },
        },
        "required": ["days"],
        "additionalProperties": false,
    })
}

/// Returns a schema of calls of a tool whose argument is a document of [`days`].
pub(super) fn call_schema(tool: &str, arguments: &Value) -> Value {
    json!({
        "type": "object",
        "properties": { "name": { "const": tool }, "arguments": arguments },
        "required": ["name", "arguments"],
        "additionalProperties": false,
    })
}
