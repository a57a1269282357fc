//! Watch over a server: its health, and its metrics.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use nsbridge_handler::{Health, Measure};
use parking_lot::Mutex;

use crate::metrics::measures;
use crate::server::Server;

/// Interval of the watch.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Number of failures in a row after which the server counts as gone.
const MOST_FAILURES: u32 = 4;

/// What the watch has found.
#[derive(Debug)]
pub(crate) struct Watch {
    server: Arc<Server>,
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    failures: u32,
    /// Reason of the last failure.
    why: String,
    /// Page of metrics.
    page: String,
}

impl Watch {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server, found: Mutex::default() }
    }

    /// Returns the health of the server.
    pub(crate) fn health(&self) -> Health {
        let found = self.found.lock();
        match found.failures >= MOST_FAILURES {
            true => Health::failed(found.why.clone()),
            false => Health::Ok,
        }
    }

    /// Returns the measures of the server, which may be some seconds old.
    pub(crate) fn measures(&self) -> Vec<Measure> {
        measures(self.server.flavor, &self.found.lock().page)
    }

    /// Looks at the server for ever.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let why = self.look().await;
            let page = self.metrics().await;
            self.note(why, page.unwrap_or_default());
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn note(&self, why: Option<String>, page: String) {
        let mut found = self.found.lock();
        found.page = page;
        found.failures = if why.is_some() { found.failures + 1 } else { 0 };
        found.why = why.unwrap_or_default();
    }

    /// Returns the reason if the server is not well.
    async fn look(&self) -> Option<String> {
        let (http, page) = (&self.server.http, self.server.health_page());
        match http.get(page).await {
            Ok(answer) if answer.status.is_server_error() => Some(format!(
                "{}{page} answers with status {}",
                http.root(),
                answer.status.as_u16()
            )),
            Ok(_) => None,
            Err(error) => Some(nsbridge_base::chain(&error)),
        }
    }

    async fn metrics(&self) -> Option<String> {
        let answer = self.server.http.get("/metrics").await.ok()?;
        (answer.status == StatusCode::OK).then(|| answer.text())
    }
}
