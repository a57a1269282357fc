//! `nsbridge handler`: checks of a handler in Python, and the schema of its inputs.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use clap::Subcommand;
use nsbridge::worker::{LogConfig, LogFormat};
use nsbridge_handler::{Models, testing};
use nsbridge_python::{Options, Python};
use nsbridge_store::{Location, Store, StoreConfig};
use serde_json::Value;

use crate::failure::note;
use crate::place::{json, wait_for, weights};
use crate::terminal::print_line;
use crate::worker::PythonSettings;

/// Checks a handler in Python, or prints the schema of its inputs.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  nsbridge handler check model.py --input '\"good morning\"'\n  \
    nsbridge handler schema model.py > input.json"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(Check),
    Schema(Schema),
}

/// Prints the JSON schema of a model's inputs, which its type hints give. `load` is not called.
///
/// A model without hints, or whose hint is `Any`, takes any JSON: its schema is `true`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nsbridge handler schema model.py > input.json")]
struct Schema {
    /// File of the model, or FILE:CLASS.
    file: PathBuf,
    /// Python interpreter.
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
}

/// Answers one input, and tests the handler against the contract of `docs/handlers.md`.
///
/// The handler is called about twenty times: twice with the same input, several times at once, with a
/// slow client, with a stop, and resumed in the middle. The pieces of the first reply are printed as
/// JSON. What the model prints, and the tracebacks of its exceptions, go to stderr if the check
/// fails. The variables `NSBRIDGE_HANDLER__…` count as they do for a worker.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nsbridge handler check model.py --input '\"good morning\"'")]
struct Check {
    /// File of the model, or FILE:CLASS.
    file: PathBuf,
    /// Input whose reply has about ten pieces.
    #[arg(long, value_name = "JSON", value_parser = json)]
    input: Value,
    /// Python interpreter [default: python3]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Number of calls that run at the same time in a process [default: 1]
    #[arg(long, value_name = "N")]
    slots: Option<u16>,
    /// Maximum number of inputs in a batch, for a model with `run` [default: 8]
    #[arg(long, value_name = "N")]
    batch_size: Option<u16>,
    /// Options of the model: the second argument of `load`, a JSON object.
    #[arg(long, value_name = "JSON", value_parser = json)]
    options: Option<Value>,
    /// Files of a model, by the name under which `load` finds them; repeatable. A folder or
    /// s3://bucket/prefix.
    #[arg(long, value_name = "NAME=PLACE", value_parser = weights)]
    weights: Vec<(String, Location)>,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        Command::Check(check) => check_model(check),
        Command::Schema(schema) => print_schema(schema),
    }
}

fn print_schema(arguments: Schema) -> Result<ExitCode> {
    let mut options = Options::new(arguments.file);
    options.python = arguments.python;
    let schema =
        wait_for(async { nsbridge_python::schema(options).await.map_err(|error| plain(&error)) })?;
    print_line(&serde_json::to_string_pretty(&schema.unwrap_or(Value::Bool(true)))?)?;
    Ok(ExitCode::SUCCESS)
}

fn plain(error: &nsbridge_handler::Error) -> anyhow::Error {
    anyhow!("{error}")
}

fn check_model(check: Check) -> Result<ExitCode> {
    nsbridge::log_to_stderr(&LogConfig::new("info", LogFormat::Text))?;
    let output = tempfile::NamedTempFile::new().context("making a file for the model's output")?;
    let Check { file, input, python, slots, batch_size, options, weights } = check;
    // The models read from the store for as long as the handler does.
    let (store, models) = wait_for(models(weights))?;
    let mut settings = PythonSettings { slots, batch_size, options }.of_model(&file)?;
    settings.python = python.unwrap_or(settings.python);
    settings.output = Some(output.path().to_owned());
    let checked = answer_and_check(settings, models, &input);
    drop(store);
    if checked.is_err() {
        let printed = fs::read(output.path()).unwrap_or_default();
        String::from_utf8_lossy(&printed).lines().for_each(note);
    }
    checked?;
    note(&format!("{} keeps its contract", file.display()));
    Ok(ExitCode::SUCCESS)
}

fn answer_and_check(options: Options, models: Models, input: &Value) -> Result<()> {
    let python: Arc<Python> = testing::load(options, models).map_err(|error| plain(&error))?;
    if let Some(schema) = python.schema() {
        note(&format!("the inputs have the schema {schema}"));
    }
    let (pieces, _) = testing::answer(&python, input, 7, &[]).map_err(|error| plain(&error))?;
    pieces.iter().try_for_each(|piece| print_line(piece.get()))?;
    Ok(testing::check(&python, input)?)
}

pub(crate) async fn models(weights: Vec<(String, Location)>) -> Result<(Store, Models)> {
    let store = Store::open(&StoreConfig::default())?;
    let mut models = Vec::new();
    for (name, location) in weights {
        models.push((name, store.model(&location.into()).await?.model));
    }
    Ok((store, models.into_iter().collect()))
}
