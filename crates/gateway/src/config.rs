//! Configuration of the gateway.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nsbridge_base::config::{BrokerConfig, ConfigFile, Environment};
use nsbridge_client::Tenant;
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::catalog::{InputSchema, Model};

/// Configuration of the gateway: a TOML file, with each field overridable from the environment.
///
/// `deploy/gateway.example.toml` documents every field.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// Listener.
    #[serde(default)]
    pub server: Server,
    /// Message broker.
    #[serde(default)]
    pub broker: BrokerConfig,
    /// Keys under which requests are sealed.
    #[serde(default)]
    pub keys: Keys,
    /// Callers of the gateway.
    #[serde(default)]
    pub access: AccessConfig,
    /// Storage of replies; without it, replies are lost with the process.
    pub store: Option<StoreConfig>,
    /// Files and batches, which need a store.
    #[serde(default)]
    pub batches: BatchConfig,
    /// Spans.
    #[serde(default)]
    pub telemetry: Telemetry,
    /// Models by the name that clients use.
    pub models: BTreeMap<String, Model>,
    /// Warning about the file, which does not keep a gateway from starting.
    #[serde(skip)]
    pub(crate) exposed: Option<String>,
}

/// Listener of the gateway.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Server {
    /// Address and port.
    pub listen: SocketAddr,
    /// Certificate chain, as a PEM file; plain HTTP if absent.
    pub certificate: Option<PathBuf>,
    /// Private key of the certificate, as a PEM file.
    pub key: Option<PathBuf>,
    /// Name of the model of requests that name none; such requests are refused if absent.
    pub default_model: Option<String>,
    /// True if the gateway serves the chat page at `/`.
    pub page: bool,
    /// Address and port of `/metrics`, which has a listener of its own and asks for no key; none if
    /// absent.
    pub metrics: Option<SocketAddr>,
    /// True if sealed requests of proxies are passed on.
    pub sealed: bool,
    /// Origins of web pages that may call the gateway, such as `https://app.example.com`; `*` for all.
    pub allow_origins: Vec<String>,
    /// Maximum size of a request's body, in bytes.
    pub max_body: usize,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Maximum number of connections of one client, an IPv4 address or an IPv6 network of 64 bits; a
    /// quarter of `max_connections`, and at least 16, if absent. Behind a balancer, whose addresses are
    /// few, it is `max_connections`.
    pub max_connections_of_address: Option<usize>,
    /// Time for the headers of a request, in seconds.
    pub header_timeout_s: u64,
    /// Time for the body of a request, in seconds.
    pub body_timeout_s: u64,
    /// Time after which a connection whose client reads nothing is closed, in seconds.
    pub write_timeout_s: u64,
    /// Time limit of a reply, in seconds.
    pub timeout_s: u64,
    /// Time that a request without a stream waits for the first worker of a model that has none, in
    /// seconds. It is then refused with the time after which to try again.
    pub start_wait_s: u64,
    /// Time for replies in progress after SIGTERM, in seconds.
    pub grace_s: u64,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            certificate: None,
            key: None,
            default_model: None,
            page: true,
            metrics: None,
            sealed: false,
            allow_origins: Vec::new(),
            max_body: 8 << 20,
            max_connections: 20_000,
            max_connections_of_address: None,
            header_timeout_s: 10,
            body_timeout_s: 30,
            write_timeout_s: 60,
            timeout_s: 600,
            start_wait_s: 50,
            grace_s: 20,
        }
    }
}

/// Keys under which requests are sealed: exactly one of the fields.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Keys {
    /// Keyring file, which is reloaded when it changes.
    pub keyring: Option<PathBuf>,
    /// Text of the keyring, as an ECS secret carries it.
    pub keyring_json: Option<Zeroizing<String>>,
}

impl std::fmt::Debug for Keys {
    /// Leaves out the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("keyring", &self.keyring).finish_non_exhaustive()
    }
}

/// Callers of the gateway: exactly one of the fields.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct AccessConfig {
    /// File of API keys, which is reloaded when it changes.
    pub file: Option<PathBuf>,
    /// Text of a file of API keys, as an ECS secret carries it.
    pub keys_json: Option<Zeroizing<String>>,
    /// Tenant of all callers, who need no key. Only for a listener on this machine.
    pub open_to: Option<Tenant>,
}

