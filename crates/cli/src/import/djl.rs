//! `nsbridge import-djl`: the configuration of a worker for a model of DJLServing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use nsbridge_protocol::ModelName;

use super::Output;

/// Writes the worker.toml of a model of DJLServing, and reports what becomes of each option.
///
/// The report goes to stderr: one line for each option, and what is left to do before the worker
/// starts.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  nsbridge import-djl llama/serving.properties --out worker.toml\n  \
    nsbridge import-djl --env container.env --model llama > worker.toml\n\n\
    docs/from-djl.md has each option and what becomes of it."
)]
pub(crate) struct Arguments {
    /// File serving.properties, or the folder of the model.
    #[arg(value_name = "FILE", required_unless_present_any = ["env", "environment"])]
    file: Option<PathBuf>,
    /// File with the container's variables, such as OPTION_DTYPE=fp16, one on a line.
    #[arg(long, value_name = "FILE")]
    env: Option<PathBuf>,
    /// Reads the variables of DJLServing from this command's environment too.
    #[arg(long)]
    environment: bool,
    /// Name of the model [default: `option.served_model_name`, or that of the model or of its folder]
    #[arg(long, value_name = "NAME")]
    model: Option<ModelName>,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { file, env, environment, model, output } = arguments;
    // A variable that is no UTF-8 is none of DJLServing's.
    let read = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let process = std::env::vars_os().filter(|_| environment).filter_map(read);
    let imported = nsbridge_import_djl::import(file.as_deref(), env.as_deref(), process, model)?;
    output.write(&imported)
}
