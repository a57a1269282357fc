//! Readings of the workers' metrics pages.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use futures_util::future::join_all;
use hyper::Uri;
use hyper::http::uri::Authority;
use nsbridge_observe::address::host;
use nsbridge_observe::{Http, Page, Worker};
use nsbridge_protocol::ModelName;
use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::averages::Averages;

/// Time limit for the addresses of a name.
const RESOLVE_WITHIN: Duration = Duration::from_secs(5);

/// Maximum number of workers that are read. More of them do not change the averages much.
const MAX_WORKERS: usize = 100;

/// Time after which a worker that was not read again is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// Number of a page in the configuration, and the address of a worker.
type Place = (usize, SocketAddr);

/// Metrics pages of a model's workers, and the averages of their readings.
#[derive(Debug)]
pub(crate) struct Workers {
    model: ModelName,
    pages: Vec<Uri>,
    http: Option<Http>,
    last: HashMap<Place, (Instant, Worker)>,
    averages: Averages,
}

impl Workers {
    pub(crate) fn new(model: ModelName, pages: Vec<Uri>) -> Result<Self> {
        let http = pages.first().map(Http::new).transpose()?;
        Ok(Self { model, pages, http, last: HashMap::new(), averages: Averages::default() })
    }

    /// Averages of all readings.
    pub(crate) fn averages(&self) -> Averages {
        self.averages
    }

    /// Reads all pages, and returns the failures.
    ///
    /// A name without addresses and a page that cannot be read are no failures: a fleet may have no worker,
    /// and a worker that boots or ends has no page. The page of another program is one.
    pub(crate) async fn read(&mut self) -> Vec<anyhow::Error> {
        let Some(http) = &self.http else { return Vec::new() };
        let places = self.pages.iter().enumerate().map(|(number, page)| places(number, page));
        let mut places: Vec<Place> = join_all(places).await.into_iter().flatten().collect();
        places.truncate(MAX_WORKERS);
        let pages = &self.pages;
        let readings = places.into_iter().map(async |(number, address)| {
            let page = at_address(&pages[number], address)?;
            let answer = http.get(&page, None).await.ok();
            let at = Instant::now();
            let read = answer.map(|answer| Page::of_answer(&answer)).transpose();
            let read = read.with_context(|| format!("the page {page}"))?;
            anyhow::Ok(read.map(|page| ((number, address), at, page)))
        });
        let readings = join_all(readings).await;
        // A name server may tell a part of many addresses, another one each time.
        self.last.retain(|_, (then, _)| then.elapsed() < FORGET_AFTER);
        let mut failures = Vec::new();
        for reading in readings {
            match reading {
                Ok(Some((place, at, Page::Worker(worker))))
                    if worker.model == self.model.as_str() =>
                {
                    if let Some((then, earlier)) = self.last.get(&place) {
                        let seconds = at.duration_since(*then).as_secs_f64();
                        self.averages.add(earlier, &worker, seconds);
                    }
                    self.last.insert(place, (at, worker));
                }
                Ok(Some((place, ..))) => {
                    let named = host(&self.pages[place.0]);
                    failures.push(anyhow!("{named} at {} serves another model", place.1));
                }
                Ok(None) => {}
                Err(failure) => failures.push(failure),
            }
        }
        failures
    }
}

/// Returns the addresses of a page's host.
async fn places(number: usize, page: &Uri) -> Vec<Place> {
    let host = page.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let found = timeout(RESOLVE_WITHIN, lookup_host((host, page.port_u16().unwrap_or(80)))).await;
    let Ok(Ok(addresses)) = found else { return Vec::new() };
    addresses.map(|address| (number, address)).collect()
}

/// Returns the page of one address.
fn at_address(page: &Uri, address: SocketAddr) -> Result<Uri> {
    let mut parts = page.clone().into_parts();
    parts.authority = Some(address.to_string().parse::<Authority>()?);
    Ok(Uri::from_parts(parts)?)
}

#[cfg(test)]
mod tests {
    //! Tests with pages of servers on this machine.

    use nsbridge_testkit::http::{Answer, Server};

    use super::Workers;

    const PAGE: &str = "nsbridge_slots{model=\"m\"} 8\n\
        nsbridge_token_usage_count{type=\"output\"} 2\nnsbridge_token_usage_sum{type=\"output\"} 300\n";

    fn workers(pages: &[String]) -> Workers {
        let pages = pages.iter().map(|page| page.parse().unwrap()).collect();
        Workers::new("m".parse().unwrap(), pages).unwrap()
    }

    #[tokio::test]
    async fn pages_are_read_at_the_addresses_of_a_name() {
        let calls = std::sync::atomic::AtomicUsize::new(0);
        let server = Server::start(move |_| {
            let before = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let text = if before == 0 {
                PAGE.to_owned()
            } else {
                PAGE.replace("} 2", "} 4").replace("300", "900")
            };
            Answer::new(200, &text)
        })
        .await
        .unwrap();
        let named = server.url("/metrics").replace("127.0.0.1", "localhost");
        let missing = "http://no-such-name.invalid:9464/metrics".to_owned();
        let mut workers = workers(&[named, missing]);
        assert!(workers.read().await.is_empty());
        assert_eq!(workers.averages().tokens_per_request(), None);
        assert!(workers.read().await.is_empty());
        assert_eq!(workers.averages().tokens_per_request(), Some(300.0));
    }

    #[tokio::test]
    async fn pages_of_others_are_failures_and_missing_ones_are_not() {
        let server = Server::start(|seen| match seen.line.as_str() {
            "GET /other" => Answer::new(200, &PAGE.replace("\"m\"", "\"n\"")),
            "GET /html" => Answer::new(200, "<html>"),
            _ => Answer::never(),
        })
        .await
        .unwrap();
        let pages = ["/other", "/html"].map(|path| server.url(path));
        let failures = workers(&pages).read().await;
        assert!(failures[0].to_string().contains("serves another model"), "{failures:?}");
        assert!(format!("{:#}", failures[1]).contains("/html: its line 1"), "{failures:?}");
        let closed = [server.url("/")];
        drop(server);
        assert!(workers(&closed).read().await.is_empty());
    }
}
