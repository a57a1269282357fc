//! `nsbridge worker`: a worker with the Llama handler, or with that for embeddings.

use std::path::PathBuf;
use std::process::ExitCode;

use nsbridge::worker::{Config, Error};
use nsbridge_llama::{Embedder, Llama};

use crate::failure::report;

/// Takes requests from a model's queue and answers them until SIGTERM or Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nsbridge worker --config examples/worker.toml\n\n\
    Each field of the configuration can be set by NSBRIDGE_<SECTION>__<FIELD> in the environment.\n\
    deploy/worker.example.toml documents them all.")]
pub(crate) struct Arguments {
    /// Configuration file of the worker.
    #[arg(long, value_name = "FILE", default_value = "worker.toml")]
    config: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let config = Config::read(&arguments.config, std::env::vars()).map_err(Error::from);
    let ended = config.and_then(|config| match makes_embeddings(&config) {
        true => nsbridge::run_async::<Embedder>(config),
        false => nsbridge::run_async::<Llama>(config),
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error.into()),
    }
}

/// Returns true if `[handler]` has `task = "embed"`. Another value is refused with the options.
pub(crate) fn makes_embeddings(config: &Config) -> bool {
    config.handler.get("task").and_then(|task| task.as_str()) == Some("embed")
}
