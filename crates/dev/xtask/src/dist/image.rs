//! Container image of the command and the bundled pair.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::archive::{self, compress};
use super::closure::{Id, Part};
use super::release::Release;
use super::sbom;
use crate::{cargo, machine};

/// Largest image without its models, in bytes.
const MOST_BYTES: u64 = 120_000_000;

/// Builds the image, as an archive for `docker load` and its like, and its bill of materials.
///
/// # Errors
///
/// Returns an error if this process does not run as root, if a tool is missing and may not be installed, or
/// if the image is too large.
pub(super) fn build(
    release: &Release,
    tree: &Path,
    prefix: &Path,
    parts: &BTreeMap<Id, Part>,
    mirror: Option<&str>,
    out: &Path,
) -> Result<()> {
    machine::image()?;
    let place = tempfile::tempdir().context("making a folder for the image")?;
    let root = place.path().join("root");
    let mut lay = machine::as_root()?;
    let mirror = mirror.unwrap_or_default();
    lay.args(["env", &format!("NSBRIDGE_DEBIAN_MIRROR={mirror}"), "/bin/sh"]);
    lay.arg(tree.join("deploy/image/root.sh")).arg(prefix).arg(tree).arg(&root);
    ensure!(cargo::run(lay)?, "the root of the image could not be laid; it says why above");
    let name = format!("{}.image", release.name());
    let bill = sbom::of_image(release, parts, &root)?;
    archive::write(&out.join(format!("{name}.cdx.json")), bill.as_bytes())?;
    let context = place.path().join("context");
    fs::create_dir(&context)?;
    fs::copy(tree.join("deploy/image/Dockerfile"), context.join("Dockerfile"))?;
    let mut tar = machine::as_root()?;
    tar.args(["tar", "--create"]).arg("--file").arg(context.join("root.tar"));
    tar.args(["--sort=name", "--numeric-owner", "--format=gnu"]);
    tar.arg(format!("--mtime=@{}", release.epoch)).arg("--directory").arg(&root).arg(".");
    ensure!(cargo::run(tar)?, "the root of the image could not be packed");
    let (size, models) = sizes(&context.join("root.tar"))?;
    ensure!(size < MOST_BYTES, "the image has {size} bytes without models, more than {MOST_BYTES}");
    let tag = format!("nsbridge:{}", release.version);
    // Storage of its own, and no layers of other builds.
    let buildah = |arguments: &[&str]| {
        let mut buildah = machine::as_root()?;
        buildah.args(["buildah", "--root"]).arg(place.path().join("storage"));
        buildah.arg("--runroot").arg(place.path().join("run"));
        buildah.args(["--storage-driver", "vfs"]).args(arguments);
        anyhow::Ok(buildah)
    };
    let mut build = buildah(&["bud", "--quiet", "--pull-never", "--isolation", "chroot"])?;
    // The format of OCI has no health check.
    build.args(["--format", "docker", "--timestamp", &release.epoch.to_string()]);
    build.args(["--platform", &format!("linux/{}", release.architecture()?), "--tag", &tag]);
    ensure!(cargo::run(with(build, &context))?, "buildah could not build the image");
    let archive = place.path().join("image.tar");
    let to = format!("docker-archive:{}:{tag}", archive.display());
    ensure!(cargo::run(buildah(&["push", "--quiet", &tag, &to])?)?, "buildah could not pack it");
    compress(&archive, &out.join(format!("{name}.tar.gz")))?;
    // What root made is root's.
    let mut remove = machine::as_root()?;
    remove.args(["rm", "-rf"]).arg(place.path());
    ensure!(cargo::run(remove)?, "{} could not be removed", place.path().display());
    let (size, models) = (size as f64 / 1e6, models as f64 / 1e6);
    crate::output::line(&format!("the image: {size:.1} MB, and {models:.1} MB of models"));
    Ok(())
}

fn with(mut command: Command, argument: &Path) -> Command {
    command.arg(argument);
    command
}

/// Returns the size of all files in the root, without the models and of the models. The archive tells it: folders of
/// the root are closed to others than their owners.
fn sizes(root: &Path) -> Result<(u64, u64)> {
    let file = File::open(root).with_context(|| format!("reading {}", root.display()))?;
    let (mut size, mut models) = (0, 0);
    for entry in tar::Archive::new(file).entries()? {
        let entry = entry?;
        let sum = if entry.path()?.starts_with("./models") { &mut models } else { &mut size };
        *sum += entry.size();
    }
    Ok((size, models))
}
