//! Templates of CloudFormation by checkov, which needs no gateway.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::cargo::{root, run as succeeded};
use crate::machine;

/// Name beside those of the suites.
pub(crate) const NAME: &str = "checkov";

/// Folder of the test, which has the accepted findings with their reasons.
const FOLDER: &str = "deploy/tests/checkov";

/// Installs checkov in an environment of its own and runs the test.
///
/// # Errors
///
/// Returns an error if a package cannot be installed, if a template has other findings than the accepted
/// ones, or if checkov does not find a broken template.
pub(crate) fn run() -> Result<()> {
    let folder = root().join(FOLDER);
    let python = machine::outside(NAME, &folder.join("requirements.txt"))?;
    let mut tests = Command::new(python);
    tests.current_dir(&folder).env("PYTHONDONTWRITEBYTECODE", "1");
    tests.args(["-m", "unittest", "test_checkov"]);
    ensure!(succeeded(tests)?, "the test in {FOLDER} failed; it says why above");
    Ok(())
}
