//! `cargo xtask dist`: all artefacts of a release, from one build of the command.

mod archive;
mod binary;
mod closure;
mod image;
mod notes;
mod notices;
mod release;
mod sbom;
mod stage;
mod system;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, Cargo, cache, in_root, root};
use crate::{output, packages};
use binary::Tools;
use release::Release;

/// Arguments of `cargo xtask dist`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the artefacts; what is in it goes.
    #[arg(long, value_name = "FOLDER", default_value = "target/dist")]
    out: PathBuf,
    /// Builds from a tree with changes that are not committed, for trying things out.
    #[arg(long)]
    allow_dirty: bool,
    /// Builds again from a clone in another folder, and compares the artefacts byte by byte.
    #[arg(long)]
    twice: bool,
    /// Address of the folder from which install.sh downloads.
    #[arg(long, value_name = "URL", env = "NSBRIDGE_DOWNLOAD")]
    download: Option<String>,
    /// Mirror of Debian for the container image, where apt reads none.
    #[arg(long, value_name = "URL", env = "NSBRIDGE_DEBIAN_MIRROR")]
    debian_mirror: Option<String>,
    /// Leaves the container image out. It needs root, and is made on Linux alone.
    #[arg(long)]
    without_image: bool,
    /// Leaves out the check that each crate builds from its own package.
    #[arg(long)]
    without_crates: bool,
}

/// Makes the artefacts.
///
/// # Errors
///
/// Returns an error if the tree has changes, if something does not build, or if two builds differ.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let release = Release::read(&root(), arguments.allow_dirty)?;
    let tools = Tools::ready()?;
    let out = root().join(&arguments.out);
    let build = |tree: &Path, target: PathBuf, out: &Path| {
        make(arguments, &tools, &release, tree, &target, out)
    };
    build(&root(), cache()?.join("dist"), &out)?;
    if !arguments.without_crates {
        output::step("each crate from its own package");
        packages::check(&Cargo::here())?;
    }
    if arguments.twice {
        ensure!(
            !arguments.allow_dirty,
            "--twice builds a clone, which has no changes: commit them"
        );
        let again = tempfile::tempdir().context("making a folder for the second build")?;
        let (clone, second) = (again.path().join("clone"), again.path().join("dist"));
        let mut git = in_root("git");
        git.args(["clone", "--quiet", "."]).arg(&clone);
        ensure!(cargo::run(git)?, "git clone failed");
        output::step("the second build, in another folder");
        build(&clone, again.path().join("target"), &second)?;
        compare(&out, &second)?;
    }
    for line in fs::read_to_string(out.join(archive::SUMS))?.lines() {
        let name = line.rsplit(' ').next().unwrap_or_default();
        let bytes = out.join(name).metadata().map_or(0, |found| found.len());
        output::line(&format!("{:9.1} MB  {name}", bytes as f64 / 1e6));
    }
    output::line(&format!("{}: complete", out.display()));
    Ok(())
}

/// Builds the sources of `tree`, and writes all artefacts to `out`.
fn make(
    arguments: &Arguments,
    tools: &Tools,
    release: &Release,
    tree: &Path,
    target: &Path,
    out: &Path,
) -> Result<()> {
    output::step("the command, for release");
    let cargo = binary::cargo(release, tree, target)?;
    let program = binary::build(&cargo, tools, release, target)?;
    if out.exists() {
        fs::remove_dir_all(out).with_context(|| format!("removing {}", out.display()))?;
    }
    fs::create_dir_all(out).with_context(|| format!("making {}", out.display()))?;
    output::step("what is in it");
    let parts = closure::read(&cargo, release)?;
    let bill = sbom::of(release, &parts);
    let name = release.name();
    archive::write(&out.join(format!("{name}.cdx.json")), bill.as_bytes())?;
    let prefix = out.join("prefix");
    stage::lay(release, tree, &prefix, &program, &notices::of(tree, &parts)?, &bill)?;
    output::step("the archive, the wheel and the packages");
    archive::pack(&prefix, &name, &out.join(format!("{name}.tar.gz")), release)?;
    wheel::build(tools, release, tree, &prefix, out)?;
    if release.is_for_linux() {
        system::build(tools, release, tree, &prefix, out)?;
        if !arguments.without_image {
            output::step("the container image");
            let mirror = arguments.debian_mirror.as_deref();
            image::build(release, tree, &prefix, &parts, mirror, out)?;
        }
    }
    let script = fs::read_to_string(tree.join("deploy/install.sh"))?;
    let script = script.replace("@VERSION@", &release.version);
    let download = arguments.download.as_deref();
    let script = download.map_or_else(|| script.clone(), |url| script.replace("@DOWNLOAD@", url));
    archive::write(&out.join("install.sh"), script.as_bytes())?;
    let bills = archive::below(out)?.into_iter();
    let bills: Vec<_> = bills
        .filter(|path| path.parent() == Some(out) && path.to_string_lossy().ends_with(".cdx.json"))
        .collect();
    sbom::check(tools, &bills)?;
    fs::remove_dir_all(&prefix).with_context(|| format!("removing {}", prefix.display()))?;
    archive::sum(out)?;
    // For the page of the release, which has them as its text.
    let notes = notes::of(&fs::read_to_string(tree.join("CHANGELOG.md"))?, &release.version)?;
    archive::write(&out.join("release-notes.md"), notes.as_bytes())
}

/// Checks that two folders have the same files.
fn compare(first: &Path, second: &Path) -> Result<()> {
    let sums = |folder: &Path| fs::read_to_string(folder.join(archive::SUMS));
    let (one, two) = (sums(first)?, sums(second)?);
    let differing: Vec<_> = one.lines().zip(two.lines()).filter(|(a, b)| a != b).collect();
    for (a, b) in &differing {
        output::line(&format!("{a}\n{b}"));
    }
    if one != two {
        bail!("{} artefacts of the two builds differ", differing.len().max(1));
    }
    output::line(&format!("two builds, {} equal artefacts", one.lines().count()));
    Ok(())
}
