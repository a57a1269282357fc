//! Commands that run in the repository, mainly cargo.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Features that require CUDA's compiler.
const FOR_GPUS: [&str; 2] = ["cuda", "nccl"];

/// Source tree and environment of cargo commands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cargo {
    /// Source tree, if not this repository.
    tree: Option<PathBuf>,
    environment: Vec<(&'static str, OsString)>,
}

impl Cargo {
    /// Creates cargo commands for this repository.
    pub(crate) fn here() -> Self {
        Self::default()
    }

    /// Adds an environment variable.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Switches to another source tree with a target folder of its own.
    pub(crate) fn in_tree(&self, tree: &Path, target: &Path) -> Self {
        let tree = Some(tree.to_owned());
        Self { tree, environment: self.environment.clone() }.with("CARGO_TARGET_DIR", target)
    }

    /// Returns the root of the source tree.
    pub(crate) fn tree(&self) -> PathBuf {
        self.tree.clone().unwrap_or_else(root)
    }

    /// Returns a `cargo` command with these arguments, in the root of the source tree.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = in_root(program);
        command.current_dir(self.tree());
        // The variables that `cargo run` sets are removed. Some build scripts depend on them, and
        // would rerun whenever chores and direct cargo calls alternate.
        for (name, _) in env::vars_os() {
            if is_of_cargo_run(&name) {
                command.env_remove(name);
            }
        }
        if std::io::stderr().is_terminal() && env::var_os("CARGO_TERM_COLOR").is_none() {
            command.env("CARGO_TERM_COLOR", "always");
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value))).args(arguments);
        command
    }

    /// Returns the target folder.
    pub(crate) fn target_dir(&self) -> PathBuf {
        let named = self.environment.iter().rfind(|(name, _)| *name == "CARGO_TARGET_DIR");
        let named = named.map(|(_, folder)| folder.clone());
        let named = named.or_else(|| env::var_os("CARGO_TARGET_DIR"));
        root().join(named.unwrap_or_else(|| "target".into()))
    }

    /// Returns cargo's metadata of the workspace. The arguments in `more` can include its
    /// dependencies.
    ///
    /// # Errors
    ///
    /// Returns an error if cargo cannot read a manifest; cargo prints the reason.
    pub(crate) fn metadata(&self, more: &[&str]) -> Result<Value> {
        let mut command = self.command(&["metadata", "--format-version", "1"]);
        let output = command.args(more).stderr(Stdio::inherit()).output();
        let output = output.context("starting cargo")?;
        ensure!(output.status.success(), "cargo metadata failed");
        serde_json::from_slice(&output.stdout).context("reading what cargo metadata says")
    }

    /// Returns the features of these packages, or of all, for `--features`. Omits those that
    /// require CUDA's compiler.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`metadata`](Self::metadata).
    pub(crate) fn features(&self, packages: &[&str]) -> Result<String> {
        let metadata = self.metadata(&["--no-deps"])?;
        let mut all = Vec::new();
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let name = package["name"].as_str().unwrap_or_default();
            if packages.is_empty() || packages.contains(&name) {
                let features = package["features"].as_object().into_iter().flatten();
                let ours = features.map(|(feature, _)| feature.as_str());
                let ours = ours.filter(|feature| !FOR_GPUS.contains(feature));
                all.extend(ours.map(|feature| format!("{name}/{feature}")));
            }
        }
        Ok(all.join(","))
    }

    /// Builds the command `nsbridge` for release and returns its path.
    ///
    /// # Errors
    ///
    /// Returns an error if it does not build.
    pub(crate) fn release(&self) -> Result<PathBuf> {
        let build = self.command(&["build", "--release", "--package", "nsbridge-cli"]);
        ensure!(run(build)?, "the command nsbridge does not build");
        Ok(self.target_dir().join("release/nsbridge"))
    }

    /// Returns a command that runs a program of the dev profile, which is built, in the root of the
    /// source tree.
    pub(crate) fn built(&self, program: &str) -> Command {
        let mut command = in_root(self.target_dir().join("debug").join(program));
        command.current_dir(self.tree());
        command
    }

    /// Returns true if cargo has this subcommand.
    pub(crate) fn has(&self, subcommand: &str) -> bool {
        succeeds(self.command(&[subcommand, "--version"]))
    }
}

fn is_of_cargo_run(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
    let names = ["CARGO_PRIMARY_PACKAGE", "OUT_DIR", "LD_LIBRARY_PATH"];
    prefixes.iter().any(|prefix| name.starts_with(prefix)) || names.contains(&name)
}

/// Returns the repository's root.
pub(crate) fn root() -> PathBuf {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
    ours.ancestors().nth(3).unwrap_or(ours).to_owned()
}

/// Returns a command that runs in the repository's root.
pub(crate) fn in_root(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// Runs a command without output and returns true if it succeeds.
pub(crate) fn succeeds(mut command: Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Returns true if this program is installed: if it tells its version.
pub(crate) fn has(program: impl AsRef<OsStr>) -> bool {
    let mut command = Command::new(program);
    command.arg("--version");
    succeeds(command)
}

/// Runs a command and returns true if it succeeds.
///
/// # Errors
///
/// Returns an error if the command could not be started.
pub(crate) fn run(mut command: Command) -> Result<bool> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("starting {program}"))?;
    Ok(status.success())
}

/// Returns the folder for everything that is created once per machine.
///
/// # Errors
///
/// Returns an error if the user has no home folder.
pub(crate) fn cache() -> Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME").filter(|dir| Path::new(dir).is_absolute());
    let base = base.map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cache")));
    Ok(base.context("no cache folder: set HOME or XDG_CACHE_HOME")?.join("nsbridge"))
}

#[cfg(test)]
mod tests {
    use super::{Cargo, is_of_cargo_run, root};

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("Cargo.lock").is_file());
    }

    #[test]
    fn features_are_all_but_those_for_gpus() {
        let all = Cargo::here().features(&[]).unwrap();
        assert!(all.contains("nsbridge-queue/amqp,") && all.contains("nsbridge-testkit/system"));
        assert!(!all.contains("cuda") && !all.contains("nccl"), "{all}");
        let some = Cargo::here().features(&["nsbridge-queue", "xtask"]).unwrap();
        assert_eq!(some, "nsbridge-queue/amqp,nsbridge-queue/default,nsbridge-queue/testing");
    }

    #[test]
    fn cargo_builds_where_it_was_told_to_last() {
        let cargo = Cargo::here().with("CARGO_TARGET_DIR", "/a").with("CARGO_TARGET_DIR", "b");
        assert_eq!(cargo.target_dir(), root().join("b"));
    }

    #[test]
    fn only_what_cargo_run_adds_is_taken_away() {
        for ours in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR", "OUT_DIR", "LD_LIBRARY_PATH"] {
            assert!(is_of_cargo_run(ours.as_ref()), "{ours}");
        }
        for theirs in ["CARGO", "CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_NET_OFFLINE", "PATH"] {
            assert!(!is_of_cargo_run(theirs.as_ref()), "{theirs}");
        }
    }
}
