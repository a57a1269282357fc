//! Faults of workers while the LLM engine writes replies of every form: text, JSON of a schema, a call
//! of a tool, and several replies to one prompt.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, bail};
use nsbridge_protocol::{ChatMessage, JsonSchema, ResponseFormat, TextInput, ToolCallFormat};
use serde_json::{Value, json};

use crate::document;
use crate::engine::Lone;
use crate::follow::{gone, is_over, pieces, was_stopped};
use crate::plan::{Ask, Expect, Reading};
use crate::stage::{Stage, base};

/// Number of days that a JSON document lists, each of some 33 tokens.
const DAYS: usize = 10;

/// Minimum number of pieces of a reply.
const LEAST_PIECES: usize = 200;

/// Least and most number of pieces that a caller has of each reply at the moment of a fault.
const MOMENT_PIECES: (usize, usize) = (40, 90);

/// Maximum number of seeds that are tried for a request.
const MAX_SEEDS: usize = 20;

/// Time in which a canceled run must stop, in milliseconds.
const CANCELED_WITHIN_MS: u64 = 2_000;

/// Cancels requests of every form beside others, kills the worker of such requests, terminates it, and
/// restarts the broker, each time in the middle of the replies.
pub(super) fn structured(stage: &mut Stage) -> Result<()> {
    // Kill and drain hit ten replies. On a slow machine one may end first, and a slow hand-over of the
    // client's pieces is no fault.
    stage.plan.rules.taken_up = 8;
    stage.plan.rules.resumed = 6;
    stage.plan.rules.stalled_ms = 1000;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models/tale-7m");
    let lone = Lone::load(&folder)?;
    let beside = ask_each(stage, &lone)?;
    let canceled = cancel_each(stage, beside.clone());
    let killed = ask_each(stage, &lone)?;
    let drained = ask_each(stage, &lone)?;
    let cut_off = ask_each(stage, &lone)?;
    drop(lone);
    stage.settings.grace_s = 0;
    stage.settings.more = format!(
        "[handler.engine]\nmax_rolling_batch_size = 10\n[models]\ntarget = \"{}\"\n",
        folder.canonicalize()?.display()
    );
    stage.start_worker("w1")?;
    cancel(stage, beside, &canceled)?;
    in_the_middle(stage, killed.clone(), |stage, life| stage.kill(base(life)))?;
    until_over(stage, killed)?;
    in_the_middle(stage, drained.clone(), |stage, life| {
        stage.terminate(base(life))?;
        stage.until("the worker to leave", |lines| gone(lines, life, 1))
    })?;
    until_over(stage, drained)?;
    stage.start_worker("w2")?;
    in_the_middle(stage, cut_off, |stage, _| {
        stage.fault("restart", "the broker")?;
        stage.node().restart()
    })
}

/// Submits all these requests, and waits until the runs of the canceled ones have stopped and the others
/// are answered.
fn cancel(stage: &mut Stage, beside: Range<usize>, canceled: &Range<usize>) -> Result<()> {
    stage.fault("cancel", "a request of each form")?;
    stage.start_client_for(&(beside.start..canceled.end).collect::<Vec<_>>())?;
    stage.until("the canceled runs to stop", |lines| {
        canceled.clone().all(|n| was_stopped(lines, n))
    })?;
    until_over(stage, beside)
}

/// Submits these requests, and injects the fault when all replies are in the middle. `fault` takes the
/// process that runs one of them, such as `w1.2`.
fn in_the_middle(
    stage: &mut Stage,
    asks: Range<usize>,
    fault: impl FnOnce(&mut Stage, &str) -> Result<()>,
) -> Result<()> {
    stage.start_client_for(&asks.clone().collect::<Vec<_>>())?;
    let moment = stage.random.between(MOMENT_PIECES.0, MOMENT_PIECES.1);
    stage.until(&format!("piece {moment} of each of requests {asks:?}"), |lines| {
        asks.clone().all(|n| pieces(lines, n) >= moment || is_over(lines, n))
    })?;
    let life = stage.runner_in_the_middle(asks, moment)?;
    fault(stage, &life)
}

