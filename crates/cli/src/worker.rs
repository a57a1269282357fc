//! `nsbridge worker`: a worker with the Llama handler.

use std::path::PathBuf;
use std::process::ExitCode;

use nsbridge::worker::Config;
use nsbridge_llama::Llama;

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
    nsbridge::run_async::<Llama>(Config::read(&arguments.config, std::env::vars()))
}
