//! Sources of figures, each of which is read again and again by a task of its own.

use std::time::{Duration, Instant};

use anyhow::Result;
use hyper::Uri;
use nsbridge_base::{Backoff, plain};
use nsbridge_observe::address::at;
use nsbridge_observe::{Gateway, Http, Management, Page, Queue, Worker};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::queues::Queues;

/// Maximum time between two attempts to read a source.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

/// Source of figures.
#[derive(Debug)]
pub(super) enum Source {
    /// Metrics page of a worker or of a gateway.
    Page(Http, Uri),
    /// Queues of named models, over AMQP.
    Queues(Queues),
    /// Queues of all models, from the management API.
    Management(Management),
}

/// State of a worker by its page `/readyz`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Health {
    pub(super) ready: bool,
    pub(super) loaded: bool,
    pub(super) consuming: bool,
    pub(super) handler_ok: bool,
    pub(super) calls_ok: bool,
    pub(super) draining: bool,
}

/// Figures of a source at one moment.
#[derive(Clone, Debug)]
pub(super) enum Reading {
    Worker(Box<Worker>, Option<Health>),
    Gateway(Gateway),
    Queues(Vec<Queue>),
}

/// Result of one reading.
#[derive(Debug)]
pub(super) struct Report {
    /// Number of the source.
    pub(super) source: usize,
    pub(super) at: Instant,
    pub(super) read: Result<Reading, Fault>,
}

/// Failure of a reading.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fault {
    /// Cause, as one sentence without control characters.
    pub(super) said: String,
    /// Time until the next attempt, if there is one.
    pub(super) next: Option<Duration>,
}

impl Source {
    /// Reads the source once. The time that this takes is bounded.
    pub(super) async fn read(&mut self) -> Result<Reading> {
        match self {
            Self::Page(http, uri) => page(http, uri).await,
            Self::Queues(queues) => Ok(Reading::Queues(queues.read().await?)),
            Self::Management(management) => Ok(Reading::Queues(management.read().await?)),
        }
    }

    /// Reads the source once and reports the result.
    pub(super) async fn report(&mut self, source: usize, next: Option<Duration>) -> Report {
        let read = self.read().await.map_err(|error| {
            let said = nsbridge_base::chain(error.as_ref());
            Fault { said: plain(&said).into_owned(), next }
        });
        Report { source, at: Instant::now(), read }
    }

    /// Reads the source every `interval`, and less often while it fails. Ends with the receiver.
    pub(super) async fn watch(
        mut self,
        source: usize,
        interval: Duration,
        reports: mpsc::Sender<Report>,
    ) {
        let mut pauses = backoff(interval).pauses();
        loop {
            // Whole pauses: the screen shows them, and one process retries in step with no other.
            let mut next = pauses.next(0);
            let report = self.report(source, Some(next)).await;
            if report.read.is_ok() {
                pauses.reset();
                next = interval;
            }
            if reports.send(report).await.is_err() {
                return;
            }
            tokio::time::sleep(next).await;
        }
    }
}

/// Returns the back-off of a source that fails: from twice the interval to a limit, and never below
/// the interval.
fn backoff(interval: Duration) -> Backoff {
    Backoff::new(interval.saturating_mul(2), LONGEST_BACKOFF.max(interval))
}

async fn page(http: &Http, uri: &Uri) -> Result<Reading> {
    Ok(match Page::of_answer(&http.get(uri, None).await?)? {
        Page::Worker(worker) => Reading::Worker(Box::new(worker), health(http, uri).await),
        Page::Gateway(gateway) => Reading::Gateway(gateway),
    })
}

