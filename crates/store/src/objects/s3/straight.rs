//! A client below the SDK's that leaves a body on its connection.
//!
//! The SDK gives a body as frames that its HTTP client allocated: each byte is read into a buffer that
//! grows, and copied from there. A request that carries a [`Handover`] gets its body unread instead,
//! and whoever sent it reads from the socket into the place where the bytes belong. The rest of the
//! SDK (endpoints, credentials, signatures, errors) is as ever.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

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

use super::wire::{Answer, Body, Pool};

/// Longer words about an error are of no use.
const LONGEST_ERROR: u64 = 256 << 10;

/// Where the body of an answer is left. A request carries it as an extension.
#[derive(Clone, Debug, Default)]
pub(super) struct Handover(Arc<Mutex<Option<Body>>>);

impl Handover {
    /// The body, if the answer had one whose length was told.
    pub(super) fn take(&self) -> Option<Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn leave(&self, body: Body) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
    }
}

/// Serves what carries a [`Handover`]; the rest goes to another client.
pub(super) struct Straight {
    pool: Arc<Pool>,
    others: SharedHttpClient,
}

impl Straight {
    /// # Errors
    ///
    /// This machine has no root certificates.
    pub(super) fn new(others: SharedHttpClient) -> io::Result<Self> {
        Ok(Self { pool: Arc::new(Pool::new()?), others })
    }
}

impl fmt::Debug for Straight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Straight")
    }
}

impl HttpClient for Straight {
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
        let Some(handover) = request.extension::<Handover>().cloned() else {
            return self.others.call(request);
        };
        let pool = self.pool.clone();
        HttpConnectorFuture::new(async move {
            let answered = answer(&pool, request, &handover).await;
            answered.map_err(|error| ConnectorError::io(error.into()))
        })
    }
}

async fn answer(
    pool: &Arc<Pool>,
    request: HttpRequest,
    handover: &Handover,
) -> io::Result<HttpResponse> {
    let request = request.try_into_http1x().map_err(io::Error::other)?;
    let Answer { mut head, body } = pool.send(request.uri(), &written(&request)?).await?;
    let content = match head.status() {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT if body.left().is_some() => {
            handover.leave(body);
            SdkBody::empty()
        }
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => {
            return Err(io::Error::other("the answer does not tell its length"));
        }
        _ => {
            // It is given decoded.
            head.headers_mut().remove(http::header::TRANSFER_ENCODING);
            SdkBody::from(body.whole(LONGEST_ERROR).await?)
        }
    };
    HttpResponse::try_from(head.map(|()| content)).map_err(io::Error::other)
}

/// A request's bytes on the wire (RFC 9112, section 2.1).
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

/// The host that the signature is for: without the port that its scheme has anyway.
fn host(uri: &Uri) -> String {
    let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let host = uri.host().unwrap_or_default();
    match uri.port_u16() {
        Some(port) if port != usual => format!("{host}:{port}"),
        _ => host.to_owned(),
    }
}
