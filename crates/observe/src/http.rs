//! HTTP client with limits of time and size.

use std::error::Error as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;

/// Time limit of a request, from the connection to the end of the response.
const WITHIN: Duration = Duration::from_secs(5);

/// Maximum size of a response body, in bytes.
const MOST_BYTES: usize = 4 << 20;

/// Client of one server.
#[derive(Clone, Debug)]
pub struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    within: Duration,
}

/// Response with any status.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status.
    pub status: StatusCode,
    /// Content type.
    pub kind: Option<HeaderValue>,
    /// Body.
    pub text: String,
}

impl Http {
    /// Creates a client of the server at an address.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is one of HTTPS, and this machine has no root certificates.
    pub fn new(of: &Uri) -> Result<Self> {
        Self::trusting(of, None)
    }

    /// Creates a client that also trusts the authorities in a PEM file.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is one of HTTPS, and the file cannot be read, or this machine has no
    /// root certificates.
    pub fn trusting(of: &Uri, authorities: Option<&Path>) -> Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // A machine without certificates can read pages without TLS.
        let is_tls = of.scheme_str() == Some("https");
        let roots = if is_tls { roots(authorities)? } else { RootCertStore::empty() };
        let provider = rustls::crypto::ring::default_provider();
        let config = ClientConfig::builder_with_provider(provider.into());
        let config = config.with_safe_default_protocol_versions()?.with_root_certificates(roots);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config.with_no_client_auth())
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        // A worker closes each connection after its response.
        let client =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build(connector);
        Ok(Self { client, within: WITHIN })
    }

    /// Requests a page, with a login if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no response of at most 4 MiB of UTF-8 within 5 s.
    pub async fn get(&self, uri: &Uri, login: Option<&HeaderValue>) -> Result<Answer> {
        let mut request = Request::get(uri.clone());
        if let Some(login) = login {
            request = request.header(AUTHORIZATION, login);
        }
        self.send(request.body(Bytes::new())?).await
    }

    /// Sends a request.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no response of at most 4 MiB of UTF-8 within 5 s.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Answer> {
        let answer = timeout(self.within, self.exchange(request.map(Full::new))).await;
        answer.map_err(|_| anyhow!("no answer within {} s", self.within.as_secs_f64()))?
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answer> {
        let response = self.client.request(request).await.map_err(|error| failed(&error))?;
        let status = response.status();
        let kind = response.headers().get(CONTENT_TYPE).cloned();
        let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() {
                anyhow!("the answer is larger than {} MiB", MOST_BYTES >> 20)
            } else {
                anyhow!("the answer broke off")
            }
        })?;
        let Ok(text) = String::from_utf8(body.to_bytes().into()) else {
            bail!("the answer is not UTF-8");
        };
        Ok(Answer { status, kind, text })
    }
}

/// Returns the root certificates of this machine, and those of a PEM file.
fn roots(authorities: Option<&Path>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(system.certs);
    if let Some(file) = authorities {
        let shown = file.display();
        let read =
            CertificateDer::pem_file_iter(file).with_context(|| format!("reading {shown}"))?;
        for certificate in read {
            roots.add(certificate.with_context(|| shown.to_string())?)?;
        }
    }
    ensure!(!roots.is_empty(), "this machine has no root certificates, which https needs");
    Ok(roots)
}

/// Returns the cause of a failure: the chain of the client's own errors says it several times.
fn failed(error: &hyper_util::client::legacy::Error) -> anyhow::Error {
    let what =
        if error.is_connect() { "cannot connect" } else { "the answer broke off or is not HTTP" };
    let mut cause = error.source();
    while let Some(deeper) = cause.and_then(std::error::Error::source) {
        cause = Some(deeper);
    }
    match cause {
        Some(cause) => anyhow!("{what}: {cause}"),
        None => anyhow!("{what}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper::StatusCode;
    use hyper::header::HeaderValue;
    use nsbridge_testkit::http::{Answer, Server};

    use super::Http;

    async fn get(url: &str) -> anyhow::Result<(StatusCode, String)> {
        let uri = url.parse().unwrap();
        let login = HeaderValue::from_static("Basic x");
        let mut http = Http::new(&uri).unwrap();
        http.within = Duration::from_millis(500);
        let answer = http.get(&uri, Some(&login)).await?;
        Ok((answer.status, answer.text))
    }

    #[tokio::test]
    async fn an_answer_comes_back_with_its_status() {
        let server = Server::start(|_| Answer::new(503, "{}")).await.unwrap();
        let answer = get(&server.url("/readyz?a=b")).await.unwrap();
        assert_eq!(answer, (StatusCode::SERVICE_UNAVAILABLE, "{}".to_owned()));
        let seen = server.seen();
        assert_eq!(seen[0].line, "GET /readyz?a=b");
        assert_eq!(seen[0].header("authorization"), Some("Basic x"));
    }

    #[tokio::test]
    async fn a_page_that_cannot_be_read_is_one_sentence() {
        let server = Server::start(|seen| match seen.line.as_str() {
            "GET /garbage" => Answer::raw("this is not HTTP\r\n\r\n"),
            "GET /cut" => Answer::raw("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"),
            "GET /huge" => Answer::new(200, &"x".repeat((4 << 20) + 1)),
            _ => Answer::never(),
        })
        .await
        .unwrap();
        let fail = async |path: &str| get(&server.url(path)).await.unwrap_err().to_string();
        assert!(fail("/garbage").await.starts_with("the answer broke off or is not HTTP: "));
        assert_eq!(fail("/cut").await, "the answer broke off");
        assert_eq!(fail("/huge").await, "the answer is larger than 4 MiB");
        assert_eq!(fail("/slow").await, "no answer within 0.5 s");
        let closed = server.url("/");
        drop(server);
        let said = get(&closed).await.unwrap_err().to_string();
        assert!(said.starts_with("cannot connect: "), "{said}");
    }
}
