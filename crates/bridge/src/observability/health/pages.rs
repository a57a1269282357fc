//! HTTP server of `/livez`, `/readyz` and `/metrics`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::{Health, Report};
use crate::error::Error;
use crate::observability::metrics::Metrics;

/// Maximum number of connections at once; the others wait in the listener's backlog.
const CONNECTIONS: usize = 32;

/// Time limit for a client to send its request headers.
const HEADERS: Duration = Duration::from_secs(2);

/// Time limit of a whole connection, which carries one request.
const WHOLE: Duration = Duration::from_secs(10);

/// Maximum size of a request's headers, in bytes.
const MAX_HEADERS: usize = 16 << 10;

/// Pages for orchestrators and Prometheus.
#[derive(Debug)]
pub struct Pages(TcpListener);

impl Pages {
    /// Binds the listener. Called before the load, so that a port in use is an early error.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Listen`] if the address cannot be bound.
    pub async fn bind(addr: SocketAddr) -> Result<Self, Error> {
        TcpListener::bind(addr).await.map(Self).map_err(|source| Error::Listen { addr, source })
    }

    /// Returns the address of the listener, with the real port if it was bound to port 0.
    ///
    /// # Errors
    ///
    /// Returns [`Error::System`] if the system does not know the address, which does not happen to
    /// a socket that listens.
    pub fn addr(&self) -> Result<SocketAddr, Error> {
        let failed = |source| Error::System { what: "tell a socket's address", source };
        self.0.local_addr().map_err(failed)
    }

    /// Serves the pages until the future is dropped.
    pub async fn serve(self, health: Health, metrics: Metrics) -> Infallible {
        let free = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let permit = free.clone().acquire_owned().await;
            let Ok((stream, _)) = self.0.accept().await else {
                // The process has no free descriptor at the moment.
                sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (health, metrics) = (health.clone(), metrics.clone());
            tokio::spawn(async move {
                let _permit = permit;
                answer_one(stream, health, metrics).await;
            });
        }
    }
}

async fn answer_one(stream: TcpStream, health: Health, metrics: Metrics) {
    let service = service_fn(|request: Request<Incoming>| {
        let page = page(request.method(), request.uri().path(), &health, &metrics);
        async { Ok::<_, Infallible>(page) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(MAX_HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // Malformed requests are dropped without a response or a log line.
    let _ = timeout(WHOLE, connection).await;
}

type Page = Response<Full<Bytes>>;

fn page(method: &Method, path: &str, health: &Health, metrics: &Metrics) -> Page {
    match (method, path) {
        (&Method::GET, "/livez") => told(&health.report(), |report| report.alive),
        (&Method::GET, "/readyz") => told(&health.report(), |report| report.ready),
        (&Method::GET, "/metrics") => {
            written(StatusCode::OK, Metrics::CONTENT_TYPE, metrics.text().into())
        }
        _ => written(StatusCode::NOT_FOUND, "text/plain", Bytes::new()),
    }
}

fn told(report: &Report, good: fn(&Report) -> bool) -> Page {
    let status = if good(report) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = serde_json::to_vec(report).expect("a flat struct is always JSON");
    written(status, "application/json", body.into())
}

fn written(status: StatusCode, kind: &'static str, body: Bytes) -> Page {
    let page = Response::builder().status(status).header(CONTENT_TYPE, kind);
    page.body(Full::new(body)).expect("status and header are constants")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper::Request;
    use hyper::body::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::{CONNECTIONS, Pages};
    use crate::observability::health::Health;
    use crate::observability::metrics::Metrics;
    use nsbridge_telemetry::http::exchange;

    async fn pages() -> (String, Health, Metrics) {
        let model = "tale-7m".parse().unwrap();
        let pages = Pages::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let addr = pages.addr().unwrap().to_string();
        let metrics = Metrics::new(&model);
        let health = Health::new(model, Duration::from_millis(50));
        tokio::spawn(pages.serve(health.clone(), metrics.clone()));
        (addr, health, metrics)
    }

    async fn get(addr: &str, path: &str) -> (u16, String) {
        let request = Request::get(format!("http://{addr}{path}")).body(Bytes::new()).unwrap();
        let response = exchange(request, Duration::from_secs(5)).await.unwrap();
        let body = String::from_utf8(response.body().to_vec()).unwrap();
        (response.status().as_u16(), body)
    }

    #[tokio::test]
    async fn the_pages_follow_the_worker() {
        let (addr, health, metrics) = pages().await;
        assert_eq!(get(&addr, "/livez").await.0, 200);
        assert_eq!(get(&addr, "/readyz").await.0, 503);
        health.loaded(None, Some("2026-11-21-a1b2c3".parse().unwrap()));
        health.consuming(true);
        health.publishing(true);
        let (status, body) = get(&addr, "/readyz").await;
        assert_eq!(status, 200);
        assert_eq!(
            body,
            "{\"alive\":true,\"ready\":true,\"loaded\":true,\"consuming\":true,\
             \"publishing\":true,\"handler_ok\":true,\"calls_ok\":true,\"draining\":false,\"model\":\"tale-7m\",\"fingerprint\":null,\
             \"revision\":\"2026-11-21-a1b2c3\"}"
        );
        health.consuming(false);
        let dead = async { while get(&addr, "/livez").await.0 != 503 {} };
        timeout(Duration::from_secs(20), dead).await.expect("the worker counts as dead");
        metrics.consumed();
        let (status, text) = get(&addr, "/metrics").await;
        assert_eq!(status, 200);
        assert!(text.contains("messaging_client_consumed_messages_total"), "{text}");
    }

    #[tokio::test]
    async fn everything_else_is_not_there() {
        let (addr, _, _) = pages().await;
        for path in ["/", "/livez/", "/livezz", "/metrics/x", "/readyz%00"] {
            assert_eq!(get(&addr, path).await, (404, String::new()), "{path}");
        }
        let post = Request::post(format!("http://{addr}/livez")).body(Bytes::new()).unwrap();
        assert_eq!(exchange(post, Duration::from_secs(5)).await.unwrap().status(), 404);
    }

    #[tokio::test]
    async fn a_port_in_use_is_one_sentence() {
        let first = Pages::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let error = Pages::bind(first.addr().unwrap()).await.unwrap_err();
        let said = nsbridge_base::chain(&error);
        let start = format!("cannot listen on {} ([health] listen): ", first.addr().unwrap());
        assert!(said.starts_with(&start) && said.contains("in use"), "{said}");
    }

    #[tokio::test]
    async fn who_holds_connections_open_keeps_nobody_out_for_long() {
        let (addr, _, _) = pages().await;
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS + 8 {
            let mut stream = TcpStream::connect(&addr).await.unwrap();
            stream.write_all(b"GET /livez HTTP/1.1\r\nhost: ").await.unwrap();
            held.push(stream);
        }
        assert_eq!(get(&addr, "/livez").await.0, 200);
        // The first connection was closed, without a response or with an error.
        let mut said = Vec::new();
        let read = held[0].read_to_end(&mut said);
        timeout(Duration::from_secs(20), read).await.expect("it was closed").unwrap();
        assert!(!said.starts_with(b"HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn a_connection_has_one_question() {
        let (addr, _, _) = pages().await;
        let mut stream = TcpStream::connect(&addr).await.unwrap();
        let question = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
        stream.write_all(&question.repeat(2)).await.unwrap();
        let mut said = String::new();
        timeout(Duration::from_secs(20), stream.read_to_string(&mut said)).await.unwrap().unwrap();
        assert_eq!(said.matches("HTTP/1.1 200 OK").count(), 1, "{said}");
    }
}
