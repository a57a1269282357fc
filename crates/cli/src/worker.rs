//! `nsbridge worker`: a worker with the Llama handler.

use std::path::PathBuf;
use std::process::ExitCode;

use nsbridge::worker::{Config, Error};
use nsbridge_llama::Llama;

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
    match config.and_then(nsbridge::run_async::<Llama>) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error.into()),
    }
}
