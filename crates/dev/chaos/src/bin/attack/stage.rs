//! Environment of a run: a node of its own, keys, workers and a gateway.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use nsbridge_client::Client;
use nsbridge_crypto::{DataKey, Entry as KeyEntry, Key, KeyProvider as _, Keyring, Scope, State};
use nsbridge_gateway::access::{self, Entry};
use nsbridge_protocol::{ModelName, Tenant};
use nsbridge_queue::{AmqpBroker, Broker};
use nsbridge_testkit::Rabbit;

use crate::process::Process;

/// Words of a worker's log when it consumes requests.
pub(crate) const CONSUMES: &str = "taking requests";

/// Words of a gateway's log before its address.
pub(crate) const LISTENING: &str = "listening at ";

/// Maximum number of connections of the gateway. An address has a quarter of them.
const CONNECTIONS: usize = 400;

/// RabbitMQ node, keys and folder shared by all attackers.
pub(crate) struct Stage {
    dir: PathBuf,
    node: Rabbit,
    master: KeyEntry,
    pub(crate) model: ModelName,
    preload: Option<PathBuf>,
}

impl Stage {
    /// Starts a node and creates keys in `dir`, whose earlier content is deleted.
    pub(crate) fn set(dir: &Path, preload: Option<PathBuf>) -> Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
        }
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let mut master = KeyEntry::new("attack".parse()?, Key::generate()?, State::Primary);
        master.is_master = true;
        let keyring = Keyring::of(vec![master.clone()])?;
        let mut file =
            File::options().write(true).create_new(true).mode(0o600).open(dir.join("keys.json"))?;
        file.write_all(keyring.to_json().as_bytes())?;
        let dir = dir.canonicalize()?;
        Ok(Self { dir, node: Rabbit::start()?, master, model: "attacked".parse()?, preload })
    }

    /// Returns the path of a folder for an attacker's files.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn url(&self) -> String {
        self.node.url()
    }

    pub(crate) fn broker(&self) -> Result<AmqpBroker> {
        Ok(AmqpBroker::new(&self.url())?)
    }

    /// Connects a client that holds only this tenant's key.
    pub(crate) async fn client(&self, tenant: &Tenant) -> Result<Client> {
        self.client_of(&self.model, tenant).await
    }

    /// Connects a client that holds only the key of this tenant for this model.
    pub(crate) async fn client_of(&self, model: &ModelName, tenant: &Tenant) -> Result<Client> {
        let scope = Scope { model: model.clone(), tenant: tenant.clone() };
        let keys = Arc::new(Keyring::of(vec![self.master.derive(&scope)])?);
        let broker: Arc<dyn Broker> = Arc::new(self.broker()?);
        Ok(Client::builder().broker(broker).keys(keys).name(tenant.as_str()).connect().await?)
    }

    /// Returns the key under which a tenant seals requests to the attacked model.
    pub(crate) async fn data_key(&self, tenant: &Tenant) -> Result<DataKey> {
        let scope = Scope { model: self.model.clone(), tenant: tenant.clone() };
        Ok(Keyring::of(vec![self.master.derive(&scope)])?.data_key(&scope).await?)
    }

    /// Starts a worker with the bundled model and waits until it consumes requests.
    pub(crate) async fn worker(&self, name: &str, url: &str) -> Result<Process> {
        let worker = self.start(name, url, &bundled("tale-7m"), &self.model, 0)?;
        worker.until(CONSUMES).await?;
        Ok(worker)
    }

    /// Starts a worker with the model in `target`. A higher `nice` value leaves the processor to
    /// the worker of the well-behaved tenant, because attacked workers simulate other machines.
    pub(crate) fn start(
        &self,
        name: &str,
        url: &str,
        target: &Path,
        model: &ModelName,
        nice: u32,
    ) -> Result<Process> {
        let config = format!(
            "[worker]\nmodel = \"{model}\"\nname = \"{name}\"\ngrace_s = 1\n\
             [broker]\nurl = \"{url}?heartbeat=10\"\n\
             [keys]\nkeyring = \"keys.json\"\n\
             [models]\ntarget = \"{}\"\n\
             [handler]\nmax_tokens = 256\njob_queue_size = 56\npredict_timeout = 30\n\
             model_loading_timeout = 30\n",
            target.display()
        );
        fs::write(self.dir.join(format!("{name}.toml")), config)?;
        self.run("worker", name, nice)
    }

    /// Starts a part of this program with the configuration `<name>.toml`.
    fn run(&self, part: &str, name: &str, nice: u32) -> Result<Process> {
        Process::start(&self.dir, part, name, nice, self.preload.as_deref())
    }

    /// Starts a gateway, and waits until it takes requests. Its tenants have the given keys.
    pub(crate) async fn gateway(&self, keys: &[Entry]) -> Result<(Process, SocketAddr)> {
        for key in keys {
            access::add(&self.dir.join("api-keys.json"), key.clone())?;
        }
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nsealed = true\nmax_connections = {CONNECTIONS}\n\
             [broker]\nurl = \"{}\"\n[keys]\nkeyring = \"keys.json\"\n\
             [access]\nfile = \"api-keys.json\"\n\
             [store]\npath = \"replies.redb\"\nkey_file = \"store.key\"\n\
             [models.{}]\ncontext = 512\n",
            self.url(),
            self.model
        );
        fs::write(self.dir.join("gateway.toml"), config)?;
        let process = self.run("gateway", "gateway", 0)?;
        process.until(LISTENING).await?;
        let words = process.words()?;
        let address =
            words.lines().find_map(|line| line.split_once(LISTENING)?.1.trim().parse().ok());
        Ok((process, address.context("the gateway's log has no address")?))
    }
}

/// Returns the path of a bundled model.
pub(crate) fn bundled(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models").join(name)
}
