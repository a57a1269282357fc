//! Files of the repository, and the assertion that a list of problems is empty.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::de::DeserializeOwned;

/// Returns the repository's root.
pub(crate) fn root() -> &'static Path {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
    ours.ancestors().nth(3).expect("this crate lies three folders below the root")
}

/// Returns the text of a file, by its path from the root.
#[track_caller]
pub(crate) fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns what `cargo metadata` says with these arguments.
#[track_caller]
pub(crate) fn metadata<T: DeserializeOwned>(arguments: &[&str]) -> T {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1"]).args(arguments).current_dir(root());
    let output = cargo.output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo writes JSON")
}

/// Returns all text files except for build output and git's own files.
pub(crate) fn texts() -> Vec<(String, String)> {
    let mut found = Vec::new();
    walk(root(), &mut found);
    assert!(found.len() > 100, "there are only {} files", found.len());
    found
}

fn walk(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in folder.read_dir().expect("a folder that was just listed") {
        let path = entry.expect("a folder's entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // In a linked work tree `.git` is a file.
        if [".git", "target", ".venv", "__pycache__"].contains(&&*name) {
            continue;
        }
        if path.is_dir() {
            walk(&path, found);
        } else if let Ok(text) = fs::read_to_string(&path) {
            found.push((from_root(&path), text));
        }
    }
}

fn from_root(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Returns the names at the top of the repository: those that git tracks, or all without git.
pub(crate) fn top_level() -> Vec<String> {
    let git = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    let listed = git.ok().filter(|output| output.status.success() && !output.stdout.is_empty());
    let mut names: Vec<String> = match listed {
        Some(output) => String::from_utf8_lossy(&output.stdout)
            .split_terminator('\0')
            .filter_map(|path| Some(path.split('/').next()?.to_owned()))
            .collect(),
        None => entries(root()),
    };
    names.sort();
    names.dedup();
    names
}

fn entries(folder: &Path) -> Vec<String> {
    let paths = folder.read_dir().expect("the root can be listed").flatten();
    let names = paths.map(|entry| PathBuf::from(entry.file_name()).display().to_string());
    names.filter(|name| name != "target").collect()
}

/// Fails with all problems at once.
#[track_caller]
pub(crate) fn none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}
