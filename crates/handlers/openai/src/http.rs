//! HTTP client of one server.

use std::error::Error as StdError;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use nsbridge_handler::quote;
use rustls::{ClientConfig, RootCertStore};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

/// Time limit of a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Time limit of an answer that is no stream.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Maximum size of an answer that is no stream, in bytes.
const MOST_BYTES: usize = 64 << 20;

/// Client of the server at one address.
#[derive(Debug)]
pub(crate) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Address without a path.
    root: String,
    key: Option<HeaderValue>,
}

/// Answer with any status.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    body: Bytes,
}

/// Failure without an answer. It quotes nothing of a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error(
        "[handler] url is `{0}`: it must be an address such as http://127.0.0.1:8000, without a path but /v1"
    )]
    Address(String),
    #[error("this machine's root certificates cannot be read, for the https of [handler] url: {0}")]
    Roots(String),
    #[error("no server answers at {root}: {cause}")]
    Connect { root: String, cause: String },
    #[error("the connection to {root} broke off: {cause}")]
    Broken { root: String, cause: String },
    #[error("{root}{path} has not answered within {} s", ANSWER_LIMIT.as_secs())]
    Silent { root: String, path: String },
    #[error("{root}{path} answers with what is not expected there: {what}")]
    Strange { root: String, path: String, what: &'static str },
}

impl Http {
    /// Creates the client of the server at `url`.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is none of a server, or if it is one of HTTPS and this machine has
    /// no root certificates.
    pub(crate) fn new(url: &str, key: Option<HeaderValue>) -> Result<Self, HttpError> {
        let root = root(url).ok_or_else(|| HttpError::Address(quote(without_secret(url))))?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_LIMIT));
        let failed = |cause: &dyn ToString| HttpError::Roots(cause.to_string());
        let provider = rustls::crypto::ring::default_provider();
        let builder = HttpsConnectorBuilder::new();
        let builder = if root.starts_with("https:") {
            builder.with_provider_and_native_roots(provider).map_err(|error| failed(&error))?
        } else {
            // A machine without certificates can reach servers without TLS.
            let config = ClientConfig::builder_with_provider(provider.into());
            let config =
                config.with_safe_default_protocol_versions().map_err(|error| failed(&error))?;
            let config = config.with_root_certificates(RootCertStore::empty());
            builder.with_tls_config(config.with_no_client_auth())
        };
        let connector = builder.https_or_http().enable_http1().wrap_connector(tcp);
        Ok(Self { client: Client::builder(TokioExecutor::new()).build(connector), root, key })
    }

    /// Returns the address without a path.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// Requests a page.
    pub(crate) async fn get(&self, path: &str) -> Result<Answer, HttpError> {
        self.exchange(Method::GET, path, None).await
    }

    /// Sends JSON and returns the answer as a whole.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Answer, HttpError> {
        self.exchange(Method::POST, path, Some(body)).await
    }

    /// Sends JSON and returns the beginning of the answer. There is no time limit: a server may let
    /// requests wait.
    pub(crate) async fn open(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<Response<Incoming>, HttpError> {
        let request = self.request(Method::POST, path, Some(body))?;
        self.client.request(request).await.map_err(|error| self.failed(&error))
    }

    /// Reads the rest of a response that is no stream.
    pub(crate) async fn read(
        &self,
        path: &str,
        response: Response<Incoming>,
    ) -> Result<Answer, HttpError> {
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => self.strange(path, "too many bytes"),
            false => self.broken(&*error),
        })?;
        Ok(Answer { status, body: body.to_bytes() })
    }

    /// Sends JSON and returns the answer as a whole. There is no time limit, as for [`open`](Self::open).
    pub(crate) async fn wait(&self, path: &str, body: &Value) -> Result<Answer, HttpError> {
        self.read(path, self.open(path, body).await?).await
    }

    /// Sends JSON, and decodes the answer of a server that must have one.
    ///
    /// # Errors
    ///
    /// The inner error is an answer with another status than 200.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<Result<T, Answer>, HttpError> {
        let answer = self.post(path, body).await?;
        match answer.status {
            StatusCode::OK => match answer.json() {
                Some(decoded) => Ok(Ok(decoded)),
                None => Err(self.strange(path, "other JSON")),
            },
            _ => Ok(Err(answer)),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, HttpError> {
        let request = self.request(method, path, body)?;
        let answer = async {
            let response = self.client.request(request).await;
            self.read(path, response.map_err(|error| self.failed(&error))?).await
        };
        let silent = |_| HttpError::Silent { root: self.root.clone(), path: path.to_owned() };
        timeout(ANSWER_LIMIT, answer).await.map_err(silent)?
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Request<Full<Bytes>>, HttpError> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.root));
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.header(ACCEPT, "*/*").body(body.into());
        request.map_err(|_| HttpError::Address(self.root.clone()))
    }

    fn failed(&self, error: &hyper_util::client::legacy::Error) -> HttpError {
        if error.is_connect() {
            return HttpError::Connect { root: self.root.clone(), cause: deepest(error) };
        }
        self.broken(error)
    }

    /// Error of a connection that broke off.
    pub(crate) fn broken(&self, error: &(dyn StdError + 'static)) -> HttpError {
        HttpError::Broken { root: self.root.clone(), cause: deepest(error) }
    }

    /// Error of an answer that such a server does not give.
    pub(crate) fn strange(&self, path: &str, what: &'static str) -> HttpError {
        HttpError::Strange { root: self.root.clone(), path: path.to_owned(), what }
    }
}

impl Answer {
    /// Decodes the body. `None` if it is other JSON, or none.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.body).ok()
    }

    /// Returns the body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Returns the deepest cause: the chain of the client's own errors says it several times.
fn deepest(error: &(dyn StdError + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    quote(cause)
}

/// Returns an address without the user and the password before its host.
fn without_secret(url: &str) -> &str {
    url.rsplit('@').next().unwrap_or_default()
}

/// Returns the address of a server without a path. `None` if it is none.
fn root(url: &str) -> Option<String> {
    let root = url.trim_end_matches('/');
    let root = root.strip_suffix("/v1").unwrap_or(root).trim_end_matches('/');
    let uri: Uri = root.parse().ok()?;
    let whole = matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
        && uri.path_and_query().is_none_or(|path| path.as_str() == "/");
    whole.then(|| root.to_owned())
}

#[cfg(test)]
mod tests {
    use super::root;

    #[test]
    fn an_address_is_taken_with_and_without_v1() {
        for url in ["http://a:8000", "http://a:8000/", "http://a:8000/v1", "http://a:8000/v1/"] {
            assert_eq!(root(url).as_deref(), Some("http://a:8000"), "{url}");
        }
        assert_eq!(root("https://[::1]").as_deref(), Some("https://[::1]"));
        for url in ["", "a:8000", "ftp://a", "http://", "http://u:p@a", "http://a/b", "http://a?b"]
        {
            assert_eq!(root(url), None, "{url}");
        }
    }
}
