//! Commands in the repository, cargo's above all.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// How cargo is called for a chore.
#[derive(Debug, Default)]
pub(crate) struct Cargo {
    /// Another tree than ours.
    tree: Option<PathBuf>,
    environment: Vec<(&'static str, OsString)>,
}

impl Cargo {
    /// As a person would call it here.
    pub(crate) fn here() -> Self {
        Self::default()
    }

    /// The same with a variable more.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// The same in another tree, with a target folder of its own.
    pub(crate) fn in_tree(&self, tree: &Path, target: &Path) -> Self {
        let tree = Some(tree.to_owned());
        Self { tree, environment: self.environment.clone() }.with("CARGO_TARGET_DIR", target)
    }

    /// `cargo` with these arguments, in the tree's root.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = in_root(program);
        command.current_dir(self.tree.as_deref().unwrap_or(&root()));
        // What `cargo run` sets for us is not for another cargo: some build scripts look at these,
        // and would run again each time that a chore and a person take turns.
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

    /// Whether cargo has this subcommand.
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

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
    ours.ancestors().nth(2).unwrap_or(ours).to_owned()
}

/// A program that runs in the repository's root.
pub(crate) fn in_root(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// Whether a command runs and succeeds; what it prints is nobody's concern.
pub(crate) fn succeeds(mut command: Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Runs a command and tells whether it succeeded.
///
/// # Errors
///
/// It could not be started.
pub(crate) fn run(mut command: Command) -> Result<bool> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("starting {program}"))?;
    Ok(status.success())
}

/// The folder for what is made once per machine.
///
/// # Errors
///
/// The user has no home.
pub(crate) fn cache() -> Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME").filter(|dir| Path::new(dir).is_absolute());
    let base = base.map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cache")));
    Ok(base.context("no cache folder: set HOME or XDG_CACHE_HOME")?.join("nsbridge"))
}

#[cfg(test)]
mod tests {
    use super::{is_of_cargo_run, root};

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("Cargo.lock").is_file());
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
