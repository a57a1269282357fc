//! Broker of a proxy: a gateway that passes sealed frames on. Requests are sealed and replies are
//! opened on this side, so the gateway cannot read them.

mod link;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::{HeaderValue, Uri, header};
use nsbridge_base::private_file::{PrivateFile, PrivateFileError};
use nsbridge_queue::{Broker, Connection, Error, Result};
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use zeroize::Zeroizing;

use self::link::Link;
use crate::sealed::wire::MOST_MESSAGE;

/// Path of the page of sealed frames.
const PATH: &str = "/v1/sealed";

/// Time for a connection, TLS and the upgrade included.
const CONNECT: Duration = Duration::from_secs(10);

/// Connection of a proxy to its gateway.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

type Socket = WebSocketStream<Box<dyn Io>>;

/// Gateway as the broker of a client that cannot reach the message broker.
///
/// Only what a client does is served: it publishes requests and control frames, and reads its reply
/// queue.
#[derive(Clone)]
pub struct GatewayBroker {
    host: String,
    port: u16,
    key: Zeroizing<String>,
    /// `None` for a gateway on this machine without TLS.
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl GatewayBroker {
    /// Creates the broker of a gateway at `https://host[:port]`, as the holder of this API key. A
    /// gateway on this machine may have `http://`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Gateway`] if `url` is not the address of a gateway, or if the API key would
    /// cross the network in the clear.
    pub fn new(url: &str, api_key: &str) -> Result<Self> {
        // A password may stand before the sign.
        let address = url.rsplit('@').next().unwrap_or_default();
        let unusable = |reason: &str| Error::Gateway {
            address: address.to_owned(),
            reason: reason.to_owned(),
        };
        let invalid = || unusable("its address must be https://host or https://host:port");
        let uri: Uri = url.parse().map_err(|_| invalid())?;
        let host = uri.host().ok_or_else(invalid)?.trim_matches(['[', ']']).to_owned();
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        if !is_bare || url.contains('@') {
            return Err(invalid());
        }
        let (port, tls) = match uri.scheme_str() {
            Some("https") => (443, Some(Arc::new(tls(&host)?))),
            Some("http") if is_local(&host) => (80, None),
            Some("http") => {
                return Err(unusable("the API key would be readable on the network: use https://"));
            }
            _ => return Err(invalid()),
        };
        let port = uri.port_u16().unwrap_or(port);
        Ok(Self { host, port, key: Zeroizing::new(api_key.to_owned()), tls })
    }

    /// Reads the API key of a gateway from a file, whose first line it is.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or if others can read it.
    pub fn read_key(path: &Path) -> Result<Zeroizing<String>, PrivateFileError> {
        let file = PrivateFile { what: "file of the API key", most: 4096, of_root: true };
        let text = file.read(path)?;
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(Zeroizing::new(String::from_utf8_lossy(line.trim_ascii()).into_owned()))
    }

    fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    fn unreachable(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Unreachable { address: self.address(), source: source.into() }
    }

    async fn open(&self) -> Result<Socket> {
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await;
        let tcp = tcp.map_err(|error| self.unreachable(error))?;
        let _ = tcp.set_nodelay(true);
        let io: Box<dyn Io> = match &self.tls {
            None => Box::new(tcp),
            Some(config) => {
                let name = ServerName::try_from(self.host.clone());
                let name = name.map_err(|error| self.unreachable(error))?;
                let connected = TlsConnector::from(config.clone()).connect(name, tcp).await;
                Box::new(connected.map_err(|error| self.unreachable(error))?)
            }
        };
        let url = format!("ws://{}{PATH}", self.authority());
        let request = url.into_client_request();
        let mut request = request.map_err(|error| self.unreachable(error))?;
        let bearer = Zeroizing::new(format!("Bearer {}", self.key.as_str()));
        let bearer = HeaderValue::from_str(&bearer);
        let mut bearer = bearer.map_err(|_| self.rejected("the API key has odd characters"))?;
        bearer.set_sensitive(true);
        request.headers_mut().insert(header::AUTHORIZATION, bearer);
        let config = WebSocketConfig::default()
            .max_message_size(Some(MOST_MESSAGE))
            .max_frame_size(Some(MOST_MESSAGE));
        match client_async_with_config(request, io, Some(config)).await {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::Error::Http(response)) => Err(self.refused(response.status())),
            Err(error) => Err(self.unreachable(error)),
        }
    }

    fn authority(&self) -> String {
        let host = &self.host;
        if host.contains(':') { format!("[{host}]:{}", self.port) } else { self.address() }
    }

    fn refused(&self, status: StatusCode) -> Error {
        match status {
            StatusCode::UNAUTHORIZED => self.rejected("the API key is not valid"),
            StatusCode::NOT_IMPLEMENTED | StatusCode::NOT_FOUND => {
                self.rejected("it takes no sealed requests: set `[server] sealed` there")
            }
            other => self.unreachable(format!("it answered {other}")),
        }
    }

    fn rejected(&self, reason: &str) -> Error {
        Error::Gateway { address: self.address(), reason: reason.to_owned() }
    }
}

#[async_trait]
impl Broker for GatewayBroker {
    async fn connect(&self, _name: &str) -> Result<Arc<dyn Connection>> {
        let late = |_| self.unreachable("it did not answer in time");
        let socket = timeout(CONNECT, self.open()).await.map_err(late)??;
        Ok(Link::start(self.address(), socket))
    }

    async fn listens(&self) -> bool {
        let tcp = TcpStream::connect((self.host.as_str(), self.port));
        matches!(timeout(CONNECT, tcp).await, Ok(Ok(_)))
    }
}

impl fmt::Debug for GatewayBroker {
    /// Omits the API key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayBroker").field("address", &self.address()).finish_non_exhaustive()
    }
}

fn is_local(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// Returns a configuration that trusts the certificates of this machine.
fn tls(host: &str) -> Result<rustls::ClientConfig> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Unreachable {
        address: host.to_owned(),
        source,
    };
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.into()))?;
    let mut config = versions.with_root_certificates(roots).with_no_client_auth();
    // A WebSocket begins as an upgrade, which HTTP/2 does not have.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::GatewayBroker;

    #[test]
    fn an_api_key_does_not_cross_the_network_in_the_clear() {
        let of = |url: &str| GatewayBroker::new(url, "nsk_canary");
        for url in
            ["https://gateway.example", "https://gateway.example:8443/", "http://127.0.0.1:8080"]
        {
            let shown = format!("{:?}", of(url).unwrap());
            assert!(!shown.contains("canary"), "{shown}");
        }
        assert_eq!(of("http://[::1]:7").unwrap().authority(), "[::1]:7");
        let told = |url: &str| of(url).unwrap_err().to_string();
        assert!(told("http://gateway.example").contains("readable on the network"));
        for odd in [
            "gateway.example",
            "amqp://localhost",
            "https://",
            "https://user:secret@gateway.example",
            "https://gateway.example/v1",
            "",
        ] {
            let told = told(odd);
            assert!(told.contains("must be https://host") && !told.contains("secret"), "{told}");
        }
    }
}