/// Reads the page `/readyz` beside the metrics, which a worker answers with 200 or 503.
async fn health(http: &Http, uri: &Uri) -> Option<Health> {
    let answer = http.get(&at(uri, "/readyz").ok()?, None).await.ok()?;
    serde_json::from_str(&answer.text).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nsbridge::worker::Metrics;
    use nsbridge_observe::{Count, Http, Page, address};
    use nsbridge_testkit::http::{Answer, Server};
    use tokio::sync::mpsc;

    use super::{Health, Reading, Source, backoff};

    fn source(server: &Server, path: &str) -> Source {
        let uri = address::page(&server.url(path)).unwrap();
        Source::Page(Http::new(&uri).unwrap(), uri)
    }

    /// Serves the metrics of a worker and its health.
    async fn server(health: &'static str) -> Server {
        let metrics = Metrics::new(&"tale-7m".parse().unwrap());
        let typed = |text: &str| {
            Answer::raw(&format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: {}\r\n\
                 content-length: {}\r\n\r\n{text}",
                Metrics::CONTENT_TYPE,
                text.len()
            ))
        };
        Server::start(move |seen| match seen.line.as_str() {
            "GET /metrics" => typed(&metrics.text()),
            "GET /cut" => typed(metrics.text()[..1000].rsplit_once('\n').unwrap().0),
            "GET /readyz" => Answer::new(503, health),
            _ => Answer::new(404, "not \u{1b}[2J here"),
        })
        .await
        .unwrap()
    }

    /// Names and labels are those of a worker of this version.
    #[test]
    fn the_page_of_a_worker_is_read() {
        let metrics = Metrics::new(&"tale-7m".parse().unwrap());
        let Page::Worker(worker) = Page::read(&metrics.text()).unwrap() else { panic!() };
        assert_eq!(worker.model, "tale-7m");
        assert_eq!(worker.version, env!("CARGO_PKG_VERSION"));
        assert_eq!(worker.queues.keys().collect::<Vec<_>>(), ["bulk", "dead", "requests"]);
        for count in [Count::Requests, Count::Errors, Count::Output, Count::Replies, Count::Resumed]
        {
            assert_eq!(worker.counters.of(count), Some(0.0), "{count:?}");
        }
        assert_eq!(worker.counters.of(Count::Drafted), None);
        let mut first = worker.counters.first_token;
        first.add(0.04, 1.0);
        first.add(f64::INFINITY, 1.0);
        assert_eq!(first.quantile(0.5), Some(0.03), "the buckets of a worker");
    }

    #[tokio::test]
    async fn a_worker_is_read_with_its_health() {
        let server = server("{\"draining\":true,\"loaded\":true,\"model\":\"tale-7m\"}").await;
        let read = source(&server, "/").read().await.unwrap();
        let Reading::Worker(worker, health) = read else { panic!("{read:?}") };
        assert_eq!(worker.model, "tale-7m");
        let draining = Health { draining: true, loaded: true, ..Health::default() };
        assert_eq!(health, Some(draining));
    }

    #[tokio::test]
    async fn a_worker_behind_other_paths_is_read_without_its_health() {
        let server = server("<html>").await;
        let read = source(&server, "/metrics").read().await.unwrap();
        assert!(matches!(read, Reading::Worker(_, None)), "{read:?}");
    }

    #[tokio::test]
    async fn a_page_that_was_cut_or_is_missing_is_a_fault() {
        let server = server("{}").await;
        let said = async |path| source(&server, path).read().await.unwrap_err().to_string();
        assert!(said("/cut").await.contains("the page was cut"));
        assert_eq!(said("/elsewhere").await, "status 404");
    }

    #[tokio::test]
    async fn a_source_that_fails_is_read_less_often() {
        let server = server("{}").await;
        let (sender, mut reports) = mpsc::channel(1);
        let interval = Duration::from_millis(10);
        let watch = tokio::spawn(source(&server, "/elsewhere").watch(7, interval, sender));
        for factor in [2, 4, 8] {
            let report = reports.recv().await.unwrap();
            assert_eq!(
                (report.source, report.read.unwrap_err().next),
                (7, Some(interval * factor))
            );
        }
        drop(reports);
        watch.await.unwrap();
    }

    #[test]
    fn the_backoff_has_a_limit() {
        let seconds = |interval| {
            let mut pauses = backoff(Duration::from_secs(interval)).pauses();
            [0; 5].map(|random| pauses.next(random).as_secs())
        };
        assert_eq!(seconds(2), [4, 8, 16, 30, 30]);
        assert_eq!(seconds(60), [60; 5]);
    }
}
