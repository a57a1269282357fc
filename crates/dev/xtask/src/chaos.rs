//! `cargo xtask chaos`: tests with injected faults.
//!
//! Builds the driver and the command `nsbridge` in the dev profile, which takes minutes the first time:
//! their dependencies have other features here than in the tests, except in `cargo xtask ci`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use crate::cargo::{self, Cargo};
use crate::{machine, output};

/// Scenario that shifts clocks and needs libfaketime.
const CLOCKS: &str = "clock-skew";

/// Scenario with clients of every kind.
const EVERY_CLIENT: &str = "slow-reader";

/// Scenario with vLLM, which is played only when it is named.
pub(crate) const VLLM: &str = "vllm";

/// First part of the names of scenarios with models in Python.
const IN_PYTHON: &str = "python-";

/// Argument that selects every mutant.
pub(crate) const ALL: &str = "all";

/// Selection of scenarios; by default each one runs once.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Arguments {
    /// Runs only this scenario; may be given several times.
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<String>,
    /// Number of rounds of each scenario.
    #[arg(long)]
    rounds: Option<usize>,
    /// Seed of the times and victims of the faults; random and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of concurrent rounds.
    #[arg(long)]
    at_once: Option<usize>,
    /// Duration of a soak test, in minutes.
    #[arg(long)]
    minutes: Option<u64>,
    /// Client that submits the requests.
    #[arg(long, value_enum, default_value_t)]
    client: Client,
    /// Checks the journals below this folder again without running a scenario.
    #[arg(long, value_name = "DIR", exclusive = true)]
    check: Option<PathBuf>,
    /// Lists the scenarios.
    #[arg(long, exclusive = true)]
    list: bool,
    /// Runs the mutation tests: breaks the code in one place at a time and requires that a scenario
    /// fails. With names, separated by commas, runs only these mutants.
    #[arg(
        long, value_name = "NAMES", num_args = 0..=1, value_delimiter = ',',
        default_missing_value = ALL, exclusive = true
    )]
    mutants: Option<Vec<String>>,
    /// True if the tests of the workspace are built: with their features, the dependencies are not
    /// built again.
    #[arg(skip)]
    after_tests: bool,
}

/// Client of the requests of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Client {
    /// Client in Rust.
    #[default]
    Rust,
    /// Client of the Python package. Scenarios with callers of a gateway, and the one with
    /// clients of every kind, are left out.
    Python,
}

impl Arguments {
    /// Returns the arguments of all scenarios after the tests of the workspace.
    pub(crate) fn after_tests() -> Self {
        Self { after_tests: true, ..Self::default() }
    }

    /// Returns the mutants to judge instead of playing scenarios: their names, or [`ALL`].
    pub(crate) fn mutants(&self) -> Option<&[String]> {
        self.mutants.as_deref()
    }
}

/// Runs scenarios, or the other action that the arguments select.
///
/// # Errors
///
/// Returns an error if a piece or request was lost, repeated or run twice, or if a scenario had the
/// wrong outcome.
pub(crate) fn run(cargo: &Cargo, arguments: &Arguments) -> Result<()> {
    let quiet = arguments.list || arguments.check.is_some();
    if !quiet {
        prepare(&arguments.scenarios)?;
        output::step("chaos");
    }
    let driver =
        if arguments.after_tests { driver_of_tests(cargo, "chaos")? } else { driver(cargo)? };
    ensure!(play(driver, arguments)?, "the proof by faults failed; it says where above");
    Ok(())
}

/// Installs the prerequisites of these scenarios; an empty list stands for all.
pub(crate) fn prepare(scenarios: &[String]) -> Result<()> {
    machine::rabbitmq::ready()?;
    if scenarios.is_empty() || scenarios.iter().any(|name| name == CLOCKS) {
        machine::faketime()?;
    }
    if scenarios.is_empty() || scenarios.iter().any(|name| name.starts_with(IN_PYTHON)) {
        machine::python3()?;
    }
    Ok(())
}

/// Returns the command that builds the driver, and beside it the command `nsbridge`, which the driver
/// starts. In two builds they would differ in the features of their dependencies, which all would be
/// built twice.
fn build(cargo: &Cargo) -> Command {
    let packages = ["build", "--quiet", "--package", "nsbridge-chaos", "--package", "nsbridge-cli"];
    let mut command = cargo.command(&packages);
    command.args(["--bin", "chaos", "--bin", "nsbridge"]);
    command
}

/// Builds the driver and returns the command that runs it.
///
/// # Errors
///
/// Returns an error if it does not build.
pub(crate) fn driver(cargo: &Cargo) -> Result<Command> {
    ensure!(cargo::run(build(cargo))?, "the driver does not build");
    Ok(cargo.built("chaos"))
}

/// Builds a driver with the features that the dependencies have in the tests of the workspace, and
/// returns the command that runs it.
pub(crate) fn driver_of_tests(cargo: &Cargo, driver: &str) -> Result<Command> {
    let mut command = cargo.command(&["build", "--quiet", "--workspace", "--test", "it"]);
    command.args(["--bin", driver, "--bin", "nsbridge", "--features"]).arg(cargo.features(&[])?);
    ensure!(cargo::run(command)?, "the driver does not build");
    Ok(cargo.built(driver))
}

/// Adds the interpreter of clients in Python to the arguments of the driver.
///
/// # Errors
///
/// Returns an error if Python is missing or pip could not install the packages.
pub(crate) fn with_python(driver: &mut Command) -> Result<()> {
    driver.arg("--python").arg(machine::client()?);
    Ok(())
}

fn play(mut command: Command, arguments: &Arguments) -> Result<bool> {
    let Arguments { scenarios, rounds, seed, at_once, minutes, client, check, list, .. } =
        arguments;
    if let Some(dir) = check {
        // The driver runs in the repository's root, so the path must be absolute.
        command.arg("check").arg(std::path::absolute(dir)?);
        return cargo::run(command);
    }
    if *list {
        command.arg("--list");
        return cargo::run(command);
    }
    let every_client = scenarios.is_empty() || scenarios.iter().any(|name| name == EVERY_CLIENT);
    if every_client || *client == Client::Python {
        with_python(&mut command)?;
    }
    if *client == Client::Python {
        command.arg("--python-client");
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

/// Runs the driver so that it, its workers and its broker end with this process, however it ends.
pub(crate) fn attended(mut command: Command) -> Result<bool> {
    let mut driver = command.arg("--attended").stdin(Stdio::piped()).spawn()?;
    // The pipe closes when it is dropped or when this process dies.
    let _input = driver.stdin.take();
    Ok(driver.wait()?.success())
}
