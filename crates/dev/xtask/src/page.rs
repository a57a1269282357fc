//! `cargo xtask page`: the tests of the chat page in a browser.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::broker::Broker;
use crate::cargo::{self, Cargo, in_root};
use crate::{machine, output};

/// Program that runs the tests.
const TESTS: &str = "crates/gateway/page/tests/run.mjs";

/// Program that makes the bundles of the page's libraries.
const BUNDLES: &str = "crates/gateway/page/vendor/build.mjs";

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
    /// Makes the bundles of the page's libraries anew instead, as their lock file pins them.
    #[arg(long, conflicts_with_all = ["tests", "pictures"])]
    bundle: bool,
}

/// Checks the bundles of the page, builds the command `nsbridge`, and runs the tests against its gateway and its worker.
///
/// # Errors
///
/// Returns an error if a bundle is not what its lock file makes, if a test failed, or if something is missing and may not be installed.
pub(crate) fn run(cargo: &Cargo, arguments: &Arguments) -> Result<()> {
    output::step("the bundles of the page");
    bundles(&cargo.target_dir(), arguments.bundle)?;
    if arguments.bundle {
        return Ok(());
    }
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

/// Compares the bundles with the ones that are made of their packages, or writes them.
fn bundles(target: &Path, write: bool) -> Result<()> {
    let packages = machine::browser::bundler(target)?;
    let mut node = in_root("node");
    node.arg(BUNDLES).arg(packages).args(write.then_some("--write"));
    ensure!(cargo::run(node)?, "the bundles of the page were not made; it says why above");
    Ok(())
}

/// Runs the tests so that their processes end with this one, however it ends.
fn attended(mut command: Command) -> Result<bool> {
    let mut tests = command.stdin(Stdio::piped()).spawn().context("starting node")?;
    // The pipe closes when it is dropped or when this process dies.
    let _input = tests.stdin.take();
    Ok(tests.wait()?.success())
}
