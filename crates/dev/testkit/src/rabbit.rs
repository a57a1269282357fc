//! Private RabbitMQ node of a test, with its own ports and directory; removed when the test ends.
//!
//! The node shares nothing with a RabbitMQ that the system runs, and starts without root. A small
//! keeper shell runs between the test process and the node. When its standard input closes, because
//! the test process ended in whatever way, the keeper kills the node and removes its files.

mod authority;
mod cluster;
mod node;
mod ports;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

pub use authority::Authority;
pub use cluster::{Cluster, QueueState};
use node::Node;

const START_WITHIN: Duration = Duration::from_secs(90);
const STOP_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Folders of RabbitMQ's own scripts in Debian and its derivatives; these scripts run as any user.
const PLACES: [&str; 2] = ["/usr/lib/rabbitmq/bin", "/usr/local/lib/rabbitmq/bin"];

/// Configuration of a node besides the defaults.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Additional lines of `rabbitmq.conf`.
    pub conf: Vec<String>,
    /// Content of `advanced.config`: an Erlang term that ends with a full stop.
    pub advanced: Option<String>,
    /// Names of plugins that are enabled.
    pub plugins: Vec<String>,
}

/// Running RabbitMQ node. Dropping it kills the node and removes its files.
#[derive(Debug)]
pub struct Rabbit {
    node: Node,
    keeper: Option<Child>,
    port: u16,
}

impl Rabbit {
    /// Starts a node and waits until it answers AMQP.
    ///
    /// # Errors
    ///
    /// Returns an error if RabbitMQ is not installed, or if the node does not start within 90
    /// seconds.
    pub fn start() -> Result<Self> {
        Self::with(&Config::default())
    }

    /// Starts a node with the management plugin. Returns it with the address of the management API.
    ///
    /// # Errors
    ///
    /// Returns an error if RabbitMQ is not installed, or if the node does not start within 90
    /// seconds.
    pub fn with_management() -> Result<(Self, String)> {
        // The port was free a moment ago. If another process takes it first, the node does not start.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let conf =
            vec![format!("management.tcp.port = {port}"), "management.tcp.ip = 127.0.0.1".into()];
        let plugins = vec!["rabbitmq_management".to_owned()];
        let node = Self::with(&Config { conf, plugins, ..Config::default() })?;
        Ok((node, format!("http://127.0.0.1:{port}")))
    }

    /// Starts a node with additional configuration and waits until it answers AMQP.
    ///
    /// # Errors
    ///
    /// Returns an error if RabbitMQ is not installed, or if the node does not start within 90
    /// seconds.
    pub fn with(config: &Config) -> Result<Self> {
        Self::launched(Node::prepare(&Place::find()?, config, None, None)?)
    }

    fn launched(node: Node) -> Result<Self> {
        let mut rabbit = Self::of(node);
        rabbit.launch()?;
        Ok(rabbit)
    }

    fn of(node: Node) -> Self {
        Self { port: node.port(), node, keeper: None }
    }

