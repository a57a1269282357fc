//! HTTP client below the SDK that reads from its connections in large parts.
//!
//! The SDK's own client reads into buffers that grow from 8 KiB to some 400 KiB, and has no setter for
//! their size. Models are large, so their bytes take a third less processor time in parts of 1 MiB.

use std::fmt;
use std::io;
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector as SdkConnector, HttpConnectorFuture, HttpConnectorSettings,
    SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use http_body_util::{Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use nsbridge_handler::Cause;

/// Size of the buffer that a connection reads into, in bytes.
const READ_BYTES: usize = 1 << 20;

/// Maximum size of an error response, in bytes.
const MAX_ERROR_BYTES: usize = 256 << 10;

/// Time after which an idle connection is closed. S3 keeps idle connections open for longer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for connecting to one address, after which the host's next address is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// HTTP client for GET requests. All others go to another client.
pub(super) struct LargeReadsClient {
    reads: Reads,
    others: SharedHttpClient,
}

type Reads = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

impl LargeReadsClient {
    /// Creates a client with a connection pool of its own.
    ///
    /// # Errors
    ///
    /// Returns an error if this machine has no root certificates.
    pub(super) fn new(others: SharedHttpClient) -> io::Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())?
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let reads = Client::builder(TokioExecutor::new())
            .http1_read_buf_exact_size(READ_BYTES)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self { reads, others })
    }
}

impl fmt::Debug for LargeReadsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LargeReadsClient")
    }
}

impl HttpClient for LargeReadsClient {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let others = self.others.http_connector(settings, components);
        SharedHttpConnector::new(Connector { reads: self.reads.clone(), others })
    }
}

struct Connector {
    reads: Reads,
    others: SharedHttpConnector,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl SdkConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        if request.method() != "GET" {
            return self.others.call(request);
        }
        let reads = self.reads.clone();
        HttpConnectorFuture::new(
            async move { read(&reads, request).await.map_err(ConnectorError::io) },
        )
    }
}

async fn read(reads: &Reads, request: HttpRequest) -> Result<HttpResponse, Cause> {
    // A GET of S3 has no body.
    let request = request.try_into_http1x()?.map(|_| Empty::new());
    let response = reads.request(request).await?;
    let is_success = response.status().is_success();
    let response = response.map(|body| match is_success {
        true => SdkBody::from_body_1_x(body),
        false => SdkBody::from_body_1_x(Limited::new(body, MAX_ERROR_BYTES)),
    });
    Ok(HttpResponse::try_from(response)?)
}
