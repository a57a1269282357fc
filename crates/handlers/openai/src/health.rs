//! Watch over a server: its health, and its metrics.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use nsbridge_handler::{Health, Measure};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::metrics::measures;
use crate::server::Server;

/// Interval of the watch.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Time limit of one look: a server that is well answers at once.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Number of failures in a row after which the server counts as gone.
const MOST_FAILURES: u32 = 4;

/// Findings of the watch.
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
            let page = timeout(LOOK_LIMIT, self.metrics()).await.ok().flatten();
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
        let Ok(answer) = timeout(LOOK_LIMIT, http.get(page)).await else {
            let limit = LOOK_LIMIT.as_secs();
            return Some(format!("{}{page} has not answered within {limit} s", http.root()));
        };
        match answer {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::net::TcpListener;

    use super::Watch;
    use crate::http::Http;
    use crate::options::Flavor;
    use crate::server::Server;

    #[tokio::test]
    async fn a_server_that_accepts_and_does_not_answer_is_soon_not_well() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let watch = Watch::new(Arc::new(Server {
            http: Arc::new(Http::new(&url, None).unwrap()),
            flavor: Flavor::Vllm,
            model: "m".to_owned(),
            adapters: Vec::new(),
            texts: None,
            context: None,
            share_prefix_cache: false,
            takes_images: false,
            facts: Vec::new(),
        }));
        let why = watch.look().await.unwrap();
        assert!(why.ends_with("/health has not answered within 5 s"), "{why}");
    }
}
