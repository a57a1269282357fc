//! HTTP client for services on or next to this machine: plain HTTP/1.1, one exchange per
//! connection.
//!
//! Requests to the instance's metadata, the ECS agent and a span collector are rare and without
//! TLS, so a connection for each needs no pool.

use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Maximum size of a response body, in bytes. Expected responses are smaller.
const MAX_BODY: usize = 1 << 20;

/// Reason why there is no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is not plain HTTP.
    #[error("not an address that begins with http://")]
    Address,
    /// The connection failed.
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    /// The response is not HTTP, or was cut.
    #[error("the answer broke off or is not HTTP")]
    Exchange(#[from] hyper::Error),
    /// The response is too large.
    #[error("the answer is larger than 1 MiB")]
    TooLarge,
    /// The response did not come in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Late(Duration),
}

/// Sends a request and reads the whole response, with any status.
///
/// # Errors
///
/// Returns an error if there is no response of at most 1 MiB within this time.
pub async fn exchange(request: Request<Bytes>, within: Duration) -> Result<Response<Bytes>, Error> {
    timeout(within, send(request)).await.map_err(|_| Error::Late(within))?
}

async fn send(request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
    let (host, request) = address(request).ok_or(Error::Address)?;
    let stream = TcpStream::connect(&host).await.map_err(Error::Connect)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with its sender, when the response was read or given up.
    tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, MAX_BODY).collect().await.map_err(|error| match error
        .downcast::<hyper::Error>()
    {
        Ok(error) => Error::Exchange(*error),
        Err(other) => {
            debug_assert!(other.is::<LengthLimitError>());
            Error::TooLarge
        }
    })?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

/// Returns the address to connect to, and the request as it is sent: with a path and a `Host`.
fn address(request: Request<Bytes>) -> Option<(String, Request<Full<Bytes>>)> {
    let (mut head, body) = request.into_parts();
    let authority = head.uri.authority().filter(|_| head.uri.scheme_str() == Some("http"))?.clone();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = path.parse::<Uri>().ok()?;
    head.headers.insert(HOST, authority.as_str().parse().ok()?);
    let host = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80));
    Some((host, Request::from_parts(head, Full::new(body))))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper::Request;
    use hyper::body::Bytes;
    use nsbridge_testkit::http::{Answer, Server};

    use super::{Error, exchange};

    async fn get(url: &str) -> Result<(u16, String), Error> {
        let request = Request::get(url).body(Bytes::new()).unwrap();
        let response = exchange(request, Duration::from_millis(500)).await?;
        let body = String::from_utf8(response.body().to_vec()).unwrap();
        Ok((response.status().as_u16(), body))
    }

    #[tokio::test]
    async fn an_answer_comes_back_with_status_and_body() {
        let server = Server::start(|_| Answer::new(404, "none")).await.unwrap();
        assert_eq!(get(&server.url("/a?b=c")).await.unwrap(), (404, "none".to_owned()));
        assert_eq!(server.seen()[0].line, "GET /a?b=c");
    }

    #[tokio::test]
    async fn what_is_no_answer_is_told_apart() {
        let server = Server::start(|seen| match seen.line.as_str() {
            "GET /slow" => Answer::never(),
            "GET /garbage" => Answer::raw("this is not HTTP\r\n\r\n"),
            "GET /cut" => Answer::raw("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"),
            _ => Answer::new(200, &"x".repeat(2 << 20)),
        })
        .await
        .unwrap();
        let fail = async |path: &str| get(&server.url(path)).await.unwrap_err();
        assert!(matches!(fail("/slow").await, Error::Late(_)));
        assert!(matches!(fail("/garbage").await, Error::Exchange(_)));
        assert!(matches!(fail("/cut").await, Error::Exchange(_)));
        assert!(matches!(fail("/huge").await, Error::TooLarge));
        assert!(matches!(get("https://localhost/").await, Err(Error::Address)));
        assert!(matches!(get("/path").await, Err(Error::Address)));
        let nobody = server.url("/");
        drop(server);
        assert!(matches!(get(&nobody).await, Err(Error::Connect(_))));
    }
}
