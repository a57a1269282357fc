//! `cargo xtask attack`: runs attacks against a worker.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::cargo::Cargo;
use crate::{chaos, machine, output};

/// Duration of the short run in the continuous integration, in seconds.
pub(crate) const SHORT_RUN_SECONDS: u64 = 90;

/// Selection of attackers.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Runs only this attacker: tenant, publisher, broker, folder, prompt or gateway; may be given several times.
    #[arg(long = "attacker", value_name = "NAME")]
    attackers: Vec<String>,
    /// Duration of the attack, in seconds.
    #[arg(long, default_value_t = SHORT_RUN_SECONDS)]
    seconds: u64,
    /// Seed of the attacks; random and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
    /// True if the tests of the workspace are built: with their features, the dependencies are not
    /// built again.
    #[arg(skip)]
    after_tests: bool,
}

impl Default for Arguments {
    fn default() -> Self {
        Self { attackers: Vec::new(), seconds: SHORT_RUN_SECONDS, seed: None, after_tests: false }
    }
}

impl Arguments {
    /// Returns the arguments of a short run after the tests of the workspace.
    pub(crate) fn after_tests() -> Self {
        Self { after_tests: true, ..Self::default() }
    }
}

/// Attacks a worker for the given time.
///
/// # Errors
///
/// Returns an error if a promise was broken. The driver has printed which one.
pub(crate) fn run(cargo: &Cargo, arguments: &Arguments) -> Result<()> {
    machine::rabbitmq::ready()?;
    output::step("attack");
    let Arguments { attackers, seconds, seed, after_tests } = arguments;
    let mut command = if *after_tests {
        let mut driver = chaos::driver_of_tests(cargo, "attack")?;
        driver.arg(SLOWER_IN_TESTS);
        driver
    } else {
        driver(cargo)
    };
    for name in attackers {
        command.args(["--attacker", name]);
    }
    command.arg(format!("--seconds={seconds}")).args(seed.map(|seed| format!("--seed={seed}")));
    ensure!(chaos::attended(command)?, "the attack broke a promise; it says which above");
    Ok(())
}

/// Cargo arguments for the driver. It measures a worker's times, and opening 8 MB takes a second in
/// an unoptimized build.
const DRIVER: [&str; 6] =
    ["--config", "profile.dev.opt-level=2", "--package", "nsbridge-chaos", "--bin", "attack"];

/// Allowed ratio of the well-behaved tenant's time to first token under attack, in the build of the
/// tests, which is optimized in part only.
const SLOWER_IN_TESTS: &str = "--slower=10";

/// Returns the command that builds the driver.
pub(crate) fn build(cargo: &Cargo) -> Command {
    let mut command = cargo.command(&["build"]);
    command.args(DRIVER);
    command
}

/// Returns the command that builds and runs the driver.
pub(crate) fn driver(cargo: &Cargo) -> Command {
    let mut command = cargo.command(&["run", "--quiet"]);
    command.args(DRIVER).arg("--");
    command
}
