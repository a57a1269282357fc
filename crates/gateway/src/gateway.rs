//! Gateway: connected to the broker, listening, then serving.

pub(crate) mod batch_run;
mod heap;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nsbridge_base::private_file::{PrivateFile, PrivateFileError};
use nsbridge_base::{Reload, chain, random};
use nsbridge_client::{AmqpBroker, Client, KeyProvider};
use nsbridge_crypto::{Key, Keyring, Reread, WatchedKeyring};
use nsbridge_gateway_access::{Access, AccessError, Memory};
use nsbridge_gateway_replies::{
    BucketStore, DiskStore, Replies, SharedError, StoreError, Stores, Times, Workers,
};
use nsbridge_queue::Broker;
use nsbridge_telemetry::{Spans, host_name};
use tokio::net::TcpListener;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;

use crate::api::batches;
use crate::archive::Archive;
use crate::catalog::Models;
use crate::config::{AccessConfig, Config, ConfigError, Keys, Server, StoreConfig};
use crate::gateway::heap::Heap;
use crate::http::routes::{internal, routes};
use crate::http::server::{PlainListener, serve};
use crate::http::tls::{Certificates, TlsError, TlsListener};
use crate::metrics::{Metrics, RefusedFiles, ReloadedFile};
use crate::state::{App, Sealed};

/// Time that a drain may take beyond the grace period: replies are released, and tasks end.
const AFTER_GRACE: Duration = Duration::from_secs(10);

/// Interval at which files are checked for changes, and old replies are forgotten.
const UPKEEP: Duration = Duration::from_secs(5);

/// Maximum size of an AMQP frame of a session's connection, in bytes: the least that RabbitMQ takes.
/// With the default, the buffers of 256 sessions would have 2 GiB.
const SESSION_FRAME: u32 = 8 << 10;

/// Gateway that listens.
#[derive(Debug)]
pub struct Gateway {
    app: Arc<App>,
    config: Config,
    listener: TcpListener,
    address: SocketAddr,
    metrics: Option<TcpListener>,
    certificates: Option<Arc<Certificates>>,
    drain: CancellationToken,
    /// True from when requests are taken.
    serving: Arc<AtomicBool>,
    /// `None` if the process may do other work.
    heap: Option<Heap>,
}

/// State of a gateway, also while it [runs](Gateway::run). Cheap to clone.
#[derive(Clone, Debug)]
pub struct GatewayHealth {
    app: Arc<App>,
    serving: Arc<AtomicBool>,
}

impl GatewayHealth {
    /// Returns true while `/readyz` answers 200.
    pub fn is_ready(&self) -> bool {
        self.serving.load(Ordering::Relaxed) && self.app.why_not_ready().is_none()
    }

    /// Returns the number of replies in progress.
    pub fn replies(&self) -> u64 {
        self.app.metrics.replies_running()
    }
}

