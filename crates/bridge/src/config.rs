//! Configuration of a worker: TOML, with each field overridable from the environment.

mod store;
mod watch;
mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nsbridge_crypto::{Keyring, KeyringError};
use nsbridge_protocol::KeyId;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use crate::timing::Timing;

pub use nsbridge_base::config::{BrokerConfig, ConfigError, password_of};
use nsbridge_base::config::{ConfigFile, Environment};
pub use nsbridge_store::StoreConfig;
pub use store::ModelConfig;
pub use watch::{FleetConfig, HealthConfig, TelemetryConfig};
pub use worker::WorkerConfig;

/// Configuration of a worker. `deploy/worker.example.toml` has each field with its meaning.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// Identity of the worker.
    pub worker: WorkerConfig,
    /// Address of the broker.
    pub broker: BrokerConfig,
    /// Sources of the keys.
    #[serde(default)]
    pub keys: KeysConfig,
    /// Models by the name under which the handler looks them up.
    #[serde(default)]
    pub models: BTreeMap<String, ModelConfig>,
    /// Settings of the model store.
    #[serde(default)]
    pub store: StoreConfig,
    /// Settings of replies.
    #[serde(default)]
    pub reply: ReplyConfig,
    /// Settings of the log.
    #[serde(default)]
    pub log: LogConfig,
    /// Settings of the health and metrics pages.
    #[serde(default)]
    pub health: HealthConfig,
    /// Settings of the span export.
    #[serde(default)]
    pub telemetry: TelemetryConfig,
    /// Settings for EC2 and ECS.
    #[serde(default)]
    pub fleet: FleetConfig,
    /// Options of the handler.
    #[serde(default)]
    pub handler: toml::Table,
    /// Options of the judge around the handler, for a worker that has one. It judges nothing if the
    /// table is absent.
    #[serde(default)]
    pub judge: Option<toml::Table>,
    #[serde(skip)]
    pub(crate) timing: Timing,
    /// File that the configuration was read from.
    #[serde(skip)]
    file: PathBuf,
    /// Warning about that file, which does not keep a worker from starting.
    #[serde(skip)]
    pub(crate) exposed: Option<String>,
}

/// Sources of a worker's keys.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct KeysConfig {
    /// Keyring file, readable by its owner alone.
    #[serde(default)]
    pub keyring: Option<PathBuf>,
    /// Text of the keyring, as an ECS secret carries it.
    #[serde(default)]
    pub keyring_json: Option<Zeroizing<String>>,
    /// Withdraws all keys of the ring when its file is removed. If false, the old keys stay.
    #[serde(default)]
    pub revoke_if_removed: bool,
    /// AWS KMS keys that may open requests: ARNs or aliases, as clients name them.
    #[serde(default)]
    pub kms_keys: Vec<KeyId>,
    /// AWS region of the KMS keys; if absent, that of the environment or the profile.
    #[serde(default)]
    pub region: Option<String>,
    /// Address of KMS, if it is not AWS's own.
    #[serde(default)]
    pub endpoint_url: Option<String>,
}

impl std::fmt::Debug for KeysConfig {
    /// Leaves out the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeysConfig")
            .field("keyring", &self.keyring)
            .field("kms_keys", &self.kms_keys)
            .finish_non_exhaustive()
    }
}

impl KeysConfig {
    /// Creates the configuration of a keyring's file.
    pub fn from_keyring(path: impl Into<PathBuf>) -> Self {
        Self { keyring: Some(path.into()), ..Self::default() }
    }

    /// Creates the configuration of AWS KMS keys: ARNs or aliases.
    pub fn from_kms(keys: impl IntoIterator<Item = KeyId>) -> Self {
        Self { kms_keys: keys.into_iter().collect(), ..Self::default() }
    }