impl std::fmt::Debug for AccessConfig {
    /// Leaves out the keys' hashes, tenants and limits.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessConfig")
            .field("file", &self.file)
            .field("open_to", &self.open_to)
            .finish_non_exhaustive()
    }
}

/// Storage of replies.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct StoreConfig {
    /// File of the embedded database, in which a restarted gateway finds its replies; none if
    /// absent.
    pub path: Option<PathBuf>,
    /// File with the key that seals the replies: 32 bytes in base64. Without `shared`, it is created
    /// if it does not exist.
    pub key_file: Option<PathBuf>,
    /// The key itself in place of its file, as an ECS secret carries it.
    pub key: Option<Zeroizing<String>>,
    /// Location that all replicas share: `s3://bucket/prefix`, or a folder that all of them mount.
    pub shared: Option<String>,
    /// Region of the bucket; if absent, the one that AWS's own tools would use.
    pub region: Option<String>,
    /// Endpoint of a service other than AWS: `https://`, or `http://` on this machine.
    pub endpoint_url: Option<String>,
    /// Time for which replies are kept after their end, in seconds.
    #[serde(default = "keep_s")]
    pub keep_s: u64,
}

impl std::fmt::Debug for StoreConfig {
    /// Leaves out the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreConfig")
            .field("path", &self.path)
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

impl StoreConfig {
    /// Creates the configuration of an embedded database and its key in a folder.
    pub fn local(folder: &Path) -> Self {
        Self {
            path: Some(folder.join("replies.redb")),
            key_file: Some(folder.join("key")),
            key: None,
            shared: None,
            region: None,
            endpoint_url: None,
            keep_s: keep_s(),
        }
    }
}

fn keep_s() -> u64 {
    600
}

/// Files and batches.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct BatchConfig {
    /// Maximum number of lines that run at the same time, for each model.
    pub lines: usize,
    /// Maximum number of lines of a batch.
    pub max_requests: u64,
    /// Maximum size of a file, in bytes.
    pub max_file: u64,
    /// Maximum size of all files of a tenant, in bytes.
    pub max_stored: u64,
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self { lines: 16, max_requests: 50_000, max_file: 200 << 20, max_stored: 10 << 30 }
    }
}

/// Export of spans.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Telemetry {
    /// Address of a collector for OTLP over HTTP, such as `http://localhost:4318`; none if absent.
    pub otlp: Option<String>,
}

/// Settings that requests need.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// True if the chat page is served.
    pub(crate) page: bool,
    /// Origins of web pages that may call the gateway.
    pub(crate) allow_origins: Vec<String>,
    pub(crate) timeout: Duration,
    pub(crate) start_wait: Duration,
    pub(crate) max_body: usize,
    pub(crate) body_timeout: Duration,
}

impl Config {
    /// Creates the configuration of a gateway on this machine that asks for no key and stores
    /// nothing. Its broker and its keys are those of [`Gateway::on`](crate::Gateway::on).
    pub fn local(listen: SocketAddr, tenant: Tenant, models: BTreeMap<String, Model>) -> Self {
        Self {
            server: Server { listen, ..Server::default() },
            broker: BrokerConfig::default(),
            keys: Keys::default(),
            access: AccessConfig { open_to: Some(tenant), ..AccessConfig::default() },
            store: None,
            batches: BatchConfig::default(),
            telemetry: Telemetry::default(),
            models,
            exposed: None,
        }
    }

    /// Reads a configuration file and overrides its fields with the environment's
    /// `NSBRIDGE_<SECTION>__<FIELD>`. Relative paths are relative to the folder of the file.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file and the field.
    pub fn read(
        path: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let file = ConfigFile::read(path)
            .map_err(|cause| ConfigError::Read { path: path.to_owned(), cause })?;
        let mut environment = Environment::new(environment);
        // Secrets are set apart, because overrides are copied on their way and not wiped.
        let keyring = environment.take("NSBRIDGE_KEYS__KEYRING_JSON");
        let key = environment.take("NSBRIDGE_STORE__KEY");
        // An empty JSON object would be a table of TOML.
        let api_keys = environment.take("NSBRIDGE_ACCESS__KEYS_JSON");
        let mut config: Self = nsbridge_base::config::parse(file.text(), &environment)
            .map_err(|cause| ConfigError::Parse { path: path.to_owned(), cause })?;
        config.exposed = file.exposed(&[("keys", "keyring_json"), ("store", "key")]);
        if keyring.is_some() {
            config.keys.keyring_json = keyring;
        }
        if api_keys.is_some() {
            config.access.keys_json = api_keys;
        }
        if key.is_some() {
            let why = "the environment has NSBRIDGE_STORE__KEY, and there is no [store]";
            let store = config.store.as_mut();
            store.ok_or_else(|| ConfigError::Invalid(why.to_owned()))?.key = key;
        }
        config.resolve(path.parent().unwrap_or(Path::new("")));
        Ok(config)
    }

