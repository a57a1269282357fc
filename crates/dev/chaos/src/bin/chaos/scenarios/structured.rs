//! Faults of workers while the LLM engine writes replies of every form: text, JSON of a schema, a call
//! of a tool, and several replies to one prompt.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use nsbridge_protocol::{ChatMessage, JsonSchema, ResponseFormat, TextInput, ToolCallFormat};
use serde_json::json;

use crate::engine::Lone;
use crate::follow::gone;
use crate::stage::{Stage, base};

use super::forms::{Forms, call_schema, cancel, days, restart_broker, until_over};

/// Number of days that a JSON document lists, each of some 33 tokens: no document is cut by its length.
const DAYS: usize = 10;

/// Time limit of a step: a machine with much else to do takes minutes for the replies.
const STEP_TIMEOUT: Duration = Duration::from_secs(200);

/// Cancels requests of every form beside others, kills the worker of such requests, terminates it, and
/// restarts the broker, each time in the middle of the replies.
pub(super) fn structured(stage: &mut Stage) -> Result<()> {
    // Kill and drain hit ten replies. On a slow machine one may end first, and a slow hand-over of the
    // client's pieces is no fault.
    stage.plan.rules.taken_up = 8;
    stage.plan.rules.resumed = 6;
    stage.plan.rules.stalled_ms = 1000;
    stage.step_timeout = STEP_TIMEOUT;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models/tale-7m");
    let forms = forms();
    let lone = Lone::load(&folder)?;
    let beside = forms.ask_each(stage, &lone)?;
    let canceled = forms.cancel_each(stage, beside.clone());
    let killed = forms.ask_each(stage, &lone)?;
    let drained = forms.ask_each(stage, &lone)?;
    let cut_off = forms.ask_each(stage, &lone)?;
    drop(lone);
    stage.settings.grace_s = 0;
    stage.settings.more = format!(
        "[handler.engine]\nmax_rolling_batch_size = 10\n[models]\ntarget = \"{}\"\n",
        folder.canonicalize()?.display()
    );
    stage.start_worker("w1")?;
    cancel(stage, &beside, &canceled)?;
    until_over(stage, beside)?;
    forms.in_the_middle(stage, killed.clone(), |stage, life| stage.kill(base(life)))?;
    until_over(stage, killed)?;
    forms.in_the_middle(stage, drained.clone(), |stage, life| {
        stage.terminate(base(life))?;
        stage.until("the worker to leave", |lines| gone(lines, life, 1))
    })?;
    until_over(stage, drained)?;
    stage.start_worker("w2")?;
    forms.in_the_middle(stage, cut_off, |stage, _| restart_broker(stage))
}

/// Returns one input of each form.
fn forms() -> Forms {
    let story = TextInput {
        max_tokens: Some(450),
        temperature: Some(0.8),
        ..TextInput::prompt("Once a bear went to the sea")
    };
    let json_schema = JsonSchema::new(days(DAYS));
    let json = TextInput {
        response_format: Some(ResponseFormat::JsonSchema { json_schema }),
        ..story.clone()
    };
    Forms {
        inputs: vec![
            TextInput { ignore_eos: true, ..story.clone() },
            json.clone(),
            call(),
            TextInput { n: Some(2), min_tokens: Some(250), ..story },
            TextInput { n: Some(2), ..json },
        ],
        least_pieces: 200,
        moment_pieces: (40, 90),
        timeout_ms: 300_000,
        canceled_within_ms: 4_000,
    }
}

/// Returns the input of a story with a call of a tool in it. The model knows no tools, but each of its
/// stories has the sentence that begins a call.
fn call() -> TextInput {
    let arguments = days(DAYS);
    let call = call_schema("introduce", &arguments);
    let tool = json!({
        "name": "introduce", "description": "Introduces an animal.", "parameters": arguments,
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