    /// Returns the keyring from the file or the text of the configuration; `None` if it names
    /// neither.
    ///
    /// # Errors
    ///
    /// Returns a [`KeyringError`], with advice in its message, if the keyring cannot be read or
    /// used.
    pub fn load(&self) -> Result<Option<Keyring>, KeyringError> {
        match (&self.keyring_json, &self.keyring) {
            (Some(json), _) => Keyring::from_json(json).map(Some),
            (None, Some(path)) => Keyring::load(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let ring = match (&self.keyring, &self.keyring_json) {
            (Some(_), Some(_)) => {
                return Err("[keys] may have one of `keyring` and `keyring_json`, not both".into());
            }
            (None, None) => false,
            _ => true,
        };
        if !ring && self.kms_keys.is_empty() {
            let needed = "[keys] needs `keyring`, `keyring_json` or `kms_keys`";
            return Err(format!("{needed}: without keys no request can be opened"));
        }
        if !self.kms_keys.is_empty() && cfg!(not(feature = "kms")) {
            return Err("[keys] kms_keys: this worker was built without its feature `kms`".into());
        }
        self.endpoint_url.as_deref().map_or(Ok(()), watch::private)
    }
}

/// Maximum of `resume_wait_ms`, in ms. For this long a client that is away keeps its request's
/// slot.
const LONGEST_RESUME_WAIT_MS: u64 = 60_000;

/// Settings of a reply: the size of its frames, the frames without a publisher confirm, and the wait
/// for a `resume`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ReplyConfig {
    /// Maximum time to collect pieces for one frame, in ms. The first piece never waits.
    pub coalesce_ms: u64,
    /// Size of the collected pieces, in bytes, at which a frame is sent at once, and maximum size of
    /// the pieces of a frame. A larger piece gets a frame of its own.
    pub coalesce_bytes: usize,
    /// Maximum number of frames of one reply without a publisher confirm.
    pub window: usize,
    /// Resumes a reply, in a later attempt, after the pieces that its client already has.
    pub resume_from_client: bool,
    /// Maximum wait for the client's `resume`, in ms.
    pub resume_wait_ms: u64,
}

impl Default for ReplyConfig {
    fn default() -> Self {
        Self {
            coalesce_ms: 20,
            coalesce_bytes: 4096,
            window: 256,
            resume_from_client: true,
            resume_wait_ms: 3000,
        }
    }
}

impl ReplyConfig {
    pub(crate) fn coalesce(&self) -> Duration {
        Duration::from_millis(self.coalesce_ms)
    }
}

/// Settings of the log, which goes to stderr.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct LogConfig {
    /// Filter of `tracing`, such as `info` or `nsbridge=debug,info`.
    pub filter: String,
    /// Format of the log lines.
    pub format: LogFormat,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

impl LogConfig {
    /// Creates the settings of a log with this filter of `tracing`.
    pub fn new(filter: impl Into<String>, format: LogFormat) -> Self {
        Self { filter: filter.into(), format }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { filter: "info,lapin=off,aws_config=error".to_owned(), format: LogFormat::Text }
    }
}

/// Table of the judge, and its name among the options of a judged handler.
const JUDGE: &str = "judge";

/// Environment variable of the keyring's text.
const KEYRING_JSON: &str = "NSBRIDGE_KEYS__KEYRING_JSON";

impl Config {
    /// Creates a configuration whose other sections have their defaults.
    ///
    /// ```
    /// use nsbridge::worker::{BrokerConfig, Config, KeysConfig, WorkerConfig};
    ///
    /// let worker = WorkerConfig::new("echo".parse()?);
    /// let broker = BrokerConfig::from_url("amqp://localhost");
    /// let mut config = Config::new(worker, broker, KeysConfig::from_keyring("keys.json"));
    /// config.reply.coalesce_ms = 5;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(worker: WorkerConfig, broker: BrokerConfig, keys: KeysConfig) -> Self {
        Self {
            worker,
            broker,
            keys,
            models: BTreeMap::new(),
            store: StoreConfig::default(),
            reply: ReplyConfig::default(),
            log: LogConfig::default(),
            health: HealthConfig::default(),
            telemetry: TelemetryConfig::default(),
            fleet: FleetConfig::default(),
            handler: toml::Table::new(),
            judge: None,
            timing: Timing::default(),
            file: PathBuf::new(),
            exposed: None,
        }
    }

    /// Sets the durations of the protocol, for tests. They are no settings of a file.
    #[must_use]
    pub fn with_timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Reads a file and overrides its fields with the environment's `NSBRIDGE_<SECTION>__<FIELD>`.
    ///
    /// Relative paths in the file are relative to its folder.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or if a field is missing, unknown or out of
    /// range. The message is one sentence that names the file and the field.
    pub fn read(
        path: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let shown = path.display();
        let failed = |error: std::io::Error| {
            let hint = match error.kind() {
                std::io::ErrorKind::NotFound => "; name it with --config",
                _ => "",
            };
            ConfigError::new(format!("cannot read the configuration {shown}: {error}{hint}"))
        };
        let file = ConfigFile::read(path).map_err(failed)?;
        let mut config = Self::parse(file.text(), environment)
            .map_err(|what| ConfigError::new(format!("{shown}: {what}")))?;
        config.exposed = file.exposed(&[("keys", "keyring_json")]);
        config.resolve(path.parent().unwrap_or(Path::new(".")));
        path.clone_into(&mut config.file);
        config.validate()?;
        Ok(config)
    }

