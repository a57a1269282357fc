//! The command, built once for all artefacts.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::release::Release;
use crate::cargo::{self, Cargo};
use crate::machine;

/// Oldest glibc that the command runs with, of 2018: RHEL 8, Debian 10, Ubuntu 18.10.
const GLIBC: &str = "2.28";

/// Oldest macOS that the command runs with.
const MACOS: &str = "11.0";

/// Tools from the Python package index.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) python: PathBuf,
    folder: PathBuf,
}

impl Tools {
    /// Installs the tools once per machine.
    pub(super) fn ready() -> Result<Self> {
        let python = machine::dist()?;
        let folder = python.parent().context("Python is in a folder")?.to_owned();
        Ok(Self { python, folder })
    }

    /// Returns the path of a tool.
    pub(super) fn path(&self, tool: &str) -> PathBuf {
        self.folder.join(tool)
    }

    /// Returns `PATH` with the tools first.
    fn paths(&self) -> Result<std::ffi::OsString> {
        let others = env::var_os("PATH").unwrap_or_default();
        let all = [self.folder.clone()].into_iter().chain(env::split_paths(&others));
        env::join_paths(all).context("PATH")
    }
}

/// Returns cargo commands that write no path of this machine and no time of today into what they build.
pub(super) fn cargo(release: &Release, tree: &Path, target: &Path) -> Result<Cargo> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo"))).context("no CARGO_HOME")?;
    let flags = [(tree, "/nsbridge"), (&home, "/cargo")]
        .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    let cargo = Cargo::here()
        .in_tree(tree, target)
        .with("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .with("CARGO_INCREMENTAL", "0")
        .with("NSBRIDGE_COMMIT", &*release.commit)
        .with("SOURCE_DATE_EPOCH", release.epoch.to_string());
    Ok(if release.is_for_linux() { cargo } else { cargo.with("MACOSX_DEPLOYMENT_TARGET", MACOS) })
}

/// Builds the command and returns its path.
///
/// # Errors
///
/// Returns an error if it does not build.
pub(super) fn build(
    cargo: &Cargo,
    tools: &Tools,
    release: &Release,
    target: &Path,
) -> Result<PathBuf> {
    let (subcommand, triple) = if release.is_for_linux() {
        ("zigbuild", format!("{}.{GLIBC}", release.triple))
    } else {
        ("build", release.triple.clone())
    };
    let mut command = cargo.command(&[subcommand, "--release", "--locked", "--target", &triple]);
    command.args(["--package", "nsbridge-cli", "--bin", "nsbridge"]).env("PATH", tools.paths()?);
    ensure!(cargo::run(command)?, "the command nsbridge does not build");
    Ok(target.join(&release.triple).join("release/nsbridge"))
}
