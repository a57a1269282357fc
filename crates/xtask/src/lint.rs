//! `cargo xtask lint`: everything that is read rather than run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::{self, Cargo, in_root, root, succeeds};
use crate::say;

/// The folders with sources in other languages than Rust.
const FOLDERS: [&str; 4] = ["crates", "deploy", "docs", "examples"];

pub(crate) fn run(cargo: &Cargo) -> Result<()> {
    let mut failed = Vec::new();
    for (name, command) in checks(cargo)? {
        say::step(name);
        if !cargo::run(command)? {
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn checks(cargo: &Cargo) -> Result<Vec<(&'static str, Command)>> {
    let everything = ["--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
    let mut clippy = cargo.command(&["clippy"]);
    clippy.args(everything);
    let mut doc = cargo.command(&["doc", "--no-deps", "--workspace", "--all-features"]);
    doc.env("RUSTDOCFLAGS", "-Dwarnings");
    let mut checks = vec![
        ("fmt", cargo.command(&["fmt", "--all", "--check"])),
        ("clippy", clippy),
        ("doc", doc),
        ("python", compile_python()?),
    ];
    checks.extend(optional(cargo));
    Ok(checks)
}

fn compile_python() -> Result<Command> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        python_files(&root().join(folder), &mut files)?;
    }
    let mut command = in_root("python3");
    command.args(["-m", "compileall", "-q", "-f"]).args(files);
    // The sources' folders stay as they are.
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

/// What is checked where the tool is installed and was told what to accept here.
fn optional(cargo: &Cargo) -> Vec<(&'static str, Command)> {
    let mut typos = in_root("typos");
    typos.arg("--version");
    let tools = [
        ("typos", succeeds(typos), Some(".typos.toml"), in_root("typos")),
        ("deny", cargo.has("deny"), Some(".deny.toml"), cargo.command(&["deny", "check"])),
        ("machete", cargo.has("machete"), None, cargo.command(&["machete"])),
    ];
    let mut checks = Vec::new();
    for (name, installed, settings, command) in tools {
        let missing = settings.filter(|file| !root().join(file).exists());
        match missing {
            _ if !installed => say::line(&format!("{name} is not installed here: not checked")),
            Some(file) => say::line(&format!("{name} has no {file} here: not checked")),
            None => checks.push((name, command)),
        }
    }
    checks
}