    fn resolve(&mut self, folder: &Path) {
        let within = |path: &mut PathBuf| *path = folder.join(&*path);
        self.broker.resolve(folder);
        let server = &mut self.server;
        let (keyring, access) = (&mut self.keys.keyring, &mut self.access.file);
        let paths = [&mut server.certificate, &mut server.key, keyring, access];
        paths.into_iter().flatten().for_each(within);
        for model in self.models.values_mut() {
            if let Some(InputSchema::File(path)) = &mut model.input_schema {
                within(path);
            }
        }
        if let Some(store) = &mut self.store {
            [&mut store.path, &mut store.key_file].into_iter().flatten().for_each(within);
            if let Some(shared) = store.shared.as_mut().filter(|shared| !shared.contains("://")) {
                *shared = folder.join(&*shared).display().to_string();
            }
        }
    }

    /// Checks that broker and keys are configured, for a gateway that connects by itself.
    pub(crate) fn check_connection(&self) -> Result<(), ConfigError> {
        self.broker.check().map_err(|error| ConfigError::Invalid(error.to_string()))?;
        if self.keys.keyring.is_some() == self.keys.keyring_json.is_some() {
            let why = "[keys] needs exactly one of `keyring` and `keyring_json`";
            return Err(ConfigError::Invalid(why.to_owned()));
        }
        Ok(())
    }

    /// Checks that the fields fit together.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let invalid = |why: &str| Err(ConfigError::Invalid(why.to_owned()));
        let access = &self.access;
        match (access.file.is_some() || access.keys_json.is_some(), &access.open_to) {
            (true, None) if access.file.is_none() || access.keys_json.is_none() => {}
            (false, Some(_)) if self.server.listen.ip().is_loopback() => {}
            (false, Some(_)) => {
                return invalid(
                    "[access] open_to lets everyone in: [server] listen must be an address of this \
                     machine, such as 127.0.0.1:8080",
                );
            }
            _ => {
                return invalid(
                    "[access] must have exactly one of `file`, `keys_json` and `open_to`",
                );
            }
        }
        if self.server.certificate.is_some() != self.server.key.is_some() {
            return invalid("[server] must have both of `certificate` and `key`, or none");
        }
        if self.store.as_ref().is_some_and(|it| it.path.is_none() && it.shared.is_none()) {
            return invalid("[store] must have `path`, `shared` or both");
        }
        if self.store.as_ref().is_some_and(|it| it.key_file.is_some() == it.key.is_some()) {
            return invalid("[store] must have exactly one of `key_file` and `key`");
        }
        if let Some(Err(error)) = self.telemetry.otlp.as_deref().map(nsbridge_telemetry::check) {
            return Err(ConfigError::Invalid(format!("[telemetry] otlp {error}")));
        }
        if !(1..=4096).contains(&self.batches.lines) {
            return invalid("[batches] lines must be from 1 to 4096");
        }
        if self.models.is_empty() {
            return invalid("there is no model: write [models.NAME]");
        }
        let most = nsbridge_protocol::topology::MAX_TIME_TO_FINISH.as_secs();
        if !(1..=most).contains(&self.server.timeout_s) {
            return Err(ConfigError::Invalid(format!(
                "[server] timeout_s must be from 1 to {most}"
            )));
        }
        Ok(())
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            page: self.server.page,
            allow_origins: self.server.allow_origins.clone(),
            timeout: Duration::from_secs(self.server.timeout_s),
            start_wait: Duration::from_secs(self.server.start_wait_s),
            max_body: self.server.max_body,
            body_timeout: Duration::from_secs(self.server.body_timeout_s),
        }
    }
}

/// Error of a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        cause: std::io::Error,
    },
    /// The file is not a configuration of the gateway.
    #[error("{} is not a configuration of the gateway", path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// Cause, with the line and the field.
        #[source]
        cause: nsbridge_base::config::ConfigError,
    },
    /// Fields that do not fit together.
    #[error("{0}")]
    Invalid(String),
}

#[cfg(test)]
mod tests;
