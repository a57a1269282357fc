//! `cargo xtask cuda`: builds the worker for NVIDIA GPUs without an installation of CUDA, and checks
//! the compiled kernels.

mod kernels;

use std::env;

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, Cargo, root};
use crate::machine;
use crate::output;

/// Cargo arguments that are used if none are given.
const WORKER: [&str; 6] = ["build", "--release", "-p", "nsbridge-cli", "--features", "cuda,nccl"];

/// Default compute capability. 90 is Hopper: H100, H200.
pub(crate) const CAPABILITY: &str = "90";

/// Runs cargo with CUDA's compiler and these arguments; by default builds the worker. With `check`,
/// checks the compiled kernels instead.
///
/// # Errors
///
/// Returns an error if the compiler is not available, or if cargo or the check fails.
pub(crate) fn run(check: bool, arguments: &[String]) -> Result<()> {
    output::step("CUDA's compiler");
    let target = root().join("target/cuda");
    let cargo = Cargo::here().with("CARGO_TARGET_DIR", &target);
    let toolkit = machine::cuda::Toolkit::ready(&cargo)?;
    let capability = env::var_os("CUDA_COMPUTE_CAP").unwrap_or_else(|| CAPABILITY.into());
    let capability = capability.to_str().context("CUDA_COMPUTE_CAP is no number")?;
    output::step(&format!("for compute capability {capability}, in {}", target.display()));
    let asked: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let arguments = if asked.is_empty() { &WORKER[..] } else { &asked };
    let cargo = toolkit.cargo(cargo, capability);
    if check {
        return kernels::check(&toolkit, &cargo);
    }
    let command = cargo.command(arguments);
    ensure!(cargo::run(command)?, "cargo failed; it says why above");
    Ok(())
}
