//! Packages of Debian and of Red Hat, written by nFPM.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::archive::write;
use super::binary::Tools;
use super::release::Release;
use crate::cargo;

/// Builds a deb and an rpm.
///
/// # Errors
///
/// Returns an error if nFPM fails.
pub(super) fn build(
    tools: &Tools,
    release: &Release,
    tree: &Path,
    prefix: &Path,
    out: &Path,
) -> Result<()> {
    let template = std::fs::read_to_string(tree.join("deploy/package/nfpm.yaml"))?;
    let settings = prefix.with_file_name("nfpm.yaml");
    let text = [
        ("@ARCHITECTURE@", release.architecture()?),
        ("@VERSION@", &release.version),
        ("@TIME@", &release.time),
        ("@PREFIX@", &prefix.display().to_string()),
    ]
    .into_iter()
    .fold(template, |text, (name, value)| text.replace(name, value));
    write(&settings, text.as_bytes())?;
    for kind in ["deb", "rpm"] {
        let mut nfpm = Command::new(tools.path("nfpm"));
        nfpm.args(["package", "--packager", kind, "--config"]).arg(&settings);
        nfpm.arg("--target").arg(out).current_dir(tree.join("deploy"));
        nfpm.env("SOURCE_DATE_EPOCH", release.epoch.to_string());
        ensure!(cargo::run(nfpm)?, "nFPM does not make the {kind}");
    }
    std::fs::remove_file(settings)?;
    Ok(())
}
