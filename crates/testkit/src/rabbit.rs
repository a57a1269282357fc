//! A RabbitMQ node of one's own: own ports, own directory, gone with the test.
//!
//! Nothing of a node that the system may run is touched, and any user can start one. A small shell
//! process stands between: when its standard input ends, because the test process died in whatever
//! way, it kills the node and removes its files.

mod node;
mod ports;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use node::Node;

const START_WITHIN: Duration = Duration::from_secs(90);
const STOP_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Where Debian and its kin keep RabbitMQ's own scripts, which run as any user.
const PLACES: [&str; 2] = ["/usr/lib/rabbitmq/bin", "/usr/local/lib/rabbitmq/bin"];

/// What a node is started with besides its defaults.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Further lines of `rabbitmq.conf`.
    pub conf: Vec<String>,
    /// The text of `advanced.config`, an Erlang term with a full stop.
    pub advanced: Option<String>,
}

/// A running node. Dropping it ends the node and removes its files.
#[derive(Debug)]
pub struct Rabbit {
    node: Node,
    keeper: Option<Child>,
    port: u16,
}

impl Rabbit {
    /// Starts a node and waits until it speaks AMQP.
    ///
    /// # Errors
    ///
    /// RabbitMQ is not installed, or did not start within 90 seconds.
    pub fn start() -> Result<Self> {
        Self::with(&Config::default())
    }

    /// Starts a node with further configuration.
    ///
    /// # Errors
    ///
    /// RabbitMQ is not installed, or did not start within 90 seconds.
    pub fn with(config: &Config) -> Result<Self> {
        let node = Node::prepare(&Place::find()?, config)?;
        let mut rabbit = Self { port: node.port(), node, keeper: None };
        rabbit.launch()?;
        Ok(rabbit)
    }

    /// The address of the node, for user `guest` and the virtual host `/`.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// The address of its AMQP socket.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Runs `rabbitmqctl` against the node and gives what it printed.
    ///
    /// # Errors
    ///
    /// It did not run, or told a failure.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.node.command("rabbitmqctl");
        let output = command.args(arguments).output().context("running rabbitmqctl")?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "rabbitmqctl {arguments:?} failed: {told}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Stops the node in good order and starts it again, on the same ports with the same data.
    ///
    /// # Errors
    ///
    /// It did not come back within 90 seconds.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.launch()
    }

    /// Kills the node where it stands and starts it again, on the same ports with the data that it had
    /// written.
    ///
    /// # Errors
    ///
    /// It did not come back within 90 seconds.
    pub fn crash(&mut self) -> Result<()> {
        self.end("kill")?;
        self.launch()
    }

    /// Stops the node in good order. Its data stays until it is dropped.
    ///
    /// # Errors
    ///
    /// It was still there after 30 seconds, and was killed; or it ended without a word.
    pub fn stop(&mut self) -> Result<()> {
        let began = self.node.log().len();
        if self.end("stop")? {
            let said = self.node.log().split_off(began);
            ensure!(said.contains("stopped TCP listener"), "the RabbitMQ node ended in disorder");
        }
        Ok(())
    }

    /// Whether there was one to be ended.
    fn end(&mut self, order: &str) -> Result<bool> {
        let Some(mut keeper) = self.keeper.take() else { return Ok(false) };
        if let Some(mut orders) = keeper.stdin.take() {
            writeln!(orders, "{order}").context("telling the node to end")?;
            orders.flush()?;
            // The keeper takes the end of its input for our death, so it stays open meanwhile.
            let ended = wait_for(STOP_WITHIN, || matches!(keeper.try_wait(), Ok(Some(_))));
            drop(orders);
            keeper.wait()?;
            ensure!(ended, "the RabbitMQ node did not stop within {STOP_WITHIN:?} and was killed");
        }
        Ok(true)
    }

    fn launch(&mut self) -> Result<()> {
        self.keeper = Some(self.node.spawn()?);
        let up = wait_for(START_WITHIN, || speaks_amqp(self.addr()) || self.has_ended());
        if !up || self.has_ended() {
            bail!("the RabbitMQ node did not start; it says:\n{}", self.node.last_words());
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.node.has_ended()
    }
}

impl Drop for Rabbit {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            // The end of its input is the order to kill the node.
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
    }
}

/// The address of the broker for this test process.
///
/// That is `NSBRIDGE_TEST_AMQP_URL`, which `cargo xtask test` sets to a node that it started once
/// for all tests. Without it, the first call starts a node that lives as long as this process.
///
/// # Panics
///
/// If there is no RabbitMQ: a test that needs one must not pass without.
#[expect(clippy::panic, reason = "for tests, which end here with this sentence")]
pub fn amqp_url() -> String {
    #[expect(clippy::disallowed_methods, reason = "the testkit is an edge")]
    if let Ok(url) = std::env::var("NSBRIDGE_TEST_AMQP_URL") {
        return url;
    }
    static OURS: Mutex<Option<Rabbit>> = Mutex::new(None);
    let mut ours = OURS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match &mut *ours {
        Some(rabbit) => rabbit.url(),
        none => match Rabbit::start() {
            Ok(rabbit) => none.insert(rabbit).url(),
            Err(error) => panic!("{error:#}"),
        },
    }
}

/// Where RabbitMQ is.
#[derive(Clone, Debug)]
struct Place {
    /// The folder of its own scripts.
    scripts: PathBuf,
    /// The folder of another system, which it must be run in by `chroot`.
    root: Option<PathBuf>,
}

impl Place {
    fn find() -> Result<Self> {
        if let Some(root) = std::env::var_os("NSBRIDGE_TEST_RABBITMQ_ROOT") {
            return Ok(Self { scripts: PLACES[0].into(), root: Some(root.into()) });
        }
        let there = |place: &&str| Path::new(place).join("rabbitmq-server").exists();
        let scripts = PLACES.into_iter().find(there).map(PathBuf::from).context(
            "this test needs RabbitMQ: `cargo xtask test` installs and starts it, or set \
             NSBRIDGE_TEST_AMQP_URL to the address of one that tests may fill",
        )?;
        Ok(Self { scripts, root: None })
    }
}

/// Whether something at `addr` answers an AMQP greeting.
fn speaks_amqp(addr: SocketAddr) -> bool {
    let greet = || -> std::io::Result<()> {
        let mut socket = TcpStream::connect_timeout(&addr, LOOK_EVERY)?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        socket.write_all(b"AMQP\x00\x00\x09\x01")?;
        socket.read_exact(&mut [0])
    };
    greet().is_ok()
}

fn wait_for(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    true
}
