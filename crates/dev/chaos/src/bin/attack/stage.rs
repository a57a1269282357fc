//! Environment of a run: a node of its own, keys, and workers with a memory limit.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nsbridge_client::Client;
use nsbridge_crypto::{Entry, Key, Keyring, Scope, State};
use nsbridge_protocol::{ModelName, Tenant};
use nsbridge_queue::{AmqpBroker, Broker};
use nsbridge_testkit::Rabbit;
use tokio::time::sleep;

/// Limit of a worker's address space in KiB, that of an 8 GiB container. An allocation beyond it
/// ends the process.
const ADDRESS_SPACE_KIB: u64 = 8 << 20;

/// Time limit for the start of a worker on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// RabbitMQ node, keys and folder shared by all attackers.
pub(crate) struct Stage {
    dir: PathBuf,
    node: Rabbit,
    master: Entry,
    pub(crate) model: ModelName,
}

impl Stage {
    /// Starts a node and creates keys in `dir`, whose earlier content is deleted.
    pub(crate) fn set(dir: &Path) -> Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
        }
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let mut master = Entry::new("attack".parse()?, Key::generate()?, State::Primary);
        master.is_master = true;
        let keyring = Keyring::of(vec![master.clone()])?;
        let mut file =
            File::options().write(true).create_new(true).mode(0o600).open(dir.join("keys.json"))?;
        file.write_all(keyring.to_json().as_bytes())?;
        let dir = dir.canonicalize()?;
        Ok(Self { dir, node: Rabbit::start()?, master, model: "attacked".parse()? })
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

    /// Starts a worker with the bundled model and waits until it consumes requests.
    pub(crate) async fn worker(&self, name: &str, url: &str) -> Result<Worker> {
        let worker = self.start(name, url, &bundled("tale-7m"), &self.model, 0)?;
        worker.ready().await?;
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
    ) -> Result<Worker> {
        let config = format!(
            "[worker]\nmodel = \"{model}\"\nname = \"{name}\"\ngrace_s = 1\n\
             [broker]\nurl = \"{url}?heartbeat=10\"\n\
             [keys]\nkeyring = \"keys.json\"\n\
             [models]\ntarget = \"{}\"\n\
             [handler]\nmax_tokens = 256\njob_queue_size = 56\npredict_timeout = 30\n\
             model_loading_timeout = 30\n",
            target.display()
        );
        let path = self.dir.join(format!("{name}.toml"));
        fs::write(&path, config)?;
        let log = self.dir.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("ulimit -v {ADDRESS_SPACE_KIB}; exec nice -n {nice} \"$0\" \"$@\""));
        command.arg(std::env::current_exe()?).arg("worker").arg(&path);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(file);
        // The length is read before the start, because a worker that fails at once has logged by
        // the next line.
        let began = fs::metadata(&log)?.len();
        let child = command.spawn().context("starting a worker")?;
        Ok(Worker { child, log, began: usize::try_from(began)? })
    }
}

/// Returns the path of a bundled model.
pub(crate) fn bundled(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models").join(name)
}

/// Process of a worker, killed on drop.
pub(crate) struct Worker {
    child: Child,
    log: PathBuf,
    /// Offset in the log file at which this process begins. A restarted worker appends to the log
    /// of its predecessor.
    began: usize,
}

impl Worker {
    /// Waits until the worker consumes requests.
    pub(crate) async fn ready(&self) -> Result<()> {
        let began = Instant::now();
        while !self.words()?.contains("taking requests") {
            let words = self.words()?;
            ensure!(began.elapsed() < READY_WITHIN, "a worker is not ready; it says:\n{words}");
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Returns the exit code or signal, if the process has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<String>> {
        Ok(self.child.try_wait()?.map(|status| match status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("exit code {}", status.code().unwrap_or_default()),
        }))
    }

    /// Returns the log of this process.
    pub(crate) fn words(&self) -> Result<String> {
        let bytes = fs::read(&self.log)?;
        Ok(String::from_utf8_lossy(bytes.get(self.began..).unwrap_or_default()).into_owned())
    }

    pub(crate) fn log(&self) -> String {
        self.log.display().to_string()
    }

    /// Returns the peak resident memory in MiB; 0 if the process has ended.
    pub(crate) fn peak_mib(&self) -> Result<u64> {
        let Ok(status) = fs::read_to_string(format!("/proc/{}/status", self.child.id())) else {
            return Ok(0);
        };
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        Ok(kib.unwrap_or_default() >> 10)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