    /// Returns the AMQP URL of the node, for user `guest` and the virtual host `/`.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Returns the socket address of the node's AMQP listener.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the socket address of the node's TLS listener, which a node of
    /// [`Cluster::over_tls`] has.
    pub fn tls_addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.node.tls_port()).into()
    }

    /// Runs `rabbitmqctl` against the node and returns its standard output.
    ///
    /// # Errors
    ///
    /// Returns an error if `rabbitmqctl` cannot be started or fails; the error contains its
    /// standard error.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String> {
        self.run("rabbitmqctl", arguments)
    }

    /// Puts the node into maintenance mode, as before an upgrade: it closes its connections and
    /// listeners, and hands its queues' leadership over. A restart ends the mode.
    ///
    /// # Errors
    ///
    /// Returns an error if `rabbitmq-upgrade` cannot be started or fails.
    pub fn drain(&self) -> Result<()> {
        self.run("rabbitmq-upgrade", &["drain"]).map(drop)
    }

    fn run(&self, script: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.node.command(script);
        let output =
            command.args(arguments).output().with_context(|| format!("running {script}"))?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{script} {arguments:?} failed: {told}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Stops the node gracefully and starts it again, on the same ports with the same data.
    ///
    /// # Errors
    ///
    /// Returns an error if the node does not stop gracefully, or does not come back within 90
    /// seconds.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.launch()
    }

    /// Kills the node and starts it again, on the same ports with the data that it had written.
    ///
    /// # Errors
    ///
    /// Returns an error if the node does not come back within 90 seconds.
    pub fn crash(&mut self) -> Result<()> {
        self.kill()?;
        self.launch()
    }

    /// Kills the node. The data that it had written stays until the `Rabbit` is dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if the node's keeper does not answer.
    pub fn kill(&mut self) -> Result<()> {
        self.end("kill").map(drop)
    }

    /// Stops the node gracefully. Its data stays until the `Rabbit` is dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if the node did not stop within 30 seconds and was killed, or if it ended
    /// without logging a graceful stop.
    pub fn stop(&mut self) -> Result<()> {
        let began = self.node.log().len();
        if self.end("stop")? {
            let said = self.node.log().split_off(began);
            ensure!(said.contains("stopped TCP listener"), "the RabbitMQ node ended in disorder");
        }
        Ok(())
    }

    /// Ends the node with a command for the keeper. Returns true if a node was running.
    fn end(&mut self, order: &str) -> Result<bool> {
        let Some(mut keeper) = self.keeper.take() else { return Ok(false) };
        if let Some(mut orders) = keeper.stdin.take() {
            writeln!(orders, "{order}").context("telling the node to end")?;
            orders.flush()?;
            // The keeper takes a closed input for the death of this process, so the pipe stays open
            // until the keeper has ended.
            let ended = wait_for(STOP_WITHIN, || matches!(keeper.try_wait(), Ok(Some(_))));
            drop(orders);
            keeper.wait()?;
            ensure!(ended, "the RabbitMQ node did not stop within {STOP_WITHIN:?} and was killed");
        }
        Ok(true)
    }

    /// Starts the node again after [`stop`](Self::stop) or [`kill`](Self::kill), on the same ports with
    /// its data.
    ///
    /// # Errors
    ///
    /// Returns an error if the node does not come back within 90 seconds.
    pub fn launch(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait_until_up()
    }

    fn spawn(&mut self) -> Result<()> {
        self.keeper = Some(self.node.spawn()?);
        Ok(())
    }

    fn wait_until_up(&self) -> Result<()> {
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
            // The closed pipe makes the keeper kill the node.
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
    }
}

/// Returns the AMQP URL of the broker for this test process.
///
/// The URL is `NSBRIDGE_TEST_AMQP_URL`, which `cargo xtask test` sets to a node that it started
/// once for all tests. Without the variable, the first call starts a node that lives as long as
/// this process.
///
/// # Panics
///
/// Panics if no RabbitMQ can be started: a test that needs a broker must not pass without one.
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

/// Location of the RabbitMQ installation.
#[derive(Clone, Debug)]
struct Place {
    /// Folder of RabbitMQ's own scripts.
    scripts: PathBuf,
    /// Root of another system in which RabbitMQ has to run, by `chroot`.
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

    /// Returns the major and the minor number of RabbitMQ's version; `None` if its folder does not tell.
    fn version(&self) -> Option<(u32, u32)> {
        let folder = self.scripts.parent()?.join("lib");
        let folder = match &self.root {
            Some(root) => root.join(folder.strip_prefix("/").ok()?),
            None => folder,
        };
        let names = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
        names.filter_map(|name| name.into_string().ok()).find_map(|name| {
            let mut numbers = name.strip_prefix("rabbitmq_server-")?.split('.');
            let mut next = || numbers.next()?.parse().ok();
            Some((next()?, next()?))
        })
    }
}

/// Returns true if the server at `addr` answers an AMQP protocol header.
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
