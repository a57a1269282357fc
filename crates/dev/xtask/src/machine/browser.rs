//! Chromium, Node.js and the packages of npm for the tests of the chat page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::apt;
use crate::cargo::{has, root, run, succeeds};
use crate::output;

/// Variable that names Chromium, or a browser that is built from it.
const VARIABLE: &str = "NSBRIDGE_TEST_CHROMIUM";

/// Names of Chromium in the path.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Folder with the list of packages of the tests.
const TESTS: &str = "crates/gateway/page/tests";

/// Folder with the list of packages that the page has in its bundles.
const VENDOR: &str = "crates/gateway/page/vendor";

/// Script that succeeds on a version of Node.js that is new enough.
const NEW_ENOUGH: &str = "process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)";

/// Browser, and what drives it.
#[derive(Debug)]
pub(crate) struct Browser {
    /// Path or name of Chromium.
    pub(crate) chromium: PathBuf,
    /// Folder whose `node_modules` has the driver.
    pub(crate) packages: PathBuf,
}

/// Makes sure that Chromium and Node.js are installed, and installs the packages below `target`.
///
/// # Errors
///
/// Returns an error with what to install if something is missing and may not be installed.
pub(crate) fn ready(target: &Path) -> Result<Browser> {
    node()?;
    Ok(Browser { chromium: chromium()?, packages: packages(TESTS, target.join("page"))? })
}

/// Makes sure that Node.js is installed, and installs the packages of the page's bundles with their bundler below
/// `target`. Returns the folder whose `node_modules` has them.
///
/// # Errors
///
/// Returns an error with what to install if something is missing.
pub(crate) fn bundler(target: &Path) -> Result<PathBuf> {
    node()?;
    packages(VENDOR, target.join("page-vendor"))
}

/// Makes sure that Node.js and npm are installed.
///
/// # Errors
///
/// Returns an error with what to install if one of them is missing or too old.
pub(crate) fn node() -> Result<()> {
    let mut node = Command::new("node");
    node.args(["-e", NEW_ENOUGH]);
    ensure!(
        succeeds(node) && has("npm"),
        "this needs Node.js 20 or later with npm: install them, and put `node` and `npm` into the \
         path"
    );
    Ok(())
}

fn chromium() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).map(PathBuf::from) {
        ensure!(has(&named), "{VARIABLE} names {}, which does not run", named.display());
        return Ok(named);
    }
    let find = || NAMES.iter().find(|name| has(name)).map(|name| which(name));
    if find().is_none() {
        apt::install("Chromium", &["chromium"])?;
    }
    find().context("Chromium was installed, and `chromium` is not in the path")
}

/// Returns the path of a program; its name if no folder of the path has it.
fn which(name: &str) -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(name));
    found.into_iter().find(|path| path.is_file()).unwrap_or_else(|| name.into())
}

/// Installs the packages of a list, as its lock file pins them, unless they are there.
fn packages(list: &str, folder: PathBuf) -> Result<PathBuf> {
    let lock = |place: &Path| fs::read(place.join("package-lock.json")).ok();
    let sources = root().join(list);
    // npm writes this file last.
    let is_whole = folder.join("node_modules/.package-lock.json").is_file();
    if is_whole && lock(&folder) == lock(&sources) {
        return Ok(folder);
    }
    output::step(&format!("packages of npm in {}", folder.display()));
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    for name in ["package.json", "package-lock.json"] {
        fs::copy(sources.join(name), folder.join(name))
            .with_context(|| format!("copying {name} to {}", folder.display()))?;
    }
    let mut npm = Command::new("npm");
    npm.current_dir(&folder).args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
    ensure!(run(npm)?, "npm could not install the packages of {list}; it says why above");
    Ok(folder)
}
