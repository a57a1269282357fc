//! Private RabbitMQ node of a test run.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::cargo::Cargo;
use crate::output;

/// Environment variable with the URL of the broker for tests and benchmarks.
const VARIABLE: &str = "NSBRIDGE_TEST_AMQP_URL";

/// RabbitMQ node that is stopped on drop.
///
/// A helper process stops the node when its standard input closes, so the node ends with this
/// process in any case: after a failed test, a Ctrl-C or a kill.
#[derive(Debug)]
pub(crate) struct Broker {
    keeper: Option<Child>,
    url: String,
}

impl Broker {
    /// Starts a node, unless the environment names one.
    ///
    /// # Errors
    ///
    /// Returns an error if the node does not start.
    pub(crate) fn start(cargo: &Cargo) -> Result<Self> {
        if let Some(url) = env::var_os(VARIABLE).and_then(|url| url.into_string().ok()) {
            output::step(&format!("RabbitMQ: the one that {VARIABLE} names"));
            return Ok(Self { keeper: None, url });
        }
        output::step("a private RabbitMQ");
        let arguments = ["run", "--quiet", "--package", "nsbridge-testkit", "--bin", "node"];
        let mut command = cargo.command(&arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = command.spawn().context("starting RabbitMQ")?;
        let mut line = String::new();
        let stdout = keeper.stdout.take().context("its output is a pipe")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let url = line.trim().strip_prefix(VARIABLE).and_then(|rest| rest.strip_prefix('='));
        let url = url.map(str::to_owned);
        let broker = Self { keeper: Some(keeper), url: url.unwrap_or_default() };
        (!broker.url.is_empty()).then_some(broker).context("the private RabbitMQ did not start")
    }

    /// Returns true if the environment names a broker.
    pub(crate) fn is_named() -> bool {
        env::var_os(VARIABLE).is_some()
    }

    /// Returns the URL of the node.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Passes the URL of the node to a command.
    pub(crate) fn tell(&self, mut command: Command) -> Command {
        command.env(VARIABLE, &self.url);
        command
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
    }
}
