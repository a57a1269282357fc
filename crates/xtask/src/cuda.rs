//! `cargo xtask cuda`: the worker for NVIDIA's GPUs, built where no CUDA is installed.

use std::env;

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, Cargo, root};
use crate::machine;
use crate::say;

/// What is built if nothing is asked for.
const WORKER: [&str; 6] =
    ["build", "--release", "-p", "nsbridge-cli", "--features", "cuda,nccl,flash-attn"];

/// What GPUs are built for if nothing is said. Hopper: H100, H200.
pub(crate) const CAPABILITY: &str = "90";

/// Calls cargo with CUDA's compiler, with these arguments or to build the worker.
///
/// # Errors
///
/// The compiler cannot be had, or cargo fails.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    say::step("CUDA's compiler");
    let target = root().join("target/cuda");
    let cargo = Cargo::here().with("CARGO_TARGET_DIR", &target);
    let toolkit = machine::cuda::Toolkit::ready(&cargo)?;
    let capability = env::var_os("CUDA_COMPUTE_CAP").unwrap_or_else(|| CAPABILITY.into());
    let capability = capability.to_str().context("CUDA_COMPUTE_CAP is no number")?;
    say::step(&format!("for compute capability {capability}, in {}", target.display()));
    let asked: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let arguments = if asked.is_empty() { &WORKER[..] } else { &asked };
    let command = toolkit.cargo(cargo, capability)?.command(arguments);
    ensure!(cargo::run(command)?, "cargo failed; it says why above");
    Ok(())
}
