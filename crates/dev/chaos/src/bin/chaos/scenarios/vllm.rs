//! Faults of a worker while vLLM writes replies of every form.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nsbridge_protocol::{JsonSchema, ResponseFormat, TextInput, ToolCallFormat};
use nsbridge_python::{Engine, EngineName, EngineOptions};
use serde_json::{Map, Value, json};

use crate::engine::Lone;
use crate::follow::{gone, left_with};
use crate::stage::{Stage, base, free_address};

use super::forms::{Forms, call_schema, cancel, days, restart_broker, runner_of_each, until_over};

/// Variable with the interpreter of an environment with vLLM.
const PYTHON: &str = "NSBRIDGE_TEST_VLLM_PYTHON";

/// Variable with the folder of a model.
const MODEL: &str = "NSBRIDGE_TEST_VLLM_MODEL";

/// Number of days that a JSON document lists, each of some 40 tokens.
const DAYS: usize = 2;

/// Time limit of a step: vLLM loads a model in a minute, and in several on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(400);

/// Interval at which a worker reads vLLM's numbers, and as much for a slow machine.
const NUMBERS_EVERY: Duration = Duration::from_secs(2);

/// Number of tokens that vLLM has made for requests.
const TOKENS: &str = "nsbridge_handler_engine_generation_tokens_total";

/// Cancels requests of every form beside others. Others then outlive a kill of their worker, a kill of
/// vLLM's engine process in it, a SIGTERM, and a restart of the broker, one after the other.
pub(super) fn vllm(stage: &mut Stage) -> Result<()> {
    let (python, model) = place()?;
    stage.step_timeout = STEP_TIMEOUT;
    let forms = forms();
    // Kill, end of the engine and drain hit each of them. On a slow machine a reply may end first.
    stage.plan.rules.taken_up = forms.inputs.len();
    stage.plan.rules.resumed = 3 * forms.inputs.len() - 2;
    let options = options(python);
    stage.settings.grace_s = 0;
    let pages = free_address()?;
    stage.settings.more = format!(
        "{}[models]\ntarget = {:?}\n[health]\nlisten = \"{pages}\"\n",
        tables(&options),
        model.canonicalize()?
    );
    // The worker loads beside the reference engine.
    stage.launch_worker("w1")?;
    let lone = Lone::<Engine>::of(options, &model)?;
    let beside = forms.ask_each(stage, &lone)?;
    let canceled = forms.cancel_each(stage, beside.clone());
    let hit = forms.ask_each(stage, &lone)?;
    drop(lone);
    stage.until_taking("w1")?;
    cancel(stage, &beside, &canceled)?;
    until_over(stage, beside.clone())?;
    // Without the cancels it would be the double.
    let whole: usize = stage.plan.asks[beside].iter().map(|ask| ask.lone_run().len()).sum();
    makes_at_most(stage, pages, whole * 3 / 2)?;
    forms.in_the_middle(stage, hit.clone(), |stage, life| stage.kill(base(life)))?;
    let mut moment = forms.moment_pieces.1;
    let mut next = |stage: &mut Stage| {
        moment += stage.random.between(forms.moment_pieces.0, forms.moment_pieces.1);
        runner_of_each(stage, hit.clone(), moment)
    };
    let life = next(stage)?;
    stage.kill_vllm_engine(base(&life))?;
    stage.until("the worker without its engine to leave", |lines| gone(lines, &life, 1))?;
    let status = "exit status: 1";
    stage.until("it to leave with an error", |lines| left_with(lines, &life, status))?;
    let life = next(stage)?;
    stage.terminate(base(&life))?;
    stage.until("the worker to leave", |lines| gone(lines, &life, 1))?;
    next(stage)?;
    restart_broker(stage)
}

/// Returns the interpreter and the model's folder that the environment names.
///
/// # Errors
///
/// Returns an error if the environment does not name them.
#[expect(clippy::disallowed_methods, reason = "the machine has them or not")]
pub(crate) fn place() -> Result<(PathBuf, PathBuf)> {
    let path = |name: &str| {
        let path = std::env::var(name).ok().filter(|path| !path.is_empty());
        let path = path.with_context(|| {
            format!(
                "{name} is not set: the scenario `vllm` needs {PYTHON}, the interpreter of an \
                 environment with vLLM, and {MODEL}, the folder of a model"
            )
        })?;
        anyhow::Ok(std::path::absolute(path)?)
    };
    Ok((path(PYTHON)?, path(MODEL)?))
}

/// Returns the options of the worker's engine and of the reference engine. Texts of half precision
/// depend on the requests beside them too often.
fn options(python: PathBuf) -> EngineOptions {
    let mut options = EngineOptions::new(EngineName::Vllm);
    options.python = python;
    let of_vllm = [
        ("dtype", json!("float32")),
        ("enforce_eager", json!(true)),
        ("max_model_len", json!(2048)),
        ("max_num_seqs", json!(16)),
    ];
    options.options = Map::from_iter(of_vllm.map(|(name, value)| (name.to_owned(), value)));
    options
}

/// Returns the options as tables of a worker's configuration.
fn tables(options: &EngineOptions) -> String {
    let line = |(name, value): (&String, &Value)| format!("{name} = {value}\n");
    let of_vllm: String = options.options.iter().map(line).collect();
    let python = &options.python;
    format!(
        "[handler.engine]\nengine = \"vllm\"\npython = {python:?}\n[handler.engine.options]\n{of_vllm}"
    )
}

/// Checks that vLLM has made at most this many tokens.
fn makes_at_most(stage: &Stage, pages: SocketAddr, most: usize) -> Result<()> {
    sleep(NUMBERS_EVERY);
    let made = stage.metric(pages, TOKENS)?;
    ensure!(
        made <= most as f64,
        "vLLM made {made} tokens beside canceled requests, not {most} at most"
    );
    Ok(())
}

/// Returns one input of each form. One that vLLM continues as a part of the prompt must be greedy.
fn forms() -> Forms {
    let schema = days(DAYS);
    let week = TextInput::prompt("The days: Monday, Tuesday, Wednesday,");
    let call = ToolCallFormat::new(" Sunday", "</call>", call_schema("introduce", &schema));
    let json_schema = JsonSchema::new(schema);
    let json = TextInput {
        response_format: Some(ResponseFormat::JsonSchema { json_schema }),
        max_tokens: Some(250),
        temperature: Some(0.8),
        ..TextInput::prompt("Once a bear went to the sea")
    };
    Forms {
        inputs: vec![
            TextInput {
                max_tokens: Some(120),
                temperature: Some(0.0),
                ignore_eos: true,
                ..week.clone()
            },
            json.clone(),
            TextInput {
                response_format: Some(ResponseFormat::ToolCalls { tool_calls: call }),
                max_tokens: Some(250),
                temperature: Some(0.8),
                ..week
            },
            TextInput { n: Some(2), ..json },
        ],
        least_pieces: 75,
        moment_pieces: (8, 15),
        timeout_ms: 1_200_000,
        canceled_within_ms: 5_000,
    }
}
