//! Configuration of a scaler.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};
use hyper::Uri;
use jiff::tz::TimeZone;
use nsbridge_base::config::{BrokerConfig, ConfigFile, Environment};
use nsbridge_observe::address;
use nsbridge_protocol::ModelName;
use nsbridge_scaling::policy::Options;
use serde::Deserialize;

/// Configuration of a scaler: a TOML file, with each field overridable from the environment.
///
/// `deploy/scaler.example.toml` documents every field.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Listener.
    #[serde(default)]
    pub server: Server,
    /// Message broker.
    #[serde(default)]
    pub broker: BrokerConfig,
    /// Management API of the broker.
    pub management: ManagementConfig,
    /// Times of the decisions.
    #[serde(default)]
    pub decisions: Decisions,
    /// Metrics in CloudWatch; none if absent.
    pub cloudwatch: Option<CloudWatchConfig>,
    /// Models by the name of their queue.
    pub models: BTreeMap<ModelName, ModelConfig>,
}

/// Listener of a scaler.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Address and port of `/v1/desired/MODEL`, `/metrics`, `/livez` and `/readyz`.
    pub listen: SocketAddr,
}

impl Default for Server {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 9465)) }
    }
}

/// Management API of the broker.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManagementConfig {
    /// URL, without a login: it is asked as the user of `[broker]`.
    pub url: String,
}

/// Times of the decisions.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Decisions {
    /// Time between two decisions, in seconds, from 1 to 600.
    pub interval_s: f64,
    /// Time zone of the floors, such as `Asia/Tokyo`.
    pub time_zone: String,
}

impl Default for Decisions {
    fn default() -> Self {
        Self { interval_s: 15.0, time_zone: "UTC".to_owned() }
    }
}

/// Metrics in CloudWatch.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CloudWatchConfig {
    /// Namespace of the metrics `DesiredWorkers` and `BacklogSeconds`, which have the dimension `Model`.
    pub namespace: String,
    /// Region; that of the environment if absent.
    pub region: Option<String>,
}

impl Default for CloudWatchConfig {
    fn default() -> Self {
        Self { namespace: "nsbridge".to_owned(), region: None }
    }
}

/// Model of a scaler.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Metrics pages of the workers, as `HOST:PORT` or `http://HOST:PORT/PATH`. Each address of a host's name
    /// is a worker.
    #[serde(default)]
    pub workers: Vec<String>,
    /// Time in which a worker that was asked for must take requests, in seconds. After it, the worker is not
    /// waited for any longer.
    #[serde(default = "fifteen_minutes")]
    pub boot_limit_s: f64,
    /// Policy.
    pub policy: Options,
    /// Service of ECS whose number of tasks the scaler sets; none if absent.
    pub ecs: Option<EcsConfig>,
}

/// Time limit of a boot: an instance, an image and a model of 70 billion parameters take some 7 minutes.
fn fifteen_minutes() -> f64 {
    900.0
}

/// Service of ECS.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EcsConfig {
    /// Name or ARN of the cluster.
    pub cluster: String,
    /// Name of the service.
    pub service: String,
    /// Workers of the model outside of this service, which are subtracted from the number.
    #[serde(default)]
    pub other_workers: u32,
    /// Region; that of the environment if absent.
    pub region: Option<String>,
}

impl Config {
    /// Reads a file, and overrides its fields from the environment. The address of the broker, which a replay
    /// does not need, is not checked.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or with the first field that cannot be used.
    pub fn read(
        path: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let shown = path.display();
        let file = ConfigFile::read(path).with_context(|| format!("cannot read {shown}"))?;
        let environment = Environment::new(environment);
        let parsed = nsbridge_base::config::parse(file.text(), &environment);
        let mut config: Self =
            parsed.with_context(|| format!("{shown} is not a configuration of the scaler"))?;
        if let Some(warning) = file.exposed(&[]) {
            tracing::warn!("{warning}");
        }
        config.broker.resolve(path.parent().unwrap_or(Path::new("")));
        config.check().with_context(|| shown.to_string())?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        self.management_address()?;
        self.time_zone()?;
        ensure!(
            (1.0..=600.0).contains(&self.decisions.interval_s),
            "[decisions] interval_s is {}: set it to a number of seconds from 1 to 600",
            self.decisions.interval_s
        );
        ensure!(!self.models.is_empty(), "`models` is empty: add a table [models.NAME]");
        for (name, model) in &self.models {
            model.check().with_context(|| format!("[models.\"{name}\"]"))?;
        }
        Ok(())
    }

