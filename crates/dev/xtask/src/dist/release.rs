//! Version, commit, time and platform of a release.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Version, commit, time and platform of a release.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) version: String,
    pub(super) commit: String,
    /// Time of the commit in seconds since 1970, and time of each file in the artefacts.
    pub(super) epoch: u64,
    /// Time of the commit in the form of RFC 3339.
    pub(super) time: String,
    /// Version of Rust's standard library, which is in the command.
    pub(super) rust: String,
    /// Platform by its name in Rust, such as `x86_64-unknown-linux-gnu`.
    pub(super) triple: String,
}

impl Release {
    /// Reads the release of a source tree for this machine.
    ///
    /// # Errors
    ///
    /// Returns an error if the tree has changes and `allow_dirty` is false, or is no clone.
    pub(super) fn read(tree: &Path, allow_dirty: bool) -> Result<Self> {
        let git = |arguments: &[&str]| said(tree, "git", arguments);
        let changes = git(&["status", "--porcelain"])?;
        ensure!(
            allow_dirty || changes.is_empty(),
            "a release is made from a commit: commit these changes, or pass --allow-dirty\n{changes}"
        );
        let manifest = std::fs::read_to_string(tree.join("Cargo.toml"))?;
        let manifest: toml::Table = manifest.parse().context("reading Cargo.toml")?;
        let version = manifest["workspace"]["package"]["version"].as_str();
        let rustc = said(tree, "rustc", &["-vV"])?;
        let of_rustc = |field: &str| rustc.lines().find_map(|line| line.strip_prefix(field));
        let (triple, rust) = (of_rustc("host: "), of_rustc("release: "));
        Ok(Self {
            version: version.context("the workspace has no version")?.to_owned(),
            commit: git(&["rev-parse", "HEAD"])?,
            epoch: git(&["log", "-1", "--format=%ct"])?
                .parse()
                .context("the time of the commit")?,
            time: git(&["log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"])?,
            rust: rust.context("rustc names no release")?.to_owned(),
            triple: triple.context("rustc names no host")?.to_owned(),
        })
    }

    /// Returns the common beginning of the artefacts' names.
    pub(super) fn name(&self) -> String {
        format!("nsbridge-{}-{}", self.version, self.triple)
    }

    /// Returns true for Linux with glibc.
    pub(super) fn is_for_linux(&self) -> bool {
        self.triple.ends_with("-linux-gnu")
    }

    /// Returns the processor by its name in Rust.
    pub(super) fn processor(&self) -> &str {
        self.triple.split('-').next().unwrap_or_default()
    }

    /// Returns the processor by its name in Debian and in container images.
    ///
    /// # Errors
    ///
    /// Returns an error for another processor than those of a release.
    pub(super) fn architecture(&self) -> Result<&'static str> {
        match self.processor() {
            "x86_64" => Ok("amd64"),
            "aarch64" => Ok("arm64"),
            other => anyhow::bail!("no packages are made for {other}"),
        }
    }
}

/// Returns what a program prints, in UTC.
pub(super) fn said(tree: &Path, program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.current_dir(tree).args(arguments).env("TZ", "UTC");
    let output = command.output().with_context(|| format!("starting {program}"))?;
    let arguments = arguments.join(" ");
    ensure!(
        output.status.success(),
        "{program} {arguments} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
