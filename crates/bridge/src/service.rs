//! State of this worker for the service manager.

use std::time::Duration;

use nsbridge_handler::source::LoadProgress;
use tokio::time::Instant;

use crate::drain::Drain;
use crate::loading::percent;
use crate::observability::Observability;
use crate::service_manager::ServiceState;

/// Time that a drain may take beyond the grace period: requests are handed over, and connections close.
const AFTER_GRACE: Duration = Duration::from_secs(15);

/// Sources of the state of a worker.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) drain: Drain,
    pub(crate) observability: Observability,
    pub(crate) progress: LoadProgress,
}

impl Service {
    /// Returns the state that the health pages show.
    pub(crate) fn state(&self) -> ServiceState {
        let report = self.observability.health.report();
        let is_draining = self.drain.moment().is_some();
        let status = if is_draining {
            match *self.observability.metrics.load().borrow() {
                1 => "draining 1 reply".to_owned(),
                replies => format!("draining {replies} replies"),
            }
        } else if !report.loaded {
            match percent(&self.progress) {
                Some(percent) => format!("loading {percent} %"),
                None => "loading".to_owned(),
            }
        } else if report.ready {
            format!("serving {}", report.model)
        } else if !report.handler_ok {
            "the handler is not well".to_owned()
        } else if !report.calls_ok {
            "the handler's calls stand still".to_owned()
        } else {
            "waiting for the broker".to_owned()
        };
        ServiceState::new(report.alive, report.ready && !is_draining, status)
    }

    /// Waits until the worker begins to drain, and returns the time that it may take.
    pub(crate) async fn stopping(&self) -> Duration {
        let moment = self.drain.begun().await;
        moment.saturating_duration_since(Instant::now()) + AFTER_GRACE
    }
}
