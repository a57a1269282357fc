//! HTTP client below the SDK that leaves a response body on its connection.
//!
//! The SDK delivers a body as frames allocated by its HTTP client: each byte is read into a growing
//! buffer and copied from there. A request that carries a [`BodySlot`] receives its body unread
//! instead, and its sender reads from the socket straight into the final buffer. The rest of the
//! SDK (endpoints, credentials, signatures, errors) is unchanged.

use std::fmt;
use std::io;
use std::sync::Arc;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient,
    SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use http::header::HOST;
use http::{Method, StatusCode, Uri};
use parking_lot::Mutex;

use super::http1_body::{Answer, Body, Pool};

/// Maximum size of an error response: 256 KiB.
const LONGEST_ERROR: u64 = 256 << 10;

/// Slot for the body of a response. A request carries it as an extension.
#[derive(Clone, Debug, Default)]
pub(super) struct BodySlot(Arc<Mutex<Option<Body>>>);

impl BodySlot {
    /// Takes the body if the response had one of known length.
    pub(super) fn take(&self) -> Option<Body> {
        self.0.lock().take()
    }

    fn leave(&self, body: Body) {
        *self.0.lock() = Some(body);
    }
}

/// HTTP client for requests that carry a [`BodySlot`]. All others go to another client.
pub(super) struct DirectReadConnector {
    pool: Arc<Pool>,
    others: SharedHttpClient,
}

impl DirectReadConnector {
    /// Creates a client with a connection pool of its own.
    ///
    /// # Errors
    ///
    /// Returns an error if this machine has no root certificates.
    pub(super) fn new(others: SharedHttpClient) -> io::Result<Self> {
        Ok(Self { pool: Arc::new(Pool::new()?), others })
    }
}

impl fmt::Debug for DirectReadConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DirectReadConnector")
    }
}

impl HttpClient for DirectReadConnector {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let others = self.others.http_connector(settings, components);
        SharedHttpConnector::new(Connector { pool: self.pool.clone(), others })
    }
}

struct Connector {
    pool: Arc<Pool>,
    others: SharedHttpConnector,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let Some(slot) = request.extension::<BodySlot>().cloned() else {
            return self.others.call(request);
        };
        let pool = self.pool.clone();
        HttpConnectorFuture::new(async move {
            let answered = answer(&pool, request, &slot).await;
            answered.map_err(|error| ConnectorError::io(error.into()))
        })
    }
}

async fn answer(
    pool: &Arc<Pool>,
    request: HttpRequest,
    slot: &BodySlot,
) -> io::Result<HttpResponse> {
    let request = request.try_into_http1x().map_err(io::Error::other)?;
    let Answer { mut head, body } = pool.send(request.uri(), &written(&request)?).await?;
    let content = match head.status() {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT if body.left().is_some() => {
            slot.leave(body);
            SdkBody::empty()
        }
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => {
            return Err(io::Error::other("the answer does not tell its length"));
        }
        _ => {
            // The body is already decoded.
            head.headers_mut().remove(http::header::TRANSFER_ENCODING);
            SdkBody::from(body.whole(LONGEST_ERROR).await?)
        }
    };
    HttpResponse::try_from(head.map(|()| content)).map_err(io::Error::other)
}

/// Serializes a request to its wire format (RFC 9112, section 2.1).
fn written(request: &http::Request<SdkBody>) -> io::Result<Vec<u8>> {
    let no_get = || io::Error::other("only a GET gets its body unread");
    if request.method() != Method::GET || !request.body().bytes().is_some_and(<[u8]>::is_empty) {
        return Err(no_get());
    }
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    let mut bytes = format!("GET {target} HTTP/1.1\r\n").into_bytes();
    let host = host(request.uri());
    let mut line = |name: &str, value: &[u8]| {
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value);
        bytes.extend_from_slice(b"\r\n");
    };
    if !request.headers().contains_key(HOST) {
        line(HOST.as_str(), host.as_bytes());
    }
    for (name, value) in request.headers() {
        line(name.as_str(), value.as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    Ok(bytes)
}

/// Returns the host that the signature covers, without the default port of the scheme.
fn host(uri: &Uri) -> String {
    let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let host = uri.host().unwrap_or_default();
    match uri.port_u16() {
        Some(port) if port != usual => format!("{host}:{port}"),
        _ => host.to_owned(),
    }
}
