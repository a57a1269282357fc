//! Loop of a scaler: observe, decide, tell.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::tz::TimeZone;
use nsbridge_base::chain;
use nsbridge_observe::{Management, Queue};
use nsbridge_protocol::ModelName;
use nsbridge_telemetry::LogWriter;
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::cloudwatch::{CloudWatch, Datum};
use crate::config::{Config, ModelConfig};
use crate::decision_log::{DecisionLog, Entry};
use crate::ecs::Ecs;
use crate::leader::Leader;
use crate::metrics::Metrics;
use crate::model::{Decided, Led};
use crate::pages::{Pages, Shown};

/// Number of intervals after which a decision is no longer shown.
const STALE_INTERVALS: u32 = 4;

/// Least time after which a decision is no longer shown.
const LEAST_STALE: Duration = Duration::from_secs(60);

/// Scaler of all models of a configuration.
#[derive(Debug)]
pub struct Scaler {
    listener: TcpListener,
    interval: Duration,
    turns: Turns,
}

/// State that goes from one decision to the next.
#[derive(Debug)]
struct Turns {
    time_zone: TimeZone,
    leader: Leader,
    management: Management,
    models: BTreeMap<ModelName, Model>,
    cloudwatch: Option<CloudWatch>,
    pages: Pages,
    metrics: Metrics,
    log: DecisionLog,
    /// Failures that were logged and have not ended, by task and model.
    failing: BTreeMap<(&'static str, String), String>,
}

/// Model of a scaler.
#[derive(Debug)]
struct Model {
    config: ModelConfig,
    /// State while this process decides for the model.
    led: Option<Led>,
    ecs: Option<Ecs>,
}

impl Scaler {
    /// Creates a scaler that listens at its address, and writes its decisions as JSON lines. With `dry_run`,
    /// CloudWatch and ECS are told nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if an address cannot be used, or if no region of AWS is set where one is needed.
    pub async fn new(config: Config, dry_run: bool, decisions: LogWriter) -> Result<Self> {
        config.broker.check()?;
        let broker = config.broker.read_url()?;
        let leader = Leader::new(&broker).context("[broker]")?;
        let management = Management::new(config.management_address()?, &broker)?;
        let interval = Duration::from_secs_f64(config.decisions.interval_s);
        let time_zone = config.time_zone()?;
        let cloudwatch = match &config.cloudwatch {
            Some(options) if !dry_run => {
                Some(CloudWatch::new(options).await.context("[cloudwatch]")?)
            }
            _ => None,
        };
        let mut models = BTreeMap::new();
        for (name, config) in config.models {
            let ecs = match &config.ecs {
                Some(ecs) if !dry_run => {
                    let made = Ecs::new(ecs).await;
                    Some(made.with_context(|| format!("[models.\"{name}\".ecs]"))?)
                }
                _ => None,
            };
            models.insert(name, Model { config, led: None, ecs });
        }
        let listen = config.server.listen;
        let listener = TcpListener::bind(listen).await;
        let listener = listener.with_context(|| format!("[server] listen: cannot use {listen}"))?;
        let metrics = Metrics::new();
        let stale_after = LEAST_STALE.max(interval * STALE_INTERVALS);
        let pages = Pages::new(models.keys(), stale_after, metrics.clone());
        let (log, failing) = (DecisionLog::new(decisions), BTreeMap::new());
        let turns = Turns {
            time_zone,
            leader,
            management,
            models,
            cloudwatch,
            pages,
            metrics,
            log,
            failing,
        };
        Ok(Self { listener, interval, turns })
    }

    /// Returns the address of the pages.
    ///
    /// # Errors
    ///
    /// Returns an error if the system does not know it.
    pub fn address(&self) -> Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Observes and decides until the token is canceled, and releases the leadership.
    ///
    /// # Errors
    ///
    /// Returns an error if the listener fails.
    pub async fn run(self, ended: CancellationToken) -> Result<()> {
        let Self { listener, interval, mut turns } = self;
        let server = axum::serve(listener, turns.pages.clone().routes());
        let result = tokio::select! {
            served = server.into_future() => served.context("serving the pages"),
            () = turns.repeat(interval) => Ok(()),
            () = ended.cancelled() => Ok(()),
        };
        turns.leader.close().await;
        turns.log.flush();
        result
    }
}

impl Turns {
    async fn repeat(&mut self, between: Duration) {
        let mut ticks = interval(between);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.turn().await;
        }
    }

    /// Decides for each model that this process leads.
    async fn turn(&mut self) {
        let led = self.led().await;
        if led.is_empty() {
            return;
        }
        let queues = match self.management.read().await {
            Ok(queues) => queues,
            Err(error) => return self.fail("management", "", &error),
        };
        self.recover("management", "");
        let mut data = Vec::new();
        for name in led {
            data.extend(self.decide(&name, &queues).await);
        }
        if let Some(cloudwatch) = &self.cloudwatch {
            match cloudwatch.put(&data).await {
                Ok(()) => self.recover("cloudwatch", ""),
                Err(error) => self.fail("cloudwatch", "", &error),
            }
        }
    }