/// Error of a gateway's start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The API key file cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The keyring or the broker cannot be used.
    #[error("cannot connect to the message broker")]
    Connect(#[from] nsbridge_client::Error),
    /// The keyring cannot be used.
    #[error("cannot use the keyring")]
    Keyring(#[from] nsbridge_client::KeyringError),
    /// The address of the broker is invalid.
    #[error("[broker] url is invalid")]
    Broker(#[from] nsbridge_queue::Error),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The shared store cannot be used.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// The key of the store cannot be used.
    #[error("cannot use the key of the store")]
    StoreKey(#[from] PrivateFileError),
    /// Certificate and key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address cannot be bound.
    #[error("cannot listen at {address}")]
    Listen {
        /// Address of the configuration.
        address: SocketAddr,
        /// Cause.
        #[source]
        cause: std::io::Error,
    },
}

impl Gateway {
    /// Connects to the broker and listens. The process is the gateway's own: with glibc, its allocator is
    /// set to give large blocks back when they are freed.
    ///
    /// # Errors
    ///
    /// Returns an error if a file, the broker or the address cannot be used.
    pub async fn connect(config: Config) -> Result<Self, Error> {
        config.check_connection()?;
        if let Some(exposed) = &config.exposed {
            tracing::warn!("{exposed}");
        }
        let url = config.broker.read_url();
        let url = url.map_err(|error| ConfigError::Invalid(error.to_string()))?;
        let broker = AmqpBroker::new(&url)?;
        let sessions = Arc::new(broker.clone().with_frame_max(SESSION_FRAME));
        let refused = RefusedFiles::default();
        let keys = open_keys(&config.keys, refused.clone())?;
        let gateway = Self::bind(config, [Arc::new(broker), sessions], keys, refused).await?;
        Ok(Self { heap: Some(Heap::of_this_process()), ..gateway })
    }

    /// Listens as a client of this broker, with these keys.
    ///
    /// # Errors
    ///
    /// Returns an error if a file, the broker or the address cannot be used.
    pub async fn on(
        config: Config,
        broker: Arc<dyn Broker>,
        keys: Arc<dyn KeyProvider>,
    ) -> Result<Self, Error> {
        Self::bind(config, [broker.clone(), broker], keys, RefusedFiles::default()).await
    }

    async fn bind(
        config: Config,
        brokers: [Arc<dyn Broker>; 2],
        keys: Arc<dyn KeyProvider>,
        refused: RefusedFiles,
    ) -> Result<Self, Error> {
        config.check()?;
        let certificates = match (&config.server.certificate, &config.server.key) {
            (Some(certificate), Some(key)) => Some(Arc::new(Certificates::open(certificate, key)?)),
            _ => None,
        };
        let drain = CancellationToken::new();
        // A large part of the future of `connect`, which callers hold in theirs.
        let app = Box::pin(assemble(&config, brokers, keys, drain.clone(), refused)).await?;
        let (listener, address) = listen(config.server.listen).await?;
        let metrics = match config.server.metrics {
            Some(address) => Some(listen(address).await?.0),
            None => None,
        };
        let serving = Arc::default();
        Ok(Self {
            app,
            config,
            listener,
            address,
            metrics,
            certificates,
            drain,
            serving,
            heap: None,
        })
    }

    /// Returns the address that the gateway listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of the metrics, if the configuration asks for them.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref()?.local_addr().ok()
    }

    /// Returns the signal that begins a drain when it is canceled.
    pub fn drain(&self) -> CancellationToken {
        self.drain.clone()
    }

    /// Returns the time that a drain may take at most: the grace period, and 10 s for the rest.
    pub fn drain_limit(&self) -> Duration {
        Duration::from_secs(self.config.server.grace_s) + AFTER_GRACE
    }

    /// Returns the gateway's state, which can be read while it runs.
    pub fn health(&self) -> GatewayHealth {
        GatewayHealth { app: self.app.clone(), serving: self.serving.clone() }
    }

    /// Serves until the drain has ended.
    pub async fn run(self) {
        let Self { app, config, listener, metrics, certificates, drain, serving, heap, .. } = self;
        let end = CancellationToken::new();
        let exporter = metrics.map(|listener| {
            let page = internal(app.clone());
            let end = end.clone();
            tokio::spawn(async move {
                serve(PlainListener(listener), page, &exporter_limits(), end).await;
            })
        });
        let recovered = app.replies.recover().await;
        if recovered > 0 {
            tracing::info!(replies = recovered, "continuing replies of the last process");
        }
        let continued = batches::resume(&app);
        if continued > 0 {
            tracing::info!(batches = continued, "continuing batches of the last process");
        }
        let (archive, spans) = (app.archive.clone(), app.spans.clone());
        let upkeep = tokio::spawn(upkeep(app.clone(), certificates.clone(), heap));
        let replies = app.replies.clone();
        let shared = tokio::spawn(replies.clone().upkeep_shared());
        let routes = routes(app);
        serving.store(true, Ordering::Relaxed);
        match certificates.map(|certificates| certificates.server_config()) {
            None => serve(PlainListener(listener), routes, &config.server, drain).await,
            Some(Ok(tls)) => {
                serve(TlsListener::new(listener, tls), routes, &config.server, drain).await;
            }
            Some(Err(error)) => tracing::error!(%error, "the certificate cannot be used"),
        }
        replies.release().await;
        shared.abort();
        if let Some(archive) = archive {
            archive.tasks.close();
            archive.tasks.wait().await;
        }
        upkeep.abort();
        spans.close().await;
        end.cancel();
        if let Some(exporter) = exporter {
            let _ = exporter.await;
        }
    }
}

/// Connects to the broker and opens the stores. The second of the brokers has the connections of
/// proxies' sessions.
///
/// # Errors
///
/// Returns an error if a file or the broker cannot be used.
pub(crate) async fn assemble(
    config: &Config,
    [broker, sessions]: [Arc<dyn Broker>; 2],
    keys: Arc<dyn KeyProvider>,
    draining: CancellationToken,
    refused: RefusedFiles,
) -> Result<Arc<App>, Error> {
    raise_open_files();
    let models = Models::new(config.models.clone(), config.server.default_model.clone())
        .map_err(ConfigError::Invalid)?;
    let access = open_access(&config.access)?;
    let (mut stores, mut archive, mut hash_key) = (Stores::default(), None, [0; 32]);
    let mut keep = Duration::from_secs(600);
    random::fill(&mut hash_key).map_err(|_| no_randomness())?;
    if let Some(kept) = &config.store {
        // A new key would not open what is there.
        let is_new = kept.path.as_ref().is_none_or(|path| !path.exists());
        let key = store_key(kept, is_new && kept.shared.is_none())?;
        hash_key = blake3::derive_key("nsbridge/1 gateway retries", &key);
        stores = open_stores(kept, key).await?;
        if let Some(disk) = &stores.disk {
            let read = Archive::open(disk.clone(), config.batches);
            archive = Some(Arc::new(read.map_err(|_| unreadable())?));
        }
        keep = Duration::from_secs(kept.keep_s);
    }
    let sealed = config.server.sealed.then(|| Arc::new(Sealed::new(sessions)));
    let client = Client::builder().broker(broker).keys(keys).name("nsbridge gateway");
    let client = client.connect().await?;
    let settings = config.settings();
    let times = Times { timeout: settings.timeout, keep };
    let exported = Metrics::new(&models, &refused);
    let workers = Arc::new(Workers::new(client.clone(), models.counted()));
    let observer = Arc::new(exported.clone());
    let replies = Replies::new(client.clone(), workers.clone(), stores, times, hash_key, observer);
    let replies = Arc::new(replies);
    let started = SystemTime::now();
    let memory = Memory::default();
    let metrics = exported;
    let spans = spans(config)?;
    Ok(Arc::new(App {
        client,
        access,
        models,
        workers,
        replies,
        archive,
        sealed,
        settings,
        memory,
        metrics,
        spans,
        started,
        draining,
        refused,
    }))
}

/// Returns the destination of spans.
fn spans(config: &Config) -> Result<Spans, ConfigError> {
    let Some(collector) = &config.telemetry.otlp else { return Ok(Spans::default()) };
    let named = [
        ("service.name", "nsbridge-gateway".to_owned()),
        ("service.instance.id", format!("{}:{}", host_name(), config.server.listen.port())),
    ];
    Spans::to(collector, named)
        .map_err(|error| ConfigError::Invalid(format!("[telemetry] otlp {error}")))
}

/// Raises the limit of open files to the most that the process may have: each connection is one.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current < maximum || (current.is_some() && maximum.is_none()) {
        let raised = Rlimit { current: maximum, maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files cannot be raised");
        }
    }
}

