//! Packages that are compiled into the command.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::release::Release;
use crate::cargo::Cargo;

/// Package that is compiled into the command.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) version: String,
    /// License as an SPDX expression.
    pub(super) license: String,
    pub(super) authors: Vec<String>,
    /// Folder with the package's files.
    pub(super) folder: PathBuf,
    /// File that the manifest names in place of an expression or beside it.
    pub(super) license_file: Option<PathBuf>,
    /// SHA-256 of the package in the registry; none for the project's own.
    pub(super) checksum: Option<String>,
    /// Packages that it depends on.
    pub(super) needs: Vec<Id>,
}

/// Name and version, which identify a package of one registry.
pub(super) type Id = (String, String);

#[derive(Deserialize)]
struct Locked {
    package: Vec<LockedPackage>,
}

#[derive(Deserialize)]
struct LockedPackage {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// Reads the packages, in the order of their names. Packages that only build scripts use are none of
/// them.
///
/// # Errors
///
/// Returns an error if cargo fails or if a package has no license.
pub(super) fn read(cargo: &Cargo, release: &Release) -> Result<BTreeMap<Id, Part>> {
    let ids = tree(cargo, release)?;
    let metadata = cargo.metadata(&["--locked", "--filter-platform", &release.triple])?;
    let sums = checksums(cargo)?;
    let needs = edges(&metadata);
    let mut parts = BTreeMap::new();
    for package in array(&metadata["packages"]) {
        let id = (text(&package["name"]), text(&package["version"]));
        if !ids.contains(&id) {
            continue;
        }
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        let folder = manifest.parent().context("a manifest is in a folder")?.to_owned();
        let license_file = package["license_file"].as_str().map(|file| folder.join(file));
        let license = package["license"].as_str().unwrap_or_default().replace('/', " OR ");
        ensure!(!license.is_empty() || license_file.is_some(), "{} has no license", id.0);
        let needs = needs.get(&text(&package["id"])).cloned().unwrap_or_default();
        let needs = needs.into_iter().filter(|id| ids.contains(id)).collect();
        let (name, version) = id.clone();
        let checksum = sums.get(&id).cloned();
        let authors = array(&package["authors"]).iter().map(text).collect();
        let part = Part { name, version, license, authors, folder, license_file, checksum, needs };
        parts.insert(id, part);
    }
    ensure!(parts.len() == ids.len(), "cargo metadata lacks packages of cargo tree");
    Ok(parts)
}

/// Returns what `cargo tree` lists, which, other than `cargo metadata`, knows the features of this
/// command alone.
fn tree(cargo: &Cargo, release: &Release) -> Result<BTreeSet<Id>> {
    let mut command = cargo.command(&["tree", "--package", "nsbridge-cli", "--locked"]);
    command.args(["--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    let output = command.args(["--target", &release.triple]).output().context("starting cargo")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout)?;
    let ids = lines.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let name = words.next()?;
        Some((name.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    });
    Ok(ids.collect())
}

fn checksums(cargo: &Cargo) -> Result<BTreeMap<Id, String>> {
    let lock = std::fs::read_to_string(cargo.tree().join("Cargo.lock")).context("Cargo.lock")?;
    let locked: Locked = toml::from_str(&lock).context("reading Cargo.lock")?;
    let packages = locked.package.into_iter();
    Ok(packages.filter_map(|one| Some(((one.name, one.version), one.checksum?))).collect())
}

/// Returns the dependencies of each package, by its id in cargo's metadata.
fn edges(metadata: &Value) -> BTreeMap<String, Vec<Id>> {
    let packages = array(&metadata["packages"]);
    let ids: BTreeMap<String, Id> = packages
        .iter()
        .map(|one| (text(&one["id"]), (text(&one["name"]), text(&one["version"]))))
        .collect();
    let nodes = array(&metadata["resolve"]["nodes"]).iter();
    nodes
        .map(|node| {
            let needs = array(&node["deps"]).iter().filter(|one| is_normal(one));
            let needs = needs.filter_map(|one| ids.get(one["pkg"].as_str()?).cloned());
            (text(&node["id"]), needs.collect())
        })
        .collect()
}

fn is_normal(dependency: &Value) -> bool {
    array(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null())
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
