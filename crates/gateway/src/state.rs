//! State that all requests share.

use std::sync::Arc;
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::archive::Archive;
use crate::catalog::Models;
use crate::config::Settings;
use crate::memory::Bodies;
use crate::metrics::Metrics;
use crate::runs::Runs;

/// State of the gateway.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) client: nsbridge_client::Client,
    pub(crate) access: Access,
    pub(crate) models: Models,
    pub(crate) runs: Arc<Runs>,
    /// Files and batches; `None` without a store.
    pub(crate) archive: Option<Arc<Archive>>,
    pub(crate) settings: Settings,
    pub(crate) bodies: Bodies,
    pub(crate) metrics: Metrics,
    pub(crate) started: SystemTime,
    /// Canceled when the gateway drains.
    pub(crate) draining: CancellationToken,
}

impl App {
    /// Returns the signal to cut the streams that their clients can read on from another replica.
    pub(crate) fn hand_over(&self) -> Option<CancellationToken> {
        self.runs.is_shared().then(|| self.draining.clone())
    }
}
