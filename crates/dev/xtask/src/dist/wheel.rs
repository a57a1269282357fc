//! Wheel with the command, the Python client and the handler kit, and its pure source distribution.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::binary::Tools;
use super::release::Release;
use crate::cargo;

/// Builds both.
///
/// # Errors
///
/// Returns an error if the build fails.
pub(super) fn build(
    tools: &Tools,
    release: &Release,
    tree: &Path,
    prefix: &Path,
    out: &Path,
) -> Result<()> {
    let build = |what: &str| {
        let mut command = Command::new(&tools.python);
        command.args(["-m", "build", "--no-isolation", what, "--outdir"]).arg(out);
        command.arg(tree.join("python")).current_dir(tree);
        command.env("SOURCE_DATE_EPOCH", release.epoch.to_string());
        command
    };
    let mut wheel = build("--wheel");
    wheel.env("NSBRIDGE_DIST_ROOT", prefix).env("NSBRIDGE_DIST_TAG", tag(&release.triple));
    ensure!(cargo::run(wheel)?, "the wheel does not build");
    // It is for all platforms: one of them makes it.
    if release.triple == "x86_64-unknown-linux-gnu" {
        ensure!(cargo::run(build("--sdist"))?, "the source distribution does not build");
    }
    Ok(())
}

/// Returns the tag of wheels for a platform, by PEP 425 and PEP 600.
fn tag(triple: &str) -> &'static str {
    match triple {
        "aarch64-unknown-linux-gnu" => "py3-none-manylinux_2_28_aarch64",
        "aarch64-apple-darwin" => "py3-none-macosx_11_0_arm64",
        "x86_64-apple-darwin" => "py3-none-macosx_11_0_x86_64",
        _ => "py3-none-manylinux_2_28_x86_64",
    }
}