    pub(crate) fn management_address(&self) -> Result<Uri> {
        address::management(&self.management.url)
            .map_err(|problem| anyhow!("[management] url: {problem}"))
    }

    pub(crate) fn time_zone(&self) -> Result<TimeZone> {
        let name = &self.decisions.time_zone;
        TimeZone::get(name).map_err(|_| {
            anyhow!(
                "[decisions] time_zone is {name:?}: set it to a name such as \"Asia/Tokyo\" or \"UTC\""
            )
        })
    }
}

impl ModelConfig {
    fn check(&self) -> Result<()> {
        self.worker_pages()?;
        ensure!(
            (1.0..=86_400.0).contains(&self.boot_limit_s),
            "boot_limit_s is {}: set it to a number of seconds from 1 to 86400",
            self.boot_limit_s
        );
        self.policy.check().context("policy")?;
        Ok(())
    }

    pub(crate) fn worker_pages(&self) -> Result<Vec<Uri>> {
        let page = |text: &String| {
            let uri =
                address::page(text).map_err(|problem| anyhow!("workers {text:?}: {problem}"))?;
            // A certificate has a name, and each address of the name is read.
            ensure!(
                uri.scheme_str() == Some("http"),
                "workers {text:?}: metrics of workers are read without TLS: begin with http://"
            );
            Ok(uri)
        };
        self.workers.iter().map(page).collect()
    }
}

#[cfg(test)]
mod tests {
    //! Tests of a configuration's sentences.

    use super::Config;

    #[test]
    fn the_example_has_every_field() {
        let example = include_str!("../../../deploy/scaler.example.toml");
        let config = read(example).unwrap();
        assert!(config.cloudwatch.is_some() && config.models.len() == 1);
        let sources = [
            include_str!("config.rs"),
            include_str!("../../scaling/src/policy.rs"),
            include_str!("../../scaling/src/policy/rule.rs"),
        ];
        // The fields of a rule without a place in this example are named in its comments.
        for field in sources.iter().flat_map(|source| fields(source)) {
            let shown = example.lines().any(|line| {
                let line = line.trim_start_matches(['#', ' ', '[']);
                line.starts_with(&format!("{field} =")) || line.contains(&field)
            });
            assert!(shown, "deploy/scaler.example.toml has no `{field}`");
        }
    }

    /// Returns the names of the public fields of a source.
    fn fields(source: &str) -> impl Iterator<Item = String> {
        let lines = source.lines().filter_map(|line| line.strip_prefix("    pub "));
        let names = lines.filter_map(|line| Some(line.split_once(": ")?.0.to_owned()));
        names.filter(|name| name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()))
    }

    const GOOD: &str = "[broker]\nurl = \"amqp://localhost\"\n\
        [management]\nurl = \"http://localhost:15672\"\n\
        [models.tale-7m]\nworkers = [\"worker:9464\"]\n\
        policy = { max = 4, rule = { kind = \"fixed\", workers = 2 } }\n";

    fn read(text: &str) -> anyhow::Result<Config> {
        let config: Config =
            nsbridge_base::config::parse(text, &nsbridge_base::config::Environment::new([]))?;
        config.check()?;
        Ok(config)
    }

    #[test]
    fn a_value_that_cannot_be_used_is_one_sentence() {
        read(GOOD).unwrap();
        for (from, to, expected) in [
            (
                "http://localhost:15672",
                "http://a:b@localhost",
                "[management] url: an address has no user",
            ),
            (
                "worker:9464",
                "https://worker",
                "workers \"https://worker\": metrics of workers are read",
            ),
            ("max = 4", "max = 0", "max is 0: set it to a number from 1 to 10000"),
            (
                "[management]",
                "[decisions]\ninterval_s = 0\n[management]",
                "interval_s is 0: set it",
            ),
            (
                "[management]",
                "[decisions]\ntime_zone = \"Mars\"\n[management]",
                "time_zone is \"Mars\": set it",
            ),
            ("workers = [", "boot_limit_s = -1\nworkers = [", "boot_limit_s is -1: set it"),
        ] {
            let error = format!("{:#}", read(&GOOD.replace(from, to)).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