    /// Reads the text of a configuration as [`read`](Self::read) reads a file. Relative paths are
    /// relative to the current folder.
    ///
    /// # Errors
    ///
    /// Returns an error as [`read`](Self::read) does.
    pub fn from_text(
        text: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut config = Self::parse(text, environment)?;
        config.resolve(Path::new("."));
        config.validate()?;
        Ok(config)
    }

    fn parse(
        text: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut environment = Environment::new(environment);
        let keyring = environment.take(KEYRING_JSON);
        let mut config: Self = nsbridge_base::config::parse(text, &environment)?;
        if keyring.is_some() {
            config.keys.keyring_json = keyring;
        }
        Ok(config)
    }

    /// Returns the handler's options. `()` and other types without fields accept an absent table.
    pub(crate) fn options<O: DeserializeOwned>(&self) -> Result<O, ConfigError> {
        let mut table = self.handler.clone();
        if let Some(judge) = &self.judge {
            table.insert(JUDGE.to_owned(), toml::Value::Table(judge.clone()));
        }
        let empty = table.is_empty();
        let mut ignored = false;
        let mut note = |path: serde_ignored::Path<'_>| ignored |= path.to_string() == JUDGE;
        let table = serde_ignored::Deserializer::new(toml::Value::Table(table), &mut note);
        let read = serde_path_to_error::deserialize(table);
        // Nothing would be judged.
        if ignored && read.is_ok() {
            let what = format!("[{JUDGE}]: this worker has no judge; serve `Judged<YourHandler>`");
            return Err(ConfigError::new(self.in_file(&what)));
        }
        read.or_else(|error| {
            // TOML has no unit type: an empty table stands for it.
            let none = serde_json::from_str("null").ok().filter(|_| empty);
            let place = nsbridge_base::config::place(&error)
                .map_or(String::new(), |place| format!("{place}: "));
            let message = error.inner().message();
            let what = match message.starts_with(&format!("[{JUDGE}]")) {
                true => message.to_owned(),
                false => format!("[handler] {place}{message}"),
            };
            none.ok_or_else(|| ConfigError::new(self.in_file(&what)))
        })
    }

    /// Prefixes a message with the file that the configuration was read from, if there is one.
    fn in_file(&self, what: &str) -> String {
        let file = self.file.display();
        if self.file.as_os_str().is_empty() { what.to_owned() } else { format!("{file}: {what}") }
    }

    /// Checks the values. A configuration that was read has passed this.
    ///
    /// # Errors
    ///
    /// Returns an error for the first field that is out of range.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        self.check().map_err(|what| ConfigError::new(self.in_file(&what)))
    }

    fn resolve(&mut self, folder: &Path) {
        self.models.values_mut().for_each(|model| model.resolve(folder));
        self.broker.resolve(folder);
        let paths = [&mut self.keys.keyring, &mut self.store.cache];
        for path in paths.into_iter().flatten() {
            *path = folder.join(&*path);
        }
        let words = self.judge.as_mut().and_then(|judge| judge.get_mut("words"));
        if let Some(toml::Value::String(path)) = words
            && let Some(resolved) = folder.join(&*path).to_str()
        {
            *path = resolved.to_owned();
        }
    }

    fn check(&self) -> Result<(), String> {
        self.broker.check().map_err(|error| error.to_string())?;
        self.keys.check()?;
        let most = nsbridge_protocol::MAX_PIECE_BYTES;
        if !(1..=most).contains(&self.reply.coalesce_bytes) {
            return Err(format!("[reply] coalesce_bytes must lie between 1 and {most}"));
        }
        if self.reply.window == 0 {
            return Err("[reply] window must be at least 1".into());
        }
        if self.reply.resume_wait_ms > LONGEST_RESUME_WAIT_MS {
            let most = LONGEST_RESUME_WAIT_MS;
            return Err(format!("[reply] resume_wait_ms must be at most {most}"));
        }
        self.telemetry.check()?;
        self.fleet.check()?;
        self.store.check()?;
        if self.store.require_manifest
            && let Some((name, _)) =
                self.models.iter().find(|(_, model)| model.wanted().manifest.is_none())
        {
            return Err(format!(
                "[models] {name} is not pinned, and [store] require_manifest asks for it: write \
                 {name} = {{ source = \"..\", manifest = \"..\" }}, as `nsbridge model push` prints it"
            ));
        }
        self.models.iter().try_for_each(|(name, model)| model.check(name))
    }
}

#[cfg(test)]
mod tests;
