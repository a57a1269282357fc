//! `nsbridge parity`: compares a model's logits with those of another implementation.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, ensure};
use clap::Subcommand;
use nsbridge_handler::source::LoadProgress;
use nsbridge_llama::{Format, KvFormat, parity};
use serde_json::json;

use crate::failure::note;
use crate::progress::{Display, Shown};
use crate::terminal::print_line;

/// Compares a model's logits with those of another program or machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n\
    \x20 nsbridge parity check --model ./tale-7m --reference lab.safetensors --tolerance 1e-3\n\
    \x20 nsbridge parity record --model ./tale-7m --reference lab.safetensors --out ours.safetensors\n\n\
    A reference is a safetensors file with `tokens` [n] (i64) and `logits` [n, vocabulary] (f32),\n\
    made by any framework, or by `record` on another machine.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Writes the logits of a model for the tokens of a reference.
    Record {
        #[command(flatten)]
        model: ModelArguments,
        /// Reference file whose tokens are run.
        #[arg(long)]
        reference: PathBuf,
        /// File for the logits.
        #[arg(long)]
        out: PathBuf,
    },
    /// Compares a model's logits with a reference; fails if they differ by more than the tolerance.
    Check {
        #[command(flatten)]
        model: ModelArguments,
        /// Reference file with the expected logits.
        #[arg(long)]
        reference: PathBuf,
        /// Maximum absolute difference of a logit.
        #[arg(long, default_value_t = 1e-3)]
        tolerance: f32,
        /// Prints one JSON object to stdout instead of text.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct ModelArguments {
    /// Folder with the model's files, or a GGUF file.
    #[arg(long)]
    model: PathBuf,
    /// Quantizes the matrices, like the worker option of this name.
    #[arg(long, value_parser = ["q8_0"])]
    quantize: Option<String>,
    /// Format of the KV cache, like the worker option of this name. bf16 takes half the memory.
    #[arg(long, value_parser = ["f32", "bf16"], default_value = "f32")]
    kv_cache_dtype: String,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        Command::Record { model, reference, out } => {
            let reference = parity::Reference::read(&reference)?;
            let tokens = reference.tokens.len();
            let mut model = open(&model, tokens, Display::of_stderr())?;
            let shown = computing(tokens, Display::of_stderr());
            let recorded = parity::Reference::record(&mut model, &reference.tokens);
            drop(shown);
            recorded.map_err(|error| anyhow!("{error}"))?.write(&out)?;
            note(&format!("{} holds the logits", out.display()));
            Ok(ExitCode::SUCCESS)
        }
        Command::Check { model, reference, tolerance, json } => {
            ensure!(tolerance >= 0.0, "--tolerance must be a number from 0 on");
            check(&model, &reference, tolerance, json)
        }
    }
}

fn check(
    model: &ModelArguments,
    reference: &Path,
    tolerance: f32,
    as_json: bool,
) -> Result<ExitCode> {
    let reference = parity::Reference::read(reference)?;
    let tokens = reference.tokens.len();
    let display = Display::unless(as_json);
    let mut model = open(model, tokens, display)?;
    let shown = computing(tokens, display);
    let held = reference.check_against(&mut model);
    drop(shown);
    let parity = held.map_err(|error| anyhow!("{error}"))?;
    let parity::Parity { largest, after, mismatches, divergence, .. } = parity;
    let equal = largest <= tolerance;
    if as_json {
        let figures = json!({
            "tokens": tokens, "max_abs_difference": largest, "after_tokens": after,
            "argmax_mismatches": mismatches, "mean_kl": divergence, "within_tolerance": equal
        });
        print_line(&figures.to_string())?;
    } else {
        print_line(&format!("{tokens} tokens"))?;
        print_line(&format!("largest difference  {largest:.3e}, after {after} tokens"))?;
        print_line(&format!("likeliest differs   {mismatches} times"))?;
        print_line(&format!("mean KL divergence  {divergence:.3e} nats"))?;
    }
    if !equal {
        note(&format!("the largest difference is above the tolerance of {tolerance:e}"));
    }
    Ok(if equal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn computing(tokens: usize, display: Display) -> Shown {
    Shown::of_unknown(format!("computing the logits of {tokens} tokens"), display)
}

fn open(
    arguments: &ModelArguments,
    tokens: usize,
    display: Display,
) -> Result<nsbridge_llama::Model> {
    let progress = LoadProgress::default();
    let files = nsbridge_handler::Model::at(&arguments.model).tracked(&progress);
    let _shown =
        Shown::of_load(format!("loading {}", arguments.model.display()), display, progress);
    let format = arguments.quantize.as_ref().map(|_| Format::Q8_0);
    let kv = match arguments.kv_cache_dtype.as_str() {
        "bf16" => KvFormat::Bf16,
        _ => KvFormat::F32,
    };
    Ok(parity::open(&files, tokens, format, kv)?)
}
