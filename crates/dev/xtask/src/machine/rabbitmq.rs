//! RabbitMQ of the system, and a newer RabbitMQ beside it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::apt;
use crate::cargo::{cache, run};
use crate::output;

/// Locations of RabbitMQ's own scripts on Debian and its derivatives.
const PLACES: [&str; 2] =
    ["/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/local/lib/rabbitmq/bin/rabbitmq-server"];

/// Script that unpacks RabbitMQ 4.
const UNPACK: &str = include_str!("rabbitmq-4.sh");

/// Makes sure that the system's RabbitMQ is installed. Starts no node.
///
/// # Errors
///
/// Returns an error if it is missing and may not be installed.
pub(crate) fn ready() -> Result<()> {
    let there = || PLACES.iter().any(|path| Path::new(path).exists());
    if !there() {
        apt::install("RabbitMQ", &["rabbitmq-server"])?;
    }
    if !there() {
        bail!("RabbitMQ was installed, but {} is not there", PLACES[0]);
    }
    Ok(())
}

/// Returns a folder with RabbitMQ 4 and its dependencies for `chroot`, created once per machine.
///
/// # Errors
///
/// Returns an error that names what is missing.
pub(crate) fn four() -> Result<PathBuf> {
    let folder = cache()?.join("rabbitmq-4");
    if !holds_rabbitmq(&folder) {
        let shell = apt::script(UNPACK).filter(|_| apt::is_root()).context(
            "RabbitMQ 4 is unpacked from Debian 13 and run in a chroot, which takes apt-get and \
             root: or set NSBRIDGE_TEST_AMQP_URL to a RabbitMQ 4 that tests may fill",
        )?;
        output::step(&format!("RabbitMQ 4 in {}", folder.display()));
        unpack(shell, &folder)?;
    }
    Ok(folder)
}

/// Unpacks under another name and renames when complete, because another process may do the same.
fn unpack(mut shell: std::process::Command, folder: &Path) -> Result<()> {
    let new = folder.with_extension(std::process::id().to_string());
    fs::create_dir_all(&new).with_context(|| format!("making {}", new.display()))?;
    shell.arg(&new);
    let made = run(shell);
    if matches!(made, Ok(true)) && !holds_rabbitmq(folder) {
        let _ = fs::remove_dir_all(folder);
        let _ = fs::rename(&new, folder);
    }
    let _ = fs::remove_dir_all(&new);
    ensure!(made?, "RabbitMQ 4 could not be unpacked; it says why above");
    ensure!(holds_rabbitmq(folder), "RabbitMQ 4 was unpacked, but {} is not one", folder.display());
    Ok(())
}

fn holds_rabbitmq(folder: &Path) -> bool {
    // It is a link whose target is inside the folder.
    folder.join("usr/lib/rabbitmq/bin/rabbitmq-server").exists()
}
