//! Python interpreters, and environments that are created once per machine and list of
//! requirements.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{cache, run, succeeds};
use crate::output;

/// Program that succeeds if Python can create an environment.
pub(super) const VENV: &str = "import venv, ensurepip";

/// Program that succeeds if Python can create an environment and there is a C++ compiler.
pub(super) const COMPILER: &str =
    "import venv, ensurepip, shutil, sys; sys.exit(shutil.which('g++') is None)";

/// Program that succeeds if Python has the packages of the trainer.
pub(super) const TORCH: &str = "import venv, ensurepip, numpy, torch";

/// Returns the first Python for which this program succeeds.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    // Debian's packages are installed for the system's Python, which need not be the first in the
    // path.
    let pythons = ["python3", "/usr/bin/python3"].map(PathBuf::from);
    pythons.into_iter().find(|python| runs(python, program))
}

/// Returns the Python of the environment for these requirements. `make` creates the environment in
/// a new folder.
///
/// # Errors
///
/// Returns the error of `make`.
pub(super) fn environment(
    name: &str,
    requirements: &Path,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let text =
        fs::read(requirements).with_context(|| format!("reading {}", requirements.display()))?;
    let folder = cache()?.join(format!("{name}-{:016x}", fnv1a(&text)));
    let python = folder.join("bin/python");
    if !runs(&python, "") {
        output::step(&format!("a Python environment in {}", folder.display()));
        // The environment is created under another name and renamed when it is complete, because
        // another process may create the same one.
        let new = folder.with_extension(std::process::id().to_string());
        fs::create_dir_all(&new).with_context(|| format!("making {}", new.display()))?;
        let made = make(&new).and_then(|()| name_scripts(&new, &folder));
        // An old environment whose Python no longer runs, for instance after a system upgrade, is
        // replaced.
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

/// Rewrites the scripts of a new environment for the folder that it is about to be renamed to: their
/// first lines name its Python.
fn name_scripts(new: &Path, folder: &Path) -> Result<()> {
    let (from, to) = (new.display().to_string(), folder.display().to_string());
    let scripts = new.join("bin");
    for entry in fs::read_dir(&scripts).with_context(|| format!("reading {}", scripts.display()))? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        // Programs that are no text name no path.
        let Ok(text) = fs::read_to_string(entry.path()) else { continue };
        if text.contains(&from) {
            fs::write(entry.path(), text.replace(&from, &to))?;
        }
    }
    Ok(())
}

/// Creates an empty environment.
pub(super) fn create(base: &Path, folder: &Path, options: &[&str]) -> Result<()> {
    let mut command = Command::new(base);
    command.args(["-m", "venv"]).args(options).arg(folder);
    ensure!(run(command)?, "{} -m venv failed", base.display());
    Ok(())
}

/// Installs packages into an environment.
pub(super) fn install(folder: &Path, arguments: &[&OsStr]) -> Result<()> {
    install_with(folder, &[], arguments)
}

/// Installs packages into an environment, with these variables set for compilers.
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

/// Returns the FNV-1a hash, which is stable across compiler versions.
fn fnv1a(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{fnv1a, name_scripts};

    #[test]
    fn scripts_name_the_folder_that_they_are_moved_to() {
        let place = tempfile::tempdir().unwrap();
        let (new, folder) = (place.path().join("e.7"), place.path().join("e"));
        fs::create_dir_all(new.join("bin/cache")).unwrap();
        let script = format!("#!{}/bin/python\n", new.display());
        fs::write(new.join("bin/tool"), &script).unwrap();
        fs::write(new.join("bin/program"), [script.as_bytes(), b"\xff"].concat()).unwrap();
        name_scripts(&new, &folder).unwrap();
        fs::rename(&new, &folder).unwrap();
        let moved = fs::read_to_string(folder.join("bin/tool")).unwrap();
        assert_eq!(moved, format!("#!{}/bin/python\n", folder.display()));
        assert!(fs::read(folder.join("bin/program")).unwrap().ends_with(b"\xff"));
    }

    #[test]
    fn fnv1a_is_the_published_function() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
