//! RabbitMQ: the one that the system has, and a newer one beside it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::apt;
use crate::cargo::{cache, run};
use crate::say;

/// Where Debian and its kin keep RabbitMQ's own scripts.
const PLACES: [&str; 2] =
    ["/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/local/lib/rabbitmq/bin/rabbitmq-server"];

/// Unpacks RabbitMQ 4.
const UNPACK: &str = include_str!("rabbitmq-4.sh");

/// Makes sure that the system's RabbitMQ is there, without a running node.
///
/// # Errors
///
/// It is not, and may not be installed.
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

/// A folder with RabbitMQ 4 and what it runs on, for `chroot`; made once per machine.
///
/// # Errors
///
/// One sentence that says what is missing for it.
pub(crate) fn four() -> Result<PathBuf> {
    let folder = cache()?.join("rabbitmq-4");
    if !holds_rabbitmq(&folder) {
        let shell = apt::script(UNPACK).filter(|_| apt::is_root()).context(
            "RabbitMQ 4 is unpacked from Debian 13 and run in a chroot, which takes apt-get and \
             root: or set NSBRIDGE_TEST_AMQP_URL to a RabbitMQ 4 that tests may fill",
        )?;
        say::step(&format!("RabbitMQ 4 in {}", folder.display()));
        unpack(shell, &folder)?;
    }
    Ok(folder)
}

/// Made beside and put in place when it is whole: somebody else may be doing the same.
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
    // A link whose target lies in the folder itself.
    folder.join("usr/lib/rabbitmq/bin/rabbitmq-server").exists()
}
