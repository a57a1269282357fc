//! Pythons, and environments that are made once per machine and list of requirements.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{cache, run, succeeds};
use crate::say;

/// What an environment can be made with.
pub(super) const VENV: &str = "import venv, ensurepip";

/// What an environment can be made with whose packages are compiled.
pub(super) const COMPILER: &str =
    "import venv, ensurepip, shutil, sys; sys.exit(shutil.which('g++') is None)";

/// What the trainer can be run with.
pub(super) const TORCH: &str = "import venv, ensurepip, numpy, torch";

/// The first Python for which this program ends well.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    // The system's own beside the one in the path: Debian's packages are for that one.
    let pythons = ["python3", "/usr/bin/python3"].map(PathBuf::from);
    pythons.into_iter().find(|python| runs(python, program))
}

/// The Python of the environment for these requirements; `make` fills a new folder with one.
///
/// # Errors
///
/// What `make` says.
pub(super) fn environment(
    name: &str,
    requirements: &Path,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let text =
        fs::read(requirements).with_context(|| format!("reading {}", requirements.display()))?;
    let folder = cache()?.join(format!("{name}-{:016x}", fingerprint(&text)));
    let python = folder.join("bin/python");
    if !runs(&python, "") {
        say::step(&format!("a Python environment in {}", folder.display()));
        // Made beside and put in place when it is whole: somebody else may be doing the same.
        let new = folder.with_extension(std::process::id().to_string());
        fs::create_dir_all(&new).with_context(|| format!("making {}", new.display()))?;
        let made = make(&new);
        // One whose Python is gone: the system was upgraded.
        if made.is_ok() && !runs(&python, "") {
            let _ = fs::remove_dir_all(&folder);
            let _ = fs::rename(&new, &folder);
        }
        let _ = fs::remove_dir_all(&new);
        made.with_context(|| format!("making a Python environment for {name}"))?;
    }
    ensure!(runs(&python, ""), "the Python environment in {} does not run", folder.display());
    Ok(python)
}

/// Makes an empty environment.
pub(super) fn create(base: &Path, folder: &Path, options: &[&str]) -> Result<()> {
    let mut command = Command::new(base);
    command.args(["-m", "venv"]).args(options).arg(folder);
    ensure!(run(command)?, "{} -m venv failed", base.display());
    Ok(())
}

/// Installs into an environment.
pub(super) fn install(folder: &Path, arguments: &[&OsStr]) -> Result<()> {
    install_with(folder, &[], arguments)
}

/// The same with these variables for what is compiled on the way.
pub(super) fn install_with(
    folder: &Path,
    variables: &[(&str, &str)],
    arguments: &[&OsStr],
) -> Result<()> {
    let mut command = Command::new(folder.join("bin/python"));
    command
        .envs(variables.iter().copied())
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(arguments);
    ensure!(run(command)?, "pip failed; it says why above");
    Ok(())
}

fn runs(python: &Path, program: &str) -> bool {
    let mut command = Command::new(python);
    command.args(["-c", program]);
    succeeds(command)
}

/// FNV-1a: the same for the same text, today and after an upgrade of the compiler.
fn fingerprint(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::fingerprint;

    #[test]
    fn the_fingerprint_is_the_published_function() {
        assert_eq!(fingerprint(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
