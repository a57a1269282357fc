//! `cargo xtask chaos`: the proof by faults.
//!
//! Builds the driver in the dev profile, which takes most of a minute the first time: what it
//! stands on has other features here than in the tests.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use crate::cargo::{self, Cargo};
use crate::{machine, say};

/// The scenario that moves clocks, for which a library is needed.
const CLOCKS: &str = "clock-skew";

/// Every mutant.
const ALL: &str = "all";

/// What is to be played; without anything, each scenario once.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Arguments {
    /// Only this scenario; may be given several times.
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<String>,
    /// How often each is played.
    #[arg(long)]
    rounds: Option<usize>,
    /// What moments and victims of the faults grow from; drawn and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
    /// Rounds that are played at the same time.
    #[arg(long)]
    at_once: Option<usize>,
    /// How long a soak takes.
    #[arg(long)]
    minutes: Option<u64>,
    /// Plays nothing: reads the journals below this folder again.
    #[arg(long, value_name = "DIR", exclusive = true)]
    check: Option<PathBuf>,
    /// Lists the scenarios.
    #[arg(long, exclusive = true)]
    list: bool,
    /// Breaks the code on purpose, one place at a time, and demands that a scenario fails; with a
    /// name, only that place.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = ALL, exclusive = true)]
    mutants: Option<String>,
}

impl Arguments {
    /// Returns the mutants that are wanted instead of scenarios, if any: one by its name, or all.
    pub(crate) fn mutants(&self) -> Option<Option<&str>> {
        self.mutants.as_deref().map(|name| Some(name).filter(|name| *name != ALL))
    }
}

/// Plays, or does what else the arguments say.
///
/// # Errors
///
/// Something was lost, repeated or run twice, or a scenario did not come out as it must.
pub(crate) fn run(cargo: &Cargo, arguments: &Arguments) -> Result<()> {
    let quiet = arguments.list || arguments.check.is_some();
    if !quiet {
        prepare(&arguments.scenarios)?;
        say::step("chaos");
    }
    ensure!(play(driver(cargo), arguments)?, "the proof by faults failed; it says where above");
    Ok(())
}

/// Makes sure of what these scenarios need; none stands for all.
pub(crate) fn prepare(scenarios: &[String]) -> Result<()> {
    machine::rabbitmq::ready()?;
    if scenarios.is_empty() || scenarios.iter().any(|name| name == CLOCKS) {
        machine::faketime()?;
    }
    Ok(())
}

/// The command that builds and runs the driver.
pub(crate) fn driver(cargo: &Cargo) -> Command {
    let package = ["run", "--quiet", "--package", "nsbridge-testkit", "--features", "chaos"];
    let mut command = cargo.command(&package);
    command.args(["--bin", "chaos", "--"]);
    command
}

fn play(mut command: Command, arguments: &Arguments) -> Result<bool> {
    let Arguments { scenarios, rounds, seed, at_once, minutes, check, list, mutants: _ } =
        arguments;
    if let Some(dir) = check {
        // It runs in the root, wherever we were called.
        command.arg("check").arg(std::path::absolute(dir)?);
        return cargo::run(command);
    }
    if *list {
        command.arg("--list");
        return cargo::run(command);
    }
    for name in scenarios {
        command.args(["--scenario", name]);
    }
    let rounds = rounds.map(|rounds| format!("--rounds={rounds}"));
    let at_once = at_once.map(|at_once| format!("--at-once={at_once}"));
    command.args(minutes.map(|minutes| format!("--minutes={minutes}")));
    command.args(rounds).args(seed.map(|seed| format!("--seed={seed}"))).args(at_once);
    attended(command)
}

/// Runs the driver such that it, its workers and its broker leave when we do, however we go.
pub(crate) fn attended(mut command: Command) -> Result<bool> {
    let mut driver = command.arg("--attended").stdin(Stdio::piped()).spawn()?;
    // Until we drop it, or die.
    let _input = driver.stdin.take();
    Ok(driver.wait()?.success())
}
