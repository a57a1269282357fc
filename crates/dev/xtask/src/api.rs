//! `cargo xtask api`: snapshot of the public API of each library in `docs/api`.
//!
//! A change of the API is then a change of a file, which a reviewer sees. rustdoc writes the API as
//! JSON, and the crate `public-api` prints it, one item a line. rustdoc's JSON has a version of its
//! own for most compilers; with a compiler of another version the check is left out.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use public_api::Builder;
use serde::Deserialize;

use crate::cargo::{self, Cargo, root};
use crate::output;

/// Folder of the snapshots.
const FOLDER: &str = "docs/api";

/// Version of rustdoc's JSON that `public-api` reads: that of Rust 1.95.
const FORMAT: u32 = 57;

/// Wrapper of rustdoc. The environment variable that permits unstable options must not be set for
/// cargo: build scripts of dependencies read it, and all of them would run again.
const WRAPPER: &str = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";

/// Head of a JSON file of rustdoc.
#[derive(Deserialize)]
struct Head {
    format_version: u32,
}

/// Compares the public APIs with their snapshots, or writes the snapshots.
///
/// # Errors
///
/// Returns an error with the changed lines, or if rustdoc fails.
pub(crate) fn run(cargo: &Cargo, write: bool) -> Result<()> {
    document(cargo)?;
    let mut changed = Vec::new();
    for library in libraries(cargo)? {
        let Some(api) = api(cargo, &library)? else {
            output::line("this compiler's rustdoc writes another version of JSON: not checked");
            return Ok(());
        };
        let file = root().join(FOLDER).join(format!("{}.txt", library.package));
        if write {
            fs::create_dir_all(root().join(FOLDER))?;
            fs::write(&file, &api).with_context(|| format!("writing {}", file.display()))?;
            continue;
        }
        let snapshot = fs::read_to_string(&file).unwrap_or_default();
        changed.extend(differences(&library.package, &snapshot, &api));
    }
    ensure!(
        changed.is_empty(),
        "the public API differs from its snapshot; if that is meant, run `cargo xtask api \
         --write`:\n{}",
        changed.join("\n")
    );
    Ok(())
}

/// Libraries that are parts of the gateway or of the command, and have no users beside them.
const PARTS: [&str; 9] = [
    "nsbridge-gateway-replies",
    "nsbridge-import",
    "nsbridge-import-djl",
    "nsbridge-import-vllm",
    "nsbridge-observe",
    "nsbridge-reply-text",
    "nsbridge-scaler",
    "nsbridge-scaling",
    "nsbridge-top",
];

/// Library of this project that others use.
struct Library {
    package: String,
    /// Name of the crate.
    name: String,
}

/// Returns the libraries below `crates`, except those for development and [`PARTS`].
fn libraries(cargo: &Cargo) -> Result<Vec<Library>> {
    let metadata = cargo.metadata(&["--no-deps"])?;
    let mut libraries = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let inside = manifest.strip_prefix(root()).unwrap_or(manifest);
        if !inside.starts_with("crates") || inside.starts_with("crates/dev") {
            continue;
        }
        let targets = package["targets"].as_array().into_iter().flatten();
        let is_library = |target: &&serde_json::Value| {
            let kinds = target["kind"].as_array().into_iter().flatten();
            kinds.filter_map(|kind| kind.as_str()).any(|kind| kind == "lib")
        };
        let package = package["name"].as_str().unwrap_or_default().to_owned();
        if PARTS.contains(&package.as_str()) {
            continue;
        }
        libraries.extend(targets.filter(is_library).map(|target| Library {
            package: package.clone(),
            name: target["name"].as_str().unwrap_or_default().replace('-', "_"),
        }));
    }
    ensure!(libraries.len() > 5, "only {} libraries were found", libraries.len());
    libraries.sort_by(|one, other| one.package.cmp(&other.package));
    Ok(libraries)
}

/// Returns the public API of a library; `None` if rustdoc writes another version of JSON.
fn api(cargo: &Cargo, library: &Library) -> Result<Option<String>> {
    let json = cargo.target_dir().join("doc").join(format!("{}.json", library.name));
    let text = fs::read_to_string(&json)
        .with_context(|| format!("reading what rustdoc wrote, {}", json.display()))?;
    let head: Head = serde_json::from_str(&text).context("reading rustdoc's JSON")?;
    if head.format_version != FORMAT {
        return Ok(None);
    }
    // Impls of auto traits and blanket impls follow from the items.
    let builder = Builder::from_rustdoc_json(&json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true);
    let api = builder.build().with_context(|| format!("reading the API of {}", library.package))?;
    Ok(Some(api.items().map(|item| format!("{item}\n")).collect()))
}

/// Runs rustdoc on all libraries at once, with all features but those for GPUs: as the other lints,
/// so that the dependencies are not built anew.
fn document(cargo: &Cargo) -> Result<()> {
    let target = cargo.target_dir();
    let wrapper = target.join("rustdoc-json");
    fs::create_dir_all(&target)?;
    fs::write(&wrapper, WRAPPER).context("writing the wrapper of rustdoc")?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    let mut command = cargo.command(&["doc", "--quiet", "--no-deps", "--workspace", "--lib"]);
    command.args(["--features", &cargo.features(&[])?]);
    command.env("RUSTDOC", wrapper);
    command.env("RUSTDOCFLAGS", "-Zunstable-options --output-format json --cap-lints allow");
    ensure!(cargo::run(command)?, "rustdoc failed");
    Ok(())
}

/// Returns the lines that only one of two texts has.
fn differences(package: &str, before: &str, after: &str) -> Vec<String> {
    let only = |sign: char, one: &str, other: &str| -> Vec<String> {
        let other: std::collections::HashSet<&str> = other.lines().collect();
        let lines = one.lines().filter(|line| !other.contains(line));
        lines.map(|line| format!("{package}: {sign} {line}")).collect()
    };
    [only('-', before, after), only('+', after, before)].concat()
}

#[cfg(test)]
mod tests {
    use super::differences;

    #[test]
    fn a_removed_and_a_new_item_are_told() {
        let (before, after) = ("pub fn a()\npub fn b()\n", "pub fn b()\npub fn c()\n");
        assert_eq!(differences("x", before, after), ["x: - pub fn a()", "x: + pub fn c()"]);
        assert!(differences("x", before, before).is_empty());
    }
}
