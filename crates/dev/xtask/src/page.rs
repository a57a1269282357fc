//! `cargo xtask page`: the tests of the chat page in a browser.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::broker::Broker;
use crate::cargo::{self, Cargo, in_root};
use crate::{machine, output};

/// Program that runs the tests.
const TESTS: &str = "crates/gateway/page/tests/run.mjs";

/// Test that takes the pictures of the documentation. It runs only if it is named.
const PICTURES: &str = "pictures";

/// Selection of tests.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Arguments {
    /// Runs only these tests, such as `a_killed_gateway_loses_nothing`.
    tests: Vec<String>,
    /// Takes the pictures in docs/pictures anew instead.
    #[arg(long, conflicts_with = "tests")]
    pictures: bool,
}

/// Builds the command `nsbridge`, and runs the tests against its gateway and its worker.
///
/// # Errors
///
/// Returns an error if a test failed, or if something is missing and may not be installed.
pub(crate) fn run(cargo: &Cargo, arguments: &Arguments) -> Result<()> {
    output::step("what the tests of the page need");
    machine::rabbitmq::ready()?;
    let smollm2 = machine::models::smollm2()?;
    let target = cargo.target_dir();
    let browser = machine::browser::ready(&target)?;
    // The tests of the workspace are built too, because their dependencies decide which features all
    // crates have: so the command is the one of `cargo xtask test`, and is not compiled again.
    let build = ["build", "--workspace", "--bin", "nsbridge", "--test", "it", "--features"];
    let mut build = cargo.command(&build);
    build.arg(cargo.features(&[])?);
    ensure!(cargo::run(build)?, "the command nsbridge could not be built");
    let broker = Broker::start(cargo)?;
    output::step("the chat page");
    let out = if arguments.pictures {
        cargo::root().join("docs/pictures")
    } else {
        target.join("page/out")
    };
    let mut command = broker.tell(in_root("node"));
    command
        .arg(TESTS)
        .args(&arguments.tests)
        .args(arguments.pictures.then_some(PICTURES))
        .env("NSBRIDGE_TEST_BINARY", target.join("debug/nsbridge"))
        .env("NSBRIDGE_TEST_SMOLLM2", smollm2)
        .env("NSBRIDGE_TEST_CHROMIUM", browser.chromium)
        .env("NSBRIDGE_TEST_NODE", browser.packages)
        .env("NSBRIDGE_TEST_OUT", out);
    ensure!(attended(command)?, "a test of the page failed; it says which above");
    Ok(())
}

/// Runs the tests so that their processes end with this one, however it ends.
fn attended(mut command: Command) -> Result<bool> {
    let mut tests = command.stdin(Stdio::piped()).spawn().context("starting node")?;
    // The pipe closes when it is dropped or when this process dies.
    let _input = tests.stdin.take();
    Ok(tests.wait()?.success())
}
