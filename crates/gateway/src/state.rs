//! State that all requests share.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nsbridge_client::{ModelName, Reply, Summary};
use nsbridge_gateway_access::{Access, Memory, Shares};
use nsbridge_gateway_replies::{Replies, Workers};
use nsbridge_queue::Broker;
use nsbridge_telemetry::Spans;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::accounts::Accounts;
use crate::archive::Archive;
use crate::catalog::Models;
use crate::config::Settings;
use crate::error::Result;
use crate::metrics::{Metrics, RefusedFiles};

/// State of the gateway.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) client: nsbridge_client::Client,
    pub(crate) access: Access,
    pub(crate) models: Models,
    pub(crate) workers: Arc<Workers>,
    pub(crate) replies: Arc<Replies>,
    /// Files and batches; `None` without a store.
    pub(crate) archive: Option<Arc<Archive>>,
    /// Relay of sealed frames; `None` if the configuration has none.
    pub(crate) sealed: Option<Arc<Sealed>>,
    pub(crate) settings: Settings,
    pub(crate) memory: Memory,
    pub(crate) metrics: Metrics,
    pub(crate) spans: Spans,
    pub(crate) started: SystemTime,
    /// Canceled when the gateway drains.
    pub(crate) draining: CancellationToken,
    pub(crate) refused: RefusedFiles,
}

/// State that the sessions of proxies share.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) accounts: Accounts,
    /// Places of sessions. Each session has a connection to the broker.
    pub(crate) places: Arc<Shares>,
}

impl Sealed {
    /// Maximum number of sessions; half of it for one tenant. A proxy has two.
    const SESSIONS: usize = 512;

    pub(crate) fn new(broker: Arc<dyn Broker>) -> Self {
        let places = Shares::new(Self::SESSIONS);
        Self { broker, accounts: Accounts::default(), places }
    }
}

impl App {
    /// Returns the reason why no further request should come here, if there is one.
    pub(crate) fn why_not_ready(&self) -> Option<&'static str> {
        if self.draining.is_cancelled() {
            return Some("draining");
        }
        self.replies.cannot_store().then_some("the store cannot be written")
    }

    /// Waits for a reply that its client receives as a whole. It fails when the model still has no worker
    /// after `patience`.
    pub(crate) async fn whole<O: DeserializeOwned>(
        &self,
        reply: Reply<O>,
        model: &ModelName,
        patience: Option<Duration>,
    ) -> Result<(Vec<O>, Summary)> {
        let Some(patience) = patience else { return Ok(reply.collect().await?) };
        let (id, until) = (reply.id(), Instant::now() + patience);
        tokio::select! {
            replied = reply.collect() => Ok(replied?),
            failure = self.workers.given_up(id, model, || Some(until), || ()) => Err(failure.into()),
        }
    }

    /// Returns the signal to cut the streams that their clients can read on from another replica.
    pub(crate) fn hand_over(&self) -> Option<CancellationToken> {
        self.replies.is_shared().then(|| self.draining.clone())
    }
}
