//! `cargo xtask gpu-run`: everything that a machine with a GPU runs, built and packed on a machine
//! without one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, Cargo, root};
use crate::{cuda, machine, output};

/// Files that are copied as they are.
const FILES: [&str; 5] = [
    "crates/dev/xtask/src/gpu/README.md",
    "crates/dev/xtask/src/gpu/run.py",
    "crates/dev/xtask/src/gpu/baseline.py",
    "crates/dev/xtask/src/gpu/clients.py",
    "crates/gpu/examples/self_test/expected.txt",
];

/// Models that the worker and the comparison with the CPU need.
const MODELS: [&str; 2] = ["tale-1m", "tale-7m"];

/// Files of a model that are for people.
const NOT_COPIED: [&str; 2] = ["README.md", "training.json"];

/// Largest size of the folder: machines may be lent without a network, and with a limit on what is
/// copied to them.
const MOST_BYTES: u64 = 60 << 20;

/// Arguments of `cargo xtask gpu-run`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Builds for the emulator instead, and runs the script here with small shapes.
    #[arg(long)]
    emulator: bool,
}

/// Programs: examples, and then the worker.
const PROGRAMS: [&str; 3] = ["examples/self_test", "examples/gpu_bench", "nsbridge"];

/// Packages of the programs.
const PACKAGES: [&str; 3] = ["nsbridge-gpu", "nsbridge-llama", "nsbridge-cli"];

/// Builds and packs, and with `--emulator` runs the script.
///
/// # Errors
///
/// Returns an error if a program does not build, if the folder is too large, or if a stage fails.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    // Builds for GPUs and for the emulator have most dependencies in common.
    let target = root().join("target/cuda");
    let cargo = Cargo::here().with("CARGO_TARGET_DIR", &target);
    let (cargo, feature, folder) = if arguments.emulator {
        (cargo, "emulator", root().join("target/gpu-run-emulator"))
    } else {
        let toolkit = machine::cuda::Toolkit::ready(&cargo)?;
        (toolkit.cargo(cargo, cuda::CAPABILITY), "cuda", root().join("target/gpu-run"))
    };
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    output::step("the programs");
    build(&cargo, feature)?;
    for program in PROGRAMS {
        compress(&target.join("release").join(program), &folder)?;
    }
    for file in FILES {
        copy(&root().join(file), &folder)?;
    }
    for model in MODELS {
        let to = folder.join("examples/models").join(model);
        fs::create_dir_all(&to).with_context(|| format!("making {}", to.display()))?;
        for file in files(&root().join("examples/models").join(model))? {
            if !NOT_COPIED.iter().any(|name| file.ends_with(name)) {
                copy(&file, &to)?;
            }
        }
    }
    let bytes = size(&folder)?;
    ensure!(bytes <= MOST_BYTES, "{} has {bytes} bytes, more than {MOST_BYTES}", folder.display());
    output::line(&format!("{}: {:.1} MB", folder.display(), bytes as f64 / 1e6));
    if arguments.emulator { try_here(&folder) } else { Ok(()) }
}

/// Builds the programs. One command builds all of them, so that they have their dependencies in
/// common.
fn build(cargo: &Cargo, feature: &str) -> Result<()> {
    let mut features = PACKAGES.map(|package| format!("{package}/{feature}")).join(",");
    features.push_str(",nsbridge-llama/testing");
    let mut command = cargo.command(&["build", "--release", "--features", &features]);
    command.args(PACKAGES.iter().flat_map(|package| ["-p", package]));
    command.args(["--example", "self_test", "--example", "gpu_bench", "--bin", "nsbridge"]);
    ensure!(cargo::run(command)?, "cargo failed; it says why above");
    Ok(())
}

/// Compresses a program into the folder.
fn compress(program: &Path, folder: &Path) -> Result<()> {
    let name = program.file_name().context("a program without a name")?;
    let to = folder.join(name).with_extension("xz");
    let out = File::create(&to).with_context(|| format!("writing {}", to.display()))?;
    let mut xz = Command::new("xz");
    xz.args(["--stdout", "--threads=0", "-6"]).arg(program).stdout(out);
    ensure!(cargo::run(xz)?, "xz failed; it says why above");
    Ok(())
}

fn copy(file: &Path, folder: &Path) -> Result<()> {
    let name = file.file_name().context("a file without a name")?;
    fs::copy(file, folder.join(name)).with_context(|| format!("copying {}", file.display()))?;
    Ok(())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = folder.read_dir().with_context(|| format!("reading {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Returns the bytes of a folder's files.
fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for path in files(folder)? {
        bytes += if path.is_dir() { size(&path)? } else { path.metadata()?.len() };
    }
    Ok(bytes)
}

/// Runs the script on the emulator.
fn try_here(folder: &Path) -> Result<()> {
    output::step("the script, on the emulator");
    let mut script = Command::new("python3");
    script.arg(folder.join("run.py")).args(["--device", "emulator", "--again", "all"]);
    ensure!(cargo::run(script)?, "a stage failed; its log is named above");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{FILES, MODELS, files, size};
    use crate::cargo::root;

    #[test]
    fn all_that_is_packed_exists() {
        for file in FILES {
            assert!(root().join(file).is_file(), "{file}");
        }
        for model in MODELS {
            assert!(root().join("examples/models").join(model).join("config.json").is_file());
        }
    }

    #[test]
    fn the_size_of_a_folder_is_that_of_its_files() {
        let folder = root().join("crates/dev/xtask/src/gpu");
        let each = files(&folder).unwrap().into_iter().map(|file| file.metadata().unwrap().len());
        assert_eq!(size(&folder).unwrap(), each.sum::<u64>());
    }
}
