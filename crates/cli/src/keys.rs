//! `nsbridge keys`: commands for keyrings.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use nsbridge_crypto::{Entry, Key, Keyring, Scope, State};
use nsbridge_protocol::{KeyId, ModelName, Tenant};
use serde_json::json;

use crate::failure::note;
use crate::terminal::print_line;

/// Generates, lists, rotates and derives keyrings.
#[derive(Debug, clap::Args)]
#[command(after_help = "A rotation of the workers' keyring, in order:\n\
    \x20 nsbridge keys rotate keys.json                  adds a key that only opens: copy the file to all workers\n\
    \x20 nsbridge keys rotate keys.json --promote ID     makes it primary: copy the file to all workers, and give\n\
    \x20                                                 each client a new file by `nsbridge keys derive`\n\
    \x20 nsbridge keys rotate keys.json --disable OLD    after 14 days: copy the file to all workers\n\n\
    A client must not get a master key. Only a keyring made with --shared is copied to clients.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Generates a keyring with one new master key, for workers only, readable by its owner alone.
    Generate {
        /// File to write; an existing file is never overwritten.
        #[arg(long, value_name = "FILE", default_value = "keys.json")]
        out: PathBuf,
        /// Id of the key; made from the current time if absent.
        #[arg(long)]
        id: Option<KeyId>,
        /// Generates a key that all clients share, instead of a master key from which each tenant's
        /// key is derived. Each client can then read and forge the requests of all.
        #[arg(long)]
        shared: bool,
    },
    /// Lists the keys of a keyring without their key bytes.
    List {
        /// Keyring file.
        #[arg(default_value = "keys.json")]
        keyring: PathBuf,
        /// Prints one JSON object per key.
        #[arg(long)]
        json: bool,
    },
    /// Adds a key to the workers' keyring, or changes the state of one.
    Rotate {
        /// Keyring file.
        #[arg(default_value = "keys.json")]
        keyring: PathBuf,
        /// Seals with this key from now on; the old key still opens.
        #[arg(long, value_name = "ID", conflicts_with = "disable")]
        promote: Option<KeyId>,
        /// Disables this key for sealing and opening.
        #[arg(long, value_name = "ID")]
        disable: Option<KeyId>,
    },
    /// Derives the keyring of one tenant for one model.
    Derive {
        /// Keyring file with the master key.
        #[arg(default_value = "keys.json")]
        keyring: PathBuf,
        /// Tenant that receives the keyring.
        #[arg(long)]
        tenant: Tenant,
        /// Model that the key is for.
        #[arg(long)]
        model: ModelName,
        /// File for the tenant's keyring.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        Command::Generate { out, id, shared } => generate(&out, id, shared)?,
        Command::List { keyring, json } => list(&Keyring::load(&keyring)?, json)?,
        Command::Rotate { keyring, promote, disable } => rotate(&keyring, promote, disable)?,
        Command::Derive { keyring, tenant, model, out } => {
            derive(&keyring, &Scope { model, tenant }, &out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Creates a keyring with one new key, and tells about it.
pub(crate) fn generate(out: &Path, id: Option<KeyId>, shared: bool) -> Result<()> {
    let mut entry = Entry::new(id.map_or_else(new_id, Ok)?, Key::generate()?, State::Primary);
    entry.is_master = !shared;
    let (id, check) = (entry.id.clone(), entry.check_value());
    create(
        out,
        &Keyring::of(vec![entry])?,
        "name another file, or add a key to it with `keys rotate`",
    )?;
    let kind = if shared { "shared key" } else { "master key" };
    note(&format!("{}: {kind} {id}, check value {check}", out.display()));
    if !shared {
        note(
            "give this file to workers only: `nsbridge keys derive` makes a keyring for a tenant's clients",
        );
    }
    Ok(())
}

fn list(ring: &Keyring, as_json: bool) -> Result<()> {
    for entry in ring.entries() {
        let check = entry.check_value();
        if as_json {
            let Entry { id, state, models, tenants, is_master, .. } = entry;
            let line = json!({
                "id": id, "state": state, "check": check,
                "models": models, "tenants": tenants, "derived": is_master,
            });
            print_line(&line.to_string())?;
        } else {
            let state = format!("{:?}", entry.state).to_lowercase();
            let master = if entry.is_master { "  master" } else { "" };
            let line = format!("{}  {state}  {check}{}{master}", entry.id, scope(entry));
            print_line(&line)?;
        }
    }
    Ok(())
}

fn scope(entry: &Entry) -> String {
    let models = entry.models.iter().flatten().map(|model| format!("  model {model}"));
    let tenants = entry.tenants.iter().flatten().map(|tenant| format!("  tenant {tenant}"));
    models.chain(tenants).collect()
}

fn rotate(path: &Path, promote: Option<KeyId>, disable: Option<KeyId>) -> Result<()> {
    let mut entries = Keyring::load(path)?.entries().to_vec();
    let said = match (promote, disable) {
        (Some(id), _) => {
            let Some(promoted) = entries.iter().find(|entry| entry.id == id) else {
                bail!("there is no key {id} in {}", path.display());
            };
            ensure!(
                promoted.state != State::Disabled,
                "{id} is disabled and may have leaked: promote another key, or add one by `keys rotate`"
            );
            for entry in &mut entries {
                match entry.state {
                    _ if entry.id == id => entry.state = State::Primary,
                    State::Primary => entry.state = State::Decrypt,
                    _ => {}
                }
            }
            format!("{id} seals from now on")
        }
        (None, Some(id)) => {
            let Some(entry) = entries.iter_mut().find(|entry| entry.id == id) else {
                bail!("there is no key {id} in {}", path.display());
            };
            ensure!(entry.state != State::Primary, "{id} is primary: promote another key first");
            entry.state = State::Disabled;
            format!("{id} is disabled")
        }
        (None, None) => {
            let mut entry = Entry::new(new_id()?, Key::generate()?, State::Decrypt);
            // The new key will become the primary one, so it is a master if the primary one is.
            let primary = entries.iter().find(|entry| entry.state == State::Primary);
            entry.is_master = primary.is_some_and(|primary| primary.is_master);
            let said = format!("{} was added and only opens as yet", entry.id);
            entries.push(entry);
            said
        }
    };
    replace(path, &Keyring::of(entries)?)?;
    note(&format!("{}: {said}", path.display()));
    Ok(())
}

fn derive(path: &Path, scope: &Scope, out: &Path) -> Result<()> {
    let ring = Keyring::load(path)?;
    let masters = ring.entries().iter().filter(|entry| entry.is_master);
    let keys: Vec<Entry> = masters.map(|master| master.derive(scope)).collect();
    ensure!(
        !keys.is_empty(),
        "{} has no master key: `nsbridge keys generate` makes one",
        path.display()
    );
    create(out, &Keyring::of(keys)?, "write to another file, and rename that over it")
}

/// Creates a keyring file. `if_exists` completes the error of a path that exists.
fn create(path: &Path, ring: &Keyring, if_exists: &str) -> Result<()> {
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = match file {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{} exists: {if_exists}", path.display())
        }
        file => file.with_context(|| format!("cannot create {}", path.display()))?,
    };
    let written = file.write_all(ring.to_json().as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // Half a keyring would be in the way of the next try.
        let _ = fs::remove_file(path);
    }
    written.with_context(|| format!("writing {}", path.display()))
}

/// Replaces the file by a rename, so that a reader never sees half a keyring.
fn replace(path: &Path, ring: &Keyring) -> Result<()> {
    let beside = path.with_extension("new");
    create(&beside, ring, "remove it, unless another `keys rotate` runs")?;
    fs::rename(&beside, path).with_context(|| format!("cannot replace {}", path.display()))
}

fn new_id() -> Result<KeyId> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // Two keyrings of one second must not have one id for two keys.
    let [high, low] = nsbridge_base::random::bytes()?;
    Ok(format!("key-{seconds}-{high:02x}{low:02x}").parse()?)
}