fn until_over(stage: &mut Stage, mut asks: Range<usize>) -> Result<()> {
    asks.try_for_each(|n| stage.until_over(n))
}

/// Adds a request of each form, with the reply of an undisturbed engine.
fn ask_each(stage: &mut Stage, lone: &Lone) -> Result<Range<usize>> {
    let first = stage.plan.asks.len();
    for input in inputs() {
        let n = stage.ask(Ask::of_engine(&input)?.within(150_000));
        answer(stage, lone, n)?;
    }
    Ok(first..stage.plan.asks.len())
}

/// Adds requests equal to these, whose callers cancel in mid-stream.
fn cancel_each(stage: &mut Stage, asks: Range<usize>) -> Range<usize> {
    let first = stage.plan.asks.len();
    for n in asks {
        let ask = stage.plan.asks[n].clone();
        let piece = stage.random.between(MOMENT_PIECES.0, MOMENT_PIECES.1);
        let (seed, until) = (ask.seed, Reading::UntilPiece(piece));
        let twin = stage.ask(ask.reading(until).expect(Expect::Cancelled(CANCELED_WITHIN_MS)));
        stage.plan.asks[twin].seed = seed;
    }
    first..stage.plan.asks.len()
}

/// Draws the seed of request `n` until its undisturbed reply is long and whole: the model is free to
/// call the tool again where no token is left for it.
fn answer(stage: &mut Stage, lone: &Lone, n: usize) -> Result<()> {
    for _ in 0..MAX_SEEDS {
        let ask = &mut stage.plan.asks[n];
        let reply = lone.run(&ask.order, ask.seed)?;
        let input = ask.order.input.as_ref();
        let is_whole = input.is_some_and(|input| document::check(input, &reply).is_ok());
        if is_whole && reply.len() >= LEAST_PIECES {
            ask.reply = Some(reply);
            return Ok(());
        }
        ask.seed = stage.random.next() >> 11;
    }
    bail!("no seed of {MAX_SEEDS} makes a long and whole reply to request {n}")
}

/// Returns one input of each form.
fn inputs() -> [TextInput; 5] {
    let schema = JsonSchema::new(days());
    let story = TextInput {
        max_tokens: Some(450),
        temperature: Some(0.8),
        ..TextInput::prompt("Once a bear went to the sea")
    };
    let json = TextInput {
        response_format: Some(ResponseFormat::JsonSchema { json_schema: schema }),
        ..story.clone()
    };
    [
        TextInput { ignore_eos: true, ..story.clone() },
        json.clone(),
        call(),
        TextInput { n: Some(2), min_tokens: Some(250), ..story },
        TextInput { n: Some(2), ..json },
    ]
}

/// Returns the input of a story with a call of a tool in it. The model knows no tools, but each of its
/// stories has the sentence that begins a call.
fn call() -> TextInput {
    let tool = json!({ "name": "introduce", "description": "Introduces an animal.", "parameters": days() });
    let call = json!({
        "type": "object",
        "properties": { "name": { "const": "introduce" }, "arguments": days() },
        "required": ["name", "arguments"],
        "additionalProperties": false,
    });
    let message = "Write a short story about a bear who goes to the sea and meets a seal.";
    TextInput {
        tools: vec![json!({ "type": "function", "function": tool })],
        response_format: Some(ResponseFormat::ToolCalls {
            tool_calls: ToolCallFormat::new("What is your name?", "</call>", call),
        }),
        max_tokens: Some(700),
        temperature: Some(0.8),
        // Spaces between the sentence and its call could go on forever.
        frequency_penalty: Some(1.0),
        ..TextInput::chat([ChatMessage::new("user", message)])
    }
}

/// Returns a schema of at most 441 characters of JSON, so that no document is cut by its length.
fn days() -> Value {
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
            "days": { "type": "array", "items": day, "minItems": DAYS, "maxItems": DAYS },
        },
        "required": ["days"],
        "additionalProperties": false,
    })
}
