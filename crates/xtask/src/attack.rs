//! `cargo xtask attack`: the proof by attack.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::cargo::Cargo;
use crate::{chaos, machine, say};

/// Seconds of the short form, that the continuous integration plays.
pub(crate) const SHORT: u64 = 90;

/// What is to be played.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this attacker: tenant, publisher, broker or folder; may be given several times.
    #[arg(long = "attacker", value_name = "NAME")]
    attackers: Vec<String>,
    /// Seconds of the attack.
    #[arg(long, default_value_t = SHORT)]
    seconds: u64,
    /// What the attacks grow from; drawn and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
}

impl Default for Arguments {
    fn default() -> Self {
        Self { attackers: Vec::new(), seconds: SHORT, seed: None }
    }
}

/// Attacks a worker for so long.
///
/// # Errors
///
/// A promise was broken; the driver has said which.
pub(crate) fn run(cargo: &Cargo, arguments: &Arguments) -> Result<()> {
    machine::rabbitmq::ready()?;
    say::step("attack");
    let Arguments { attackers, seconds, seed } = arguments;
    let mut command = driver(cargo);
    for name in attackers {
        command.args(["--attacker", name]);
    }
    command.arg(format!("--seconds={seconds}")).args(seed.map(|seed| format!("--seed={seed}")));
    ensure!(chaos::attended(command)?, "the attack broke a promise; it says which above");
    Ok(())
}

/// The driver and the features that it needs. It times a worker, and opening 8 MB takes a second where
/// nothing is optimized.
const DRIVER: [&str; 8] = [
    "--config",
    "profile.dev.opt-level=2",
    "--package",
    "nsbridge-testkit",
    "--features",
    "chaos",
    "--bin",
    "attack",
];

/// The command that builds the driver.
pub(crate) fn build(cargo: &Cargo) -> Command {
    let mut command = cargo.command(&["build"]);
    command.args(DRIVER);
    command
}

/// The command that builds and runs the driver.
pub(crate) fn driver(cargo: &Cargo) -> Command {
    let mut command = cargo.command(&["run", "--quiet"]);
    command.args(DRIVER).arg("--");
    command
}