    /// Returns the models that this process leads, after it has asked the broker.
    async fn led(&mut self) -> Vec<ModelName> {
        let mut led = Vec::new();
        let names: Vec<ModelName> = self.models.keys().cloned().collect();
        for name in names {
            match self.leader.leads(&name).await {
                Ok(leads) => {
                    self.recover("broker", "");
                    if self.lead(&name, leads).await {
                        led.push(name);
                    }
                }
                // The last decision is shown until it is stale. Whether this process still leads is not
                // known, and the next turn asks.
                Err(error) => {
                    self.fail("broker", "", &error);
                    return Vec::new();
                }
            }
        }
        led
    }

    /// Begins or ends to decide for a model. Returns true if this process decides for it.
    async fn lead(&mut self, name: &ModelName, leads: bool) -> bool {
        let Some(model) = self.models.get_mut(name) else { return false };
        self.metrics.leads(name.as_str(), leads);
        if !leads {
            if model.led.take().is_some() {
                tracing::info!(model = %name, "another scaler decides for this model now");
            }
            self.pages.show(name, Shown::Follows);
            return false;
        }
        if model.led.is_some() {
            return true;
        }
        match Led::new(name, &model.config) {
            Ok(led) => model.led = Some(led),
            Err(error) => {
                self.fail("workers", name.as_str(), &error);
                return false;
            }
        }
        tracing::info!(model = %name, "this scaler decides for this model");
        self.pages.show(name, Shown::Nothing);
        if let Err(error) = self.leader.declare(name).await {
            // The first worker declares them too. Until then no request can wait.
            let error = chain(error.as_ref());
            tracing::warn!(model = %name, error, "the queues of the model are not declared");
        }
        true
    }

    /// Decides for a model and tells the number. Returns the metrics for CloudWatch.
    async fn decide(&mut self, name: &ModelName, queues: &[Queue]) -> Vec<Datum> {
        let Some(Model { led: Some(led), ecs, .. }) = self.models.get_mut(name) else {
            return Vec::new();
        };
        let failures = led.workers.read().await;
        let decided = led.decide(queues, &self.time_zone);
        let told = match ecs {
            Some(ecs) => Some(ecs.set(decided.decision.desired).await),
            None => None,
        };
        match failures.first() {
            Some(failure) => self.fail("workers", name.as_str(), failure),
            None => self.recover("workers", name.as_str()),
        }
        match told {
            Some(Ok(tasks)) => {
                self.recover("ecs", name.as_str());
                if let Some(tasks) = tasks {
                    tracing::info!(model = %name, tasks, "the number of tasks is set");
                }
            }
            Some(Err(error)) => self.fail("ecs", name.as_str(), &error),
            None => {}
        }
        self.record(name, &decided);
        data(name, &decided)
    }

    fn record(&mut self, name: &ModelName, decided: &Decided) {
        let Decided { run, observation, decision, .. } = decided.clone();
        tracing::debug!(model = %name, "{decision}");
        self.log.write(&Entry::new(name.clone(), run, observation, decision));
        self.metrics.decided(name.as_str(), decided);
        self.pages.show(name, Shown::Decided(Box::new(decided.clone())));
    }

    /// Records a failure, and logs it if it is not the last one again.
    fn fail(&mut self, task: &'static str, model: &str, error: &anyhow::Error) {
        self.metrics.failed(task);
        let error = chain(error.as_ref());
        let known = self.failing.insert((task, model.to_owned()), error.clone());
        if known.is_none_or(|known| known != error) {
            tracing::warn!(model, error, "{}", failure(task));
        }
    }

    /// Records that a task succeeded.
    fn recover(&mut self, task: &'static str, model: &str) {
        if self.failing.remove(&(task, model.to_owned())).is_some() {
            tracing::info!(task, model, "this works again");
        }
    }
}

/// Returns the sentence of a failed task.
fn failure(task: &str) -> &'static str {
    match task {
        "broker" => "the broker cannot be asked which scaler decides, so nothing is decided",
        "management" => "the management API cannot be read, so nothing is decided",
        "workers" => "metrics of the workers cannot be read; the averages stay as they are",
        "cloudwatch" => "CloudWatch was not told the numbers",
        _ => "ECS was not told the number of tasks",
    }
}

fn data(model: &ModelName, decided: &Decided) -> Vec<Datum> {
    let datum = |metric, value, unit| Datum { metric, model: model.to_string(), value, unit };
    let desired = datum("DesiredWorkers", decided.decision.desired.into(), "Count");
    let backlog = decided.backlog_s.map(|value| datum("BacklogSeconds", value, "Seconds"));
    [desired].into_iter().chain(backlog).collect()
}
