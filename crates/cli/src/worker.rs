//! `nsbridge worker`: a worker with the Llama handler, with that for embeddings, or with a judge.

use std::path::PathBuf;
use std::process::ExitCode;

use nsbridge::worker::{Config, Error};
use nsbridge_handler::Batched;
use nsbridge_judged::{Judged, Rules, Scoring};
use nsbridge_llama::{Embedder, Llama};

use crate::failure::report;

/// Takes requests from a model's queue and answers them until SIGTERM or Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nsbridge worker --config examples/worker.toml\n\n\
    Each field of the configuration can be set by NSBRIDGE_<SECTION>__<FIELD> in the environment.\n\
    deploy/worker.example.toml documents them all. With a table [judge], prompts and replies are\n\
    judged: docs/handlers.md, \"Judged replies\".")]
pub(crate) struct Arguments {
    /// Configuration file of the worker.
    #[arg(long, value_name = "FILE", default_value = "worker.toml")]
    config: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let config = Config::read(&arguments.config, std::env::vars()).map_err(Error::from);
    let ended = config.and_then(|config| match Kind::of(&config) {
        Kind::Embeddings => nsbridge::run_async::<Embedder>(config),
        Kind::Judge => nsbridge::run_async::<Batched<Scoring<Rules>>>(as_judge(config)),
        Kind::JudgedText => nsbridge::run_async::<Judged<Llama>>(config),
        Kind::Text => nsbridge::run_async::<Llama>(config),
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error.into()),
    }
}

/// Kind of worker that a configuration describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text of a language model.
    Text,
    /// Text of a language model, with a judge around it.
    JudgedText,
    /// Vectors of texts.
    Embeddings,
    /// Scores of texts by rules.
    Judge,
}

impl Kind {
    /// Returns the kind by `task` in `[handler]` and by the table `[judge]`. Another task is refused with
    /// the options.
    pub(crate) fn of(config: &Config) -> Self {
        match config.handler.get("task").and_then(|task| task.as_str()) {
            Some("embed") => Self::Embeddings,
            Some("judge") => Self::Judge,
            _ if config.judge.is_some() => Self::JudgedText,
            _ => Self::Text,
        }
    }
}

/// Makes the rules of `[judge]` the options of the handler.
fn as_judge(mut config: Config) -> Config {
    let rules = config.judge.take().unwrap_or_default();
    config.handler.remove("task");
    config.handler.extend(rules);
    config
}
