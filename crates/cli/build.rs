//! Tells the binary of which commit, for which target and on which day it was built, for `--version`.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Variable that names the commit of a release.
const COMMIT: &str = "NSBRIDGE_COMMIT";

/// Variable with the time of that commit, in seconds.
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// File of a published crate that names its commit.
const VCS_INFO: &str = ".cargo_vcs_info.json";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    [COMMIT, EPOCH].iter().for_each(|name| println!("cargo::rerun-if-env-changed={name}"));
    let commit = of_release().or_else(of_published_crate).or_else(of_git);
    // No names that begin with NSBRIDGE_: `cargo run` sets these variables, too, and the command takes such for its
    // configuration.
    println!("cargo::rustc-env=BUILD_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env=BUILD_TARGET={}", variable("TARGET").unwrap_or_default());
}

/// Returns the commit that the environment names, and its day.
fn of_release() -> Option<String> {
    let commit = variable(COMMIT)?;
    let time = variable(EPOCH)
        .and_then(|seconds| jiff::Timestamp::from_second(seconds.parse().ok()?).ok());
    Some(match time {
        Some(time) => format!("{commit} ({})", time.strftime("%Y-%m-%d")),
        None => commit,
    })
}

/// Returns the commit that cargo wrote into a published crate.
fn of_published_crate() -> Option<String> {
    let text = fs::read_to_string(VCS_INFO).ok()?;
    println!("cargo::rerun-if-changed={VCS_INFO}");
    let (_, after) = text.split_once("\"sha1\"")?;
    after.split('"').nth(1).map(str::to_owned)
}

/// Returns the commit of the repository that this crate is in, and its day.
fn of_git() -> Option<String> {
    // Sources without a repository of their own may be unpacked inside another one.
    git(&["rev-parse", "--show-prefix"]).filter(|prefix| prefix == "crates/cli/")?;
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for file in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let path = git(&["rev-parse", "--git-path", file]);
        // Cargo runs this script in each build if a file is not there.
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["log", "-1", "--format=%H (%cs)"])
}

/// Returns the output of a git command, or `None` if it fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Returns a variable that is not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name)?.into_string().ok().filter(|value| !value.is_empty())
}
