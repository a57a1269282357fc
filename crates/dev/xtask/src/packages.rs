//! Packages that a release publishes: made for `cargo xtask lint`, and built for `cargo xtask packages`.
//!
//! A crate builds in the repository although it reads a file of another one, or has a feature that only
//! a neighbor enables. Its package does not, so a release builds the packages from their own files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::cargo::{self, Cargo, in_root, root};
use crate::output;

/// Published package, as `cargo metadata` describes it.
#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    /// Registries, or none if the package goes to Rust's own.
    publish: Option<Vec<String>>,
    targets: Vec<Target>,
}

/// Library, program or test of a package.
#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

impl Package {
    /// Returns the folder that the package unpacks to.
    fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    fn is_library(&self) -> bool {
        self.targets.iter().flat_map(|target| &target.kind).any(|kind| kind == "lib")
    }
}

/// Manifest of the repository, as far as it applies to the packages.
#[derive(Deserialize)]
struct RootManifest {
    profile: toml::Table,
}

/// Manifest of a workspace of unpacked packages.
#[derive(Serialize)]
struct Manifest {
    workspace: Workspace,
    patch: BTreeMap<&'static str, BTreeMap<String, Replacement>>,
    profile: toml::Table,
}

#[derive(Serialize)]
struct Workspace {
    resolver: &'static str,
    members: Vec<String>,
}

/// Folder that stands for a package of the registry.
#[derive(Serialize)]
struct Replacement {
    path: String,
}

/// Builds each package from its own files, with the other packages as its dependencies.
///
/// The packages are unpacked below the target folder. All features are enabled but those for GPUs.
///
/// # Errors
///
/// Returns an error if a package cannot be made or does not build.
pub(crate) fn check(cargo: &Cargo) -> Result<()> {
    ensure!(cargo::run(pack(cargo)?)?, "cargo refuses a package; the reason is above");
    let target = cargo.target_dir();
    let (from, place) = (target.join("package"), target.join("packages"));
    let packages = published(cargo)?;
    unpack(&packages, &from, &place)?;
    let manifest = fs::read_to_string(root().join("Cargo.toml")).context("reading Cargo.toml")?;
    fs::write(place.join("Cargo.toml"), workspace(&manifest, &packages)?)
        .context("writing the manifest of the unpacked packages")?;
    fs::copy(root().join("Cargo.lock"), place.join("Cargo.lock")).context("copying Cargo.lock")?;
    let names: Vec<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let features = cargo.features(&names)?;
    // The same target folder: packages of others are built already.
    let unpacked = cargo.in_tree(&place, &target);
    // Offline, so that cargo takes the versions of Cargo.lock and no newer ones.
    let check = unpacked.command(&["check", "--workspace", "--offline", "--features", &features]);
    ensure!(cargo::run(check)?, "a package does not build from its own files");
    output::line(&format!("{} packages build from their own files", packages.len()));
    Ok(())
}

/// Returns a command that makes the packages without building them.
///
/// Cargo refuses a package that depends on an unpublished crate. It reads the registry's index from the
/// cache, so the command needs no network.
///
/// # Errors
///
/// Returns the errors of [`Cargo::metadata`].
pub(crate) fn pack(cargo: &Cargo) -> Result<Command> {
    let mut pack = cargo.command(&["package", "--quiet", "--no-verify", "--allow-dirty"]);
    pack.arg("--offline");
    for package in published(cargo)? {
        pack.args(["--package", &package.name]);
    }
    Ok(pack)
}

fn published(cargo: &Cargo) -> Result<Vec<Package>> {
    let mut metadata = cargo.metadata(&["--no-deps"])?;
    let packages: Vec<Package> = serde_json::from_value(metadata["packages"].take())
        .context("reading what cargo metadata says")?;
    let packages: Vec<Package> =
        packages.into_iter().filter(|package| package.publish.is_none()).collect();
    ensure!(packages.len() > 5, "only {} packages are published", packages.len());
    Ok(packages)
}

/// Unpacks the archives in `from` into an empty folder.
fn unpack(packages: &[Package], from: &Path, place: &Path) -> Result<()> {
    if place.exists() {
        fs::remove_dir_all(place).with_context(|| format!("removing {}", place.display()))?;
    }
    fs::create_dir_all(place).with_context(|| format!("creating {}", place.display()))?;
    for package in packages {
        let archive = from.join(format!("{}.crate", package.folder()));
        let mut tar = in_root("tar");
        tar.arg("-xzf").arg(&archive).arg("-C").arg(place);
        ensure!(cargo::run(tar)?, "{} cannot be unpacked", archive.display());
    }
    Ok(())
}

/// Returns the manifest of the workspace that the packages are unpacked into.
fn workspace(root: &str, packages: &[Package]) -> Result<String> {
    let root: RootManifest = toml::from_str(root).context("reading the profiles of Cargo.toml")?;
    let libraries = packages.iter().filter(|package| package.is_library());
    let replacements =
        libraries.map(|package| (package.name.clone(), Replacement { path: package.folder() }));
    let manifest = Manifest {
        workspace: Workspace {
            resolver: "3",
            members: packages.iter().map(Package::folder).collect(),
        },
        patch: BTreeMap::from([("crates-io", replacements.collect())]),
        profile: root.profile,
    };
    toml::to_string(&manifest).context("writing the manifest of the unpacked packages")
}

#[cfg(test)]
mod tests {
    use super::{Package, Target, workspace};

    fn package(name: &str, kind: &str) -> Package {
        let targets = vec![Target { kind: vec![kind.to_owned()] }];
        Package { name: name.to_owned(), version: "1.2.3".to_owned(), publish: None, targets }
    }

    #[test]
    fn unpacked_packages_are_built_with_each_other_and_the_profiles_of_the_repository() {
        let root =
            "[workspace]\nmembers = [\"crates/a\"]\n[profile.dev.package.a]\nopt-level = 2\n";
        let packages = [package("a", "lib"), package("b", "bin")];
        let manifest: toml::Table = workspace(root, &packages).unwrap().parse().unwrap();
        let expected: toml::Table =
            "workspace = { resolver = \"3\", members = [\"a-1.2.3\", \"b-1.2.3\"] }\n\
             patch.crates-io.a.path = \"a-1.2.3\"\n\
             profile.dev.package.a.opt-level = 2\n"
                .parse()
                .unwrap();
        assert_eq!(manifest, expected);
    }

    #[test]
    fn a_root_without_profiles_is_an_error() {
        let error = workspace("[workspace]\n", &[]).unwrap_err();
        assert!(format!("{error:#}").contains("profile"), "{error:#}");
    }
}
