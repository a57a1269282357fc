//! Directory, ports and environment of a private RabbitMQ node.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::authority::Authority;
use super::ports::Ports;
use super::{Config, Place};

const KEEPER: &str = include_str!("keeper.sh");

/// Shell script that runs the program `$2` in the system at `$1`, by `chroot` in a mount namespace
/// of its own. RabbitMQ reads its memory use from `/proc`, so the namespace mounts one.
const ENTER: &str = "exec unshare --mount /bin/sh -c \
    'mount --bind /proc \"$0/proc\" && exec chroot \"$0\" \"$@\"' \"$@\"";

/// Base of `rabbitmq.conf`. The limits are never reached: tests are not about disk and memory
/// alarms.
const CONF: &str = "\
disk_free_limit.absolute = 1MB
vm_memory_high_watermark.relative = 0.9
log.console = false
";

/// Emulator flags that turn off busy waiting. Erlang's schedulers otherwise spin on processors that
/// the tests need.
const ERLANG: &str = "+sbwt none +sbwtdcpu none +sbwtdio none";

/// Files, ports and environment that a node is started from.
#[derive(Debug)]
pub(super) struct Node {
    place: Place,
    home: TempDir,
    ports: Ports,
    environment: Vec<(&'static str, String)>,
}

/// Shell script that runs a port mapper of Erlang on the port `$1` until its standard input closes; `$2`
/// and `$3` as in the keeper.
const MAPPER: &str = "\
    if [ -n \"$3\" ]; then \
        /bin/sh -c \"$2\" enter \"$3\" epmd -port \"$1\" -address 127.0.0.1 >/dev/null 2>&1 </dev/null & \
    else \
        epmd -port \"$1\" -address 127.0.0.1 >/dev/null 2>&1 </dev/null & \
    fi; read -r _; kill -KILL $!";

/// Starts a port mapper, which the nodes of a cluster share. It ends when its standard input closes.
pub(super) fn start_mapper(place: &Place, port: u16) -> Result<Child> {
    let mut mapper = Command::new("/bin/sh");
    mapper.args(["-c", MAPPER, "mapper", &port.to_string()]);
    if let Some(root) = &place.root {
        mapper.arg(ENTER).arg(root);
    }
    mapper.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    mapper.spawn().context("starting the port mapper of RabbitMQ")
}

impl Node {
    /// Writes the node's files. With a port of a shared port mapper, the node's own does not start. With
    /// an authority, the node listens for TLS too, and `config.advanced` is not used.
    pub(super) fn prepare(
        place: &Place,
        config: &Config,
        mapper: Option<u16>,
        authority: Option<&Authority>,
    ) -> Result<Self> {
        let mut home = tempfile::Builder::new();
        let home = home.prefix("nsbridge-rabbit-");
        let home = match &place.root {
            Some(root) => home.tempdir_in(root.join("tmp")),
            None => home.tempdir(),
        };
        let home = home.context("making RabbitMQ's directory")?;
        let ports = Ports::take()?;
        let [port, epmd, distribution, tls] = ports.numbers;
        let root = home.path();
        let listener = authority.map(|authority| authority.listener(tls, &[])).transpose()?;
        let advanced = listener.map(|listener| format!("[{{rabbit, [{listener}]}}]."));
        let config = &Config { advanced: advanced.or(config.advanced.clone()), ..config.clone() };
        write_files(root, config).context("preparing RabbitMQ's directory")?;
        let seen = seen_from(place.root.as_deref(), root);
        let inside = |name: &str| seen.join(name).display().to_string();
        let environment = vec![
            ("HOME", inside("")),
            ("ERL_CRASH_DUMP", inside("erl_crash.dump")),
            // A second port mapper on the port of a shared one ends at once.
            ("ERL_EPMD_PORT", mapper.unwrap_or(epmd).to_string()),
            ("RABBITMQ_NODENAME", format!("nsbridge-{port}@localhost")),
            ("RABBITMQ_NODE_IP_ADDRESS", Ipv4Addr::LOCALHOST.to_string()),
            ("RABBITMQ_NODE_PORT", port.to_string()),
            ("RABBITMQ_DIST_PORT", distribution.to_string()),
            ("RABBITMQ_MNESIA_BASE", inside("mnesia")),
            ("RABBITMQ_LOG_BASE", inside("log")),
            ("RABBITMQ_PID_FILE", inside("pid")),
            ("RABBITMQ_CONFIG_FILE", inside("rabbitmq.conf")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", inside("advanced.config")),
            ("RABBITMQ_CONF_ENV_FILE", inside("rabbitmq-env.conf")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", inside("enabled_plugins")),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", ERLANG.to_owned()),
        ];
        Ok(Self { place: place.clone(), ports, environment, home })
    }

    pub(super) fn port(&self) -> u16 {
        self.ports.numbers[0]
    }

    /// Returns the port of the TLS listener.
    pub(super) fn tls_port(&self) -> u16 {
        self.ports.numbers[3]
    }

    /// Returns the name of the node in Erlang.
    pub(super) fn name(&self) -> String {
        format!("nsbridge-{}@localhost", self.port())
    }

    /// Returns a command that runs one of RabbitMQ's own scripts in the environment of this node.
    pub(super) fn command(&self, script: &str) -> Command {
        let script = self.place.scripts.join(script);
        let Some(root) = &self.place.root else { return self.in_environment(script) };
        let mut command = self.in_environment("/bin/sh");
        command.args(["-c", ENTER, "enter"]).arg(root).arg(script);
        command
    }

    /// Starts the keeper shell, which starts the node.
    pub(super) fn spawn(&self) -> Result<Child> {
        let mut keeper = self.in_environment("/bin/sh");
        keeper.args(["-c", KEEPER, "keeper"]).arg(&self.place.scripts).arg(self.home.path());
        if let Some(root) = &self.place.root {
            keeper.arg(ENTER).arg(root);
        }
        // The keeper gets its own process group, so signals of a terminal or test runner do not
        // reach it.
        keeper.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        keeper.spawn().context("starting RabbitMQ")
    }

    /// Returns true if the node ended by itself.
    pub(super) fn has_ended(&self) -> bool {
        self.home.path().join("ended").exists()
    }

    /// Returns the last 30 lines of the node's output, for an error message.
    pub(super) fn last_words(&self) -> String {
        let output = fs::read_to_string(self.home.path().join("output.log")).unwrap_or_default();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Returns the whole log of the node, across its restarts.
    pub(super) fn log(&self) -> String {
        let file = format!("log/{}.log", self.name());
        let text = fs::read(self.home.path().join(file)).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    fn in_environment(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Returns `path` as a process in the chroot `root` sees it.
fn seen_from(root: Option<&Path>, path: &Path) -> PathBuf {
    let below = root.and_then(|root| path.strip_prefix(root).ok());
    below.map_or_else(|| path.to_owned(), |below| Path::new("/").join(below))
}

fn write_files(root: &Path, config: &Config) -> Result<()> {
    let conf = format!("{CONF}{}\n", config.conf.join("\n"));
    fs::write(root.join("rabbitmq.conf"), conf)?;
    fs::write(root.join("advanced.config"), config.advanced.as_deref().unwrap_or("[]."))?;
    fs::write(root.join("rabbitmq-env.conf"), "")?;
    fs::write(root.join("enabled_plugins"), format!("[{}].", config.plugins.join(",")))?;
    let cookie = root.join(".erlang.cookie");
    fs::write(&cookie, "nsbridgetests")?;
    fs::set_permissions(&cookie, fs::Permissions::from_mode(0o400))?;
    Ok(())
}
