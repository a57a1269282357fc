//! `cargo xtask lint`: all checks that do not run tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::{self, Cargo, in_root, root};
use crate::cuda;
use crate::machine::cuda::Toolkit;
use crate::{alerts, api, boards, book, output, packages, prose};

/// Folders with sources in other languages than Rust.
const FOLDERS: [&str; 5] = ["crates", "deploy", "docs", "examples", "python"];

pub(crate) fn run(cargo: &Cargo) -> Result<()> {
    let mut failed = Vec::new();
    for (name, command) in checks(cargo)? {
        output::step(name);
        if !cargo::run(command)? {
            failed.push(name);
        }
    }
    let own: [(&str, &dyn Fn() -> Result<()>); 5] = [
        ("prose", &prose::check),
        ("alerts", &alerts::check),
        ("boards", &boards::run),
        ("book", &book::run),
        ("api", &|| api::run(cargo, false)),
    ];
    for (name, check) in own {
        output::step(name);
        if let Err(wrong) = check() {
            output::line(&format!("{wrong:#}"));
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn checks(cargo: &Cargo) -> Result<Vec<(&'static str, Command)>> {
    let features = cargo.features(&[])?;
    let mut clippy = cargo.command(&["clippy", "--workspace", "--all-targets"]);
    clippy.args(["--features", &features, "--", "-D", "warnings"]);
    let mut doc = cargo.command(&["doc", "--no-deps", "--workspace", "--features", &features]);
    doc.env("RUSTDOCFLAGS", "-Dwarnings");
    let mut checks = vec![
        ("fmt", cargo.command(&["fmt", "--all", "--check"])),
        ("clippy", clippy),
        ("clippy of the benches", clippy_of_benches(cargo)),
        ("clippy of what is for GPUs", clippy_for_gpus(cargo)?),
        ("doc", doc),
        ("packages", packages::pack(cargo)?),
        ("python", compile_python()?),
    ];
    checks.extend(optional(cargo));
    Ok(checks)
}

/// Returns a clippy command for the benches with the features that they are built with. With all
/// features, other packages would enable features that the benches lack.
fn clippy_of_benches(cargo: &Cargo) -> Command {
    let mut clippy = cargo.command(&["clippy", "-p", "nsbridge-bench", "--all-features"]);
    clippy.args(["--bins", "--", "-D", "warnings"]);
    clippy
}

/// Returns a clippy command for the GPU code, which normally requires CUDA's compiler, with a
/// stand-in for that compiler.
fn clippy_for_gpus(cargo: &Cargo) -> Result<Command> {
    // The target folder differs from that of real builds, because their build scripts would take
    // these empty kernels for real ones.
    let target = cargo.target_dir().join("lint-for-gpus");
    let toolkit = Toolkit::stand_in(&target.join("toolkit"))?;
    let cargo = cargo.clone().with("CARGO_TARGET_DIR", target);
    let mut clippy = toolkit.cargo(cargo, cuda::CAPABILITY).command(&["clippy", "--all-targets"]);
    let llama = ["cuda", "nccl"].map(|feature| format!("nsbridge-llama/{feature}"));
    let features = [&llama.join(","), "nsbridge-gpu/cuda"].join(",");
    clippy.args(["-p", "nsbridge-llama", "-p", "nsbridge-gpu", "--features", &features]);
    clippy.args(["--", "-D", "warnings"]);
    Ok(clippy)
}

fn compile_python() -> Result<Command> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        python_files(&root().join(folder), &mut files)?;
    }
    let mut command = in_root("python3");
    command.args(["-m", "compileall", "-q", "-f"]).args(files);
    // The bytecode goes elsewhere, so the source folders stay clean.
    command.env("PYTHONPYCACHEPREFIX", root().join("target/python"));
    Ok(command)
}

fn python_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = folder.read_dir().with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_dir() && !hidden {
            python_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "py") {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns the checks whose tool is installed and whose configuration file exists.
fn optional(cargo: &Cargo) -> Vec<(&'static str, Command)> {
    let tools = [
        ("typos", cargo::has("typos"), Some(".typos.toml"), in_root("typos")),
        ("deny", cargo.has("deny"), Some(".deny.toml"), cargo.command(&["deny", "check"])),
        ("machete", cargo.has("machete"), None, cargo.command(&["machete"])),
    ];
    let mut checks = Vec::new();
    for (name, installed, settings, command) in tools {
        let missing = settings.filter(|file| !root().join(file).exists());
        match missing {
            _ if !installed => output::line(&format!("{name} is not installed here: not checked")),
            Some(file) => output::line(&format!("{name} has no {file} here: not checked")),
            None => checks.push((name, command)),
        }
    }
    checks
}
