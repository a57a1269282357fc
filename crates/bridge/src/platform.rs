//! Platform integration: EC2 spot notices, ECS stop notices and ECS scale-in protection.
//!
//! Nothing here is needed for correctness: the loss of a worker costs time, never text. With a
//! notice in advance a reply moves in good order instead of being computed twice.

mod ec2_spot;
mod ecs_protection;
mod ecs_task;

use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode};
use nsbridge_telemetry::http;
use tokio::time::Instant;

use crate::config::{ConfigError, FleetConfig};
use crate::drain::Drain;
use crate::observability::metrics::Metrics;
use ec2_spot::Ec2Spot;
use ecs_protection::EcsProtection;
use ecs_task::EcsTask;

/// Polling interval of the machine's services; AWS recommends five seconds for spot notices.
const POLL: Duration = Duration::from_secs(5);

/// Time limit of a response, which comes from the machine itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Addresses that ECS puts into a container's environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EcsAddresses {
    /// Value of `ECS_CONTAINER_METADATA_URI_V4`.
    pub metadata: Option<String>,
    /// Value of `ECS_AGENT_URI`.
    pub agent: Option<String>,
}

impl EcsAddresses {
    /// Creates addresses from the values of `ECS_CONTAINER_METADATA_URI_V4` and `ECS_AGENT_URI`.
    pub fn new(metadata: Option<String>, agent: Option<String>) -> Self {
        Self { metadata, agent }
    }
}

/// Reason for the worker to drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    /// AWS takes the instance back. All jobs must be handed over by this time.
    Spot(Instant),
    /// ECS stops the task and is about to send SIGTERM.
    TaskStops,
}

/// Services of the machine that are polled.
#[derive(Debug)]
pub struct Platform {
    spot: Option<Ec2Spot>,
    task: Option<EcsTask>,
    protection: Option<EcsProtection>,
}

impl Platform {
    /// Selects the services that the configuration and the task's own environment name.
    ///
    /// # Errors
    ///
    /// Returns an error if the configuration requires ECS and this is no ECS task.
    pub fn new(config: &FleetConfig, ecs: EcsAddresses) -> Result<Self, ConfigError> {
        if config.ecs == Some(true) && ecs == EcsAddresses::default() {
            return Err(ConfigError::new(
                "[fleet] ecs is on, but the environment has neither ECS_CONTAINER_METADATA_URI_V4 \
                 nor ECS_AGENT_URI: this is no ECS task",
            ));
        }
        let release_after = Duration::from_secs(config.release_after_s);
        let ecs = if config.ecs == Some(false) { EcsAddresses::default() } else { ecs };
        Ok(Self {
            spot: config.spot.then(|| Ec2Spot::new(&config.imds)),
            task: ecs.metadata.as_deref().map(EcsTask::new),
            protection: ecs.agent.as_deref().map(|agent| EcsProtection::new(agent, release_after)),
        })
    }

    /// Drains the worker when the machine or the task is about to stop, and keeps ECS from scaling
    /// the task in while requests run. Runs until it is dropped.
    pub async fn run(mut self, drain: Drain, metrics: Metrics) {
        let protection = self.protection.take();
        let protect = or_never(protection.map(|protection| protection.run(metrics.load())));
        let leave = async {
            loop {
                match self.notice().await {
                    Notice::Spot(by) => {
                        drain.by(by);
                        self.spot = None;
                    }
                    Notice::TaskStops => {
                        drain.begin();
                        self.task = None;
                    }
                }
            }
        };
        tokio::select! {
            () = protect => {}
            never = leave => never,
        }
    }

    /// Waits for a reason to drain.
    async fn notice(&mut self) -> Notice {
        tokio::select! {
            by = or_never(self.spot.as_mut().map(Ec2Spot::notice)) => Notice::Spot(by),
            () = or_never(self.task.as_ref().map(EcsTask::stopping)) => Notice::TaskStops,
        }
    }
}

async fn or_never<T>(wait: Option<impl Future<Output = T>>) -> T {
    match wait {
        Some(wait) => wait.await,
        None => std::future::pending().await,
    }
}

/// Reason why a service of the machine gave no usable answer.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// There was no response.
    #[error("cannot ask {url}")]
    Http {
        url: String,
        #[source]
        source: http::Error,
    },
    /// The status is one that AWS does not document.
    #[error("{url} answered {status}")]
    Status { url: String, status: StatusCode },
    /// The body is one that AWS does not document.
    #[error("{url} answered what it is not documented to answer")]
    Answer { url: String },
    /// ECS refused; the message is AWS's own.
    #[error("ECS refused: {0}")]
    Refused(String),
}

/// Sends a request and accepts any status.
async fn ask(
    request: hyper::http::request::Builder,
    body: String,
) -> Result<Response<Bytes>, Error> {
    let url = request.uri_ref().map(ToString::to_string).unwrap_or_default();
    let answered = match request.body(Bytes::from(body)) {
        Ok(request) => http::exchange(request, ANSWER_WITHIN).await,
        Err(_) => Err(http::Error::Address),
    };
    answered.map_err(|source| Error::Http { url, source })
}

fn get(url: &str) -> hyper::http::request::Builder {
    Request::get(url)
}

/// Logs the first failure in a row, so that an outage is one line.
#[derive(Debug, Default)]
struct Outage {
    failing: bool,
}

impl Outage {
    fn note<T>(&mut self, result: Result<T, Error>, what: &str) -> Option<T> {
        match result {
            Ok(value) => {
                self.failing = false;
                Some(value)
            }
            Err(error) => {
                if !self.failing {
                    tracing::warn!(error = %nsbridge_base::chain(&error), "{what}");
                }
                self.failing = true;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
