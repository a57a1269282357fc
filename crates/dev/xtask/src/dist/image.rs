//! Container image of the command and the bundled pair.
//!
//! The image is one layer and its configuration, in the format of `docker save`, which other engines load, too. It is
//! written here because builders put the names of their temporary containers into it, and no two builds are equal then.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tar::{Builder, Header};

use super::archive::{self, gzip, sha256};
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
/// Returns an error if this process may not run commands as root, if a tool is missing and may not be
/// installed, or if the image is too large.
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
    let (root, layer) = (place.path().join("root"), place.path().join("layer.tar"));
    let mut lay = machine::as_root()?;
    let mirror = mirror.unwrap_or_default();
    lay.args(["env", &format!("NSBRIDGE_DEBIAN_MIRROR={mirror}"), "/bin/sh"]);
    lay.arg(tree.join("deploy/image/root.sh")).arg(prefix).arg(tree).arg(&root);
    ensure!(cargo::run(lay)?, "the root of the image could not be laid; it says why above");
    ensure!(
        cargo::run(packed(&root, &layer, release)?)?,
        "the root of the image could not be packed"
    );
    let (size, models) = sizes(&layer)?;
    ensure!(size < MOST_BYTES, "the image has {size} bytes without models, more than {MOST_BYTES}");
    let name = format!("{}.image", release.name());
    let bill = sbom::of_image(release, parts, &root)?;
    archive::write(&out.join(format!("{name}.cdx.json")), bill.as_bytes())?;
    let config = fs::read_to_string(tree.join("deploy/image/config.json"))?;
    let config = configuration(release, serde_json::from_str(&config)?, &sha256(&layer)?)?;
    write(release, &config, &layer, &out.join(format!("{name}.tar.gz")))?;
    // What root made is root's.
    let mut remove = machine::as_root()?;
    remove.args(["rm", "-rf"]).arg(place.path());
    ensure!(cargo::run(remove)?, "{} could not be removed", place.path().display());
    let (size, models) = (size as f64 / 1e6, models as f64 / 1e6);
    crate::output::line(&format!("the image: {size:.1} MB, and {models:.1} MB of models"));
    Ok(())
}

/// Returns a command that packs the root, whose folders are closed to others than their owners.
fn packed(root: &Path, layer: &Path, release: &Release) -> Result<Command> {
    let mut tar = machine::as_root()?;
    tar.args(["tar", "--create", "--sort=name", "--numeric-owner", "--format=gnu"]);
    tar.arg(format!("--mtime=@{}", release.epoch)).arg("--file").arg(layer);
    tar.arg("--directory").arg(root).arg(".");
    Ok(tar)
}

/// Returns the image's configuration, as the specification of images by Docker has it.
fn configuration(release: &Release, mut config: Value, layer: &str) -> Result<Value> {
    config["Labels"]["org.opencontainers.image.version"] = json!(release.version);
    config["Labels"]["org.opencontainers.image.revision"] = json!(release.commit);
    Ok(json!({
        "architecture": release.architecture()?,
        "os": "linux",
        "created": release.time,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
        "history": [{"created": release.time, "created_by": "cargo xtask dist"}],
    }))
}

/// Writes the archive.
fn write(release: &Release, config: &Value, layer: &Path, to: &Path) -> Result<()> {
    let out = File::create(to).with_context(|| format!("writing {}", to.display()))?;
    let mut archive = Builder::new(gzip(out));
    let mut add = |name: &str, size: u64, data: &mut dyn std::io::Read| {
        let mut header = Header::new_gnu();
        header.set_mtime(release.epoch);
        header.set_mode(0o644);
        header.set_size(size);
        archive.append_data(&mut header, name, data)
    };
    let config = config.to_string();
    let manifest = json!([{
        "Config": "config.json",
        "RepoTags": [format!("nsbridge:{}", release.version)],
        "Layers": ["layer.tar"],
    }]);
    let manifest = manifest.to_string();
    add("manifest.json", manifest.len() as u64, &mut manifest.as_bytes())?;
    add("config.json", config.len() as u64, &mut config.as_bytes())?;
    let mut file = File::open(layer).with_context(|| format!("reading {}", layer.display()))?;
    add("layer.tar", file.metadata()?.len(), &mut file)?;
    archive.into_inner()?.finish()?;
    Ok(())
}

/// Returns the size of all files in the layer, without the models and of the models.
fn sizes(layer: &Path) -> Result<(u64, u64)> {
    let file = File::open(layer).with_context(|| format!("reading {}", layer.display()))?;
    let (mut size, mut models) = (0, 0);
    for entry in tar::Archive::new(file).entries()? {
        let entry = entry?;
        let sum = if entry.path()?.starts_with("./models") { &mut models } else { &mut size };
        *sum += entry.size();
    }
    Ok((size, models))
}
