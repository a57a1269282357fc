//! `nsbridge import-vllm`: the configuration of a worker for a model that vLLM serves.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use nsbridge_import_vllm::Request;
use nsbridge_protocol::ModelName;

use super::Output;

/// Writes the worker.toml of a model that vLLM serves, and reports what becomes of each argument.
///
/// The report goes to stderr: one line for each argument, and what is left to do before the worker
/// starts. An argument of vLLM's HTTP server has the field of gateway.toml that stands for it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  nsbridge import-vllm --out worker.toml -- vllm serve Qwen/Qwen3-8B \
    --tensor-parallel-size 2\n  nsbridge import-vllm --args deployment.yaml > worker.toml"
)]
pub(crate) struct Arguments {
    /// Command of vLLM's server, with `vllm serve` or without; a --config in it is read, too.
    #[arg(value_name = "COMMAND", last = true, required_unless_present_any = ["args", "config"])]
    command: Vec<String>,
    /// File with the command: a line or script of a shell, a YAML list, or the file of a container.
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    args: Option<PathBuf>,
    /// vLLM's own YAML file of arguments; a flag of the command wins over it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of the model [default: that of --served-model-name, or that of the model]
    #[arg(long, value_name = "NAME")]
    name: Option<ModelName>,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { command, args, config, name, output } = arguments;
    let request = Request { words: command, file: args, config, name };
    output.write(&nsbridge_import_vllm::import(&request)?)
}
