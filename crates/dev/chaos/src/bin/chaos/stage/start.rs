//! Commands and settings of the processes of a round.

use std::fs::{self, File};
use std::io::{PipeWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use nsbridge_crypto::{Entry, Key, Keyring, State};
use nsbridge_protocol::ModelName;
use rustix::pipe::fcntl_setpipe_size;

use super::KEYRING;
use crate::python_client::Kind;
use crate::servers::Addresses;
use crate::watched::Trick;

/// Size of a pipe that is not read: one page, the least that Linux permits.
const PIPE_BYTES: usize = 4096;

/// Settings of workers.
#[derive(Clone, Debug)]
pub(crate) struct WorkerSettings {
    pub(crate) slots: usize,
    pub(crate) grace_s: u64,
    /// AMQP heartbeat in seconds.
    pub(crate) heartbeat: u32,
    /// True if each piece is sent in a frame of its own.
    pub(crate) frame_each: bool,
    /// Offset of the worker's clock in seconds.
    pub(crate) skew_s: i64,
    /// User of the broker, whose password is the name; `None` is `guest`.
    pub(crate) user: Option<String>,
    /// Maximum number of channels of a connection.
    pub(crate) channel_max: u16,
    /// True if the log is a pipe of one page that is not read.
    pub(crate) log_is_not_read: bool,
    /// Additional tables of the configuration.
    pub(crate) more: String,
    pub(crate) environment: Vec<(&'static str, String)>,
}

/// Settings of clients.
#[derive(Clone, Debug)]
pub(crate) struct ClientSettings {
    /// AMQP heartbeat in seconds.
    pub(crate) heartbeat: u32,
    pub(crate) trick: Trick,
    pub(crate) reply_queue_bytes: Option<u64>,
    pub(crate) kind: Kind,
    /// Interpreter of clients in Python.
    pub(crate) python: Option<PathBuf>,
}

pub(super) fn write_keyring(path: &Path) -> Result<()> {
    let entry = Entry::new("chaos".parse()?, Key::generate()?, State::Primary);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(file.write_all(Keyring::of(vec![entry])?.to_json().as_bytes())?)
}

pub(super) fn worker_command(
    dir: &Path,
    model: &ModelName,
    addresses: &Addresses,
    settings: &WorkerSettings,
    name: &str,
) -> Result<Command> {
    let WorkerSettings { slots, grace_s, heartbeat, frame_each, skew_s, more, environment, .. } =
        settings;
    let channel_max = settings.channel_max;
    let mut broker = addresses.table(&format!("heartbeat={heartbeat}&channel_max={channel_max}"));
    if let Some(user) = &settings.user {
        broker = broker.replace("guest:guest", &format!("{user}:{user}"));
    }
    let (coalesce_ms, coalesce_bytes) = if *frame_each { (0, 1) } else { (20, 4096) };
    let shown = dir.display();
    let config = format!(
        "[worker]\nmodel = \"{model}\"\nname = \"{name}\"\ngrace_s = {grace_s}\n\
         {broker}[keys]\nkeyring = \"{KEYRING}\"\n\
         [reply]\ncoalesce_ms = {coalesce_ms}\ncoalesce_bytes = {coalesce_bytes}\n\
         [handler]\ndir = \"{shown}\"\nworker = \"{name}\"\nslots = {slots}\n{more}"
    );
    let path = dir.join(format!("{name}.toml"));
    fs::write(&path, config)?;
    let mut command = part_command(dir, name, "worker", &path)?;
    if settings.log_is_not_read {
        command.stderr(unread_pipe()?);
    }
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    if *skew_s != 0 {
        command.env("LD_PRELOAD", faketime()?).env("FAKETIME", format!("{skew_s:+}s"));
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
    Ok(command)
}

/// Returns a command that runs this program as another part, with its log in a file.
pub(super) fn part_command(dir: &Path, name: &str, part: &str, config: &Path) -> Result<Command> {
    let log = File::create(dir.join(format!("{name}.log")))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(part).arg(config);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
    Ok(command)
}

/// Returns the writing end of a pipe of one page whose reading end stays open and is never read.
pub(super) fn unread_pipe() -> Result<PipeWriter> {
    let (reader, writer) = std::io::pipe()?;
    fcntl_setpipe_size(&writer, PIPE_BYTES)?;
    // Closed with this process: a closed reading end would be an error of the writer.
    std::mem::forget(reader);
    Ok(writer)
}

/// Returns the path of libfaketime.
fn faketime() -> Result<PathBuf> {
    let folders = Path::new("/usr/lib").read_dir()?.flatten().map(|entry| entry.path());
    let mut found = folders.map(|folder| folder.join("faketime/libfaketime.so.1"));
    found.find(|path| path.exists()).context(
        "a worker's clock cannot be moved without libfaketime: `cargo xtask chaos` installs it, \
         or run `apt-get install faketime`",
    )
}