/// Returns the limits of the listener of the metrics.
fn exporter_limits() -> Server {
    Server {
        max_connections: 32,
        header_timeout_s: 2,
        write_timeout_s: 10,
        grace_s: 1,
        ..Server::default()
    }
}

async fn listen(asked: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |cause| Error::Listen { address: asked, cause };
    let listener = TcpListener::bind(asked).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Reloads files that changed, and forgets old replies.
pub(crate) async fn upkeep(
    app: Arc<App>,
    certificates: Option<Arc<Certificates>>,
    mut heap: Option<Heap>,
) {
    let mut tick = interval(UPKEEP);
    loop {
        tick.tick().await;
        match app.access.reload_if_changed() {
            Ok(Reload::Unchanged) => {}
            Ok(_) => {
                app.refused.set(ReloadedFile::ApiKeys, false);
                tracing::info!("the API keys were reloaded");
            }
            Err(error) => {
                app.refused.set(ReloadedFile::ApiKeys, true);
                tracing::error!(%error, "the API keys cannot be reloaded");
            }
        }
        match certificates.as_ref().map(|certificates| certificates.reload_if_changed()) {
            None | Some(Ok(Reload::Unchanged)) => {}
            Some(Ok(_)) => {
                app.refused.set(ReloadedFile::Certificate, false);
                tracing::info!("the certificate was reloaded");
            }
            Some(Err(error)) => {
                app.refused.set(ReloadedFile::Certificate, true);
                tracing::error!(%error, "the certificate cannot be reloaded");
            }
        }
        app.replies.sweep().await;
        if let Some(heap) = &mut heap {
            heap.trim().await;
        }
        if let Some(sealed) = &app.sealed {
            sealed.accounts.sweep(&app.metrics);
        }
        if let Some(archive) = &app.archive {
            archive.sweep().await;
        }
    }
}

/// Opens the stores of a configuration.
async fn open_stores(config: &StoreConfig, key: [u8; 32]) -> Result<Stores, Error> {
    let key = || Key::from_bytes(key);
    let disk = config.path.as_ref().map(|path| DiskStore::open(path, key())).transpose()?;
    let Some(shared) = &config.shared else { return Ok(Stores { disk, bucket: None }) };
    let location = shared.parse().map_err(ConfigError::Invalid)?;
    let mut files = nsbridge_store::StoreConfig::default();
    (files.region, files.endpoint_url) = (config.region.clone(), config.endpoint_url.clone());
    let bucket = Some(BucketStore::open(&location, &files, key()).await?);
    Ok(Stores { disk, bucket })
}

/// Opens the keyring. A file is followed from here on.
fn open_keys(config: &Keys, refused: RefusedFiles) -> Result<Arc<dyn KeyProvider>, Error> {
    let Some(path) = &config.keyring else {
        let text = config.keyring_json.as_deref().map_or("", String::as_str);
        return Ok(Arc::new(Keyring::from_json(text)?));
    };
    let shown = path.display().to_string();
    let keys = WatchedKeyring::open(path, UPKEEP, move |reread| match reread {
        Reread::Taken(_) | Reread::Removed(_) => {
            refused.set(ReloadedFile::Keyring, false);
            tracing::info!(keyring = shown, "the keyring was reloaded");
        }
        Reread::Refused(error) => {
            refused.set(ReloadedFile::Keyring, true);
            let error = chain(error);
            tracing::error!(keyring = shown, error, "the keyring cannot be reloaded");
        }
    });
    Ok(Arc::new(keys?))
}

fn open_access(config: &AccessConfig) -> Result<Access, Error> {
    match config {
        AccessConfig { file: Some(file), .. } => Ok(Access::of_file(file)?),
        AccessConfig { keys_json: Some(text), .. } => {
            let invalid = |what| ConfigError::Invalid(format!("[access] keys_json: {what}"));
            Ok(Access::of_json(text).map_err(invalid)?)
        }
        AccessConfig { open_to: Some(tenant), .. } => Ok(Access::open_to_all(tenant.clone())),
        _ => Err(ConfigError::Invalid("[access] is empty".to_owned()).into()),
    }
}

/// Returns the key of the store. With `create`, its file is created if it does not exist: a replica
/// must not make a key of its own.
fn store_key(config: &StoreConfig, create: bool) -> Result<[u8; 32], Error> {
    let invalid = |place: &dyn std::fmt::Display| {
        Error::from(ConfigError::Invalid(format!("{place} must have 32 bytes in base64")))
    };
    let Some(path) = &config.key_file else {
        let text = config.key.as_deref().map_or("", String::as_str);
        return key_of(text.as_bytes()).ok_or_else(|| invalid(&"[store] key"));
    };
    if create && !path.exists() {
        create_key(path).map_err(|cause| ConfigError::Read { path: path.clone(), cause })?;
    }
    let file = PrivateFile { what: "store key", most: 1024, of_root: true };
    key_of(&file.read(path)?).ok_or_else(|| invalid(&path.display()))
}

fn key_of(text: &[u8]) -> Option<[u8; 32]> {
    let bytes = STANDARD.decode(text.trim_ascii()).ok().map(zeroize::Zeroizing::new)?;
    bytes.as_slice().try_into().ok()
}

fn create_key(path: &Path) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut key = zeroize::Zeroizing::new([0; 32]);
    random::fill(key.as_mut_slice()).map_err(std::io::Error::other)?;
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{}", STANDARD.encode(*key))
}

fn unreadable() -> Error {
    ConfigError::Invalid("the files and batches of the store cannot be read".to_owned()).into()
}

fn no_randomness() -> Error {
    ConfigError::Invalid("the operating system provides no randomness".to_owned()).into()
}
