//! Debian packages.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{has, in_root, run, succeeds};
use crate::output;

const SCRIPT: &str = include_str!("install.sh");

/// Installs Debian packages if that is possible and permitted. `what` names what they provide.
///
/// # Errors
///
/// Returns an error with the command to run instead.
pub(super) fn install(what: &str, packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    let mut command = as_root().filter(|_| has("apt-get")).with_context(|| {
        format!(
            "the tests need {what}: run `sudo apt-get install {list}`, or its like on this system"
        )
    })?;
    output::step(&format!("installing {list}"));
    command.args(["/bin/sh", "-c", SCRIPT, "install"]).args(packages);
    ensure!(run(command)?, "apt-get could not install {list}; it says why above");
    Ok(())
}

/// Returns a shell command for this script, to which arguments can be added; `None` on a system
/// without apt.
pub(super) fn script(text: &str) -> Option<Command> {
    let mut command = in_root("/bin/sh");
    command.args(["-c", text, "script"]);
    has("apt-get").then_some(command)
}

/// Returns true if this process runs as root.
pub(super) fn is_root() -> bool {
    let user = Command::new("id").arg("-u").output();
    user.is_ok_and(|user| user.stdout.trim_ascii() == b"0")
}

/// Returns a command that runs the arguments that follow as root, if permitted.
pub(super) fn as_root() -> Option<Command> {
    if is_root() {
        return Some(in_root("env"));
    }
    let mut sudo = Command::new("sudo");
    sudo.args(["-n", "true"]);
    succeeds(sudo).then(|| {
        let mut command = in_root("sudo");
        command.arg("-n");
        command
    })
}
