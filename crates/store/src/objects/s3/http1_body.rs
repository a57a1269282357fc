//! Minimal HTTP/1.1 client for GET requests whose body is read in place (RFC 9112).

#[cfg(feature = "testing")]
pub(crate) mod testing;

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::Uri;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::time::{Instant, sleep};
use tower_service::Service as _;

/// Time after which an idle connection is closed. S3 keeps idle connections open for longer.
const IDLE: Duration = Duration::from_secs(10);

/// Time limit for connecting to one address, after which the host's next address is tried.
const CONNECT: Duration = Duration::from_secs(5);

const LONGEST_HEAD: usize = 64 << 10;
const MOST_HEADERS: usize = 128;

/// Byte stream to a server: TCP, TLS over it, or bytes that a fuzzer made.
trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for S {}

type Socket = Box<dyn Stream>;

/// Pool of idle connections.
pub(super) struct Pool {
    connector: HttpsConnector<HttpConnector>,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

struct Connection {
    socket: Socket,
    /// Scheme and authority.
    to: Uri,
    pool: Weak<Pool>,
}

/// Response whose body has not been read.
pub(super) struct Answer {
    pub(super) head: http::Response<()>,
    pub(super) body: Body,
}

/// Response body, read from its connection.
pub(super) struct Body {
    /// Connection of the response. Reading the last byte returns it to its pool.
    connection: Option<Connection>,
    /// Body bytes that arrived with the head.
    early: io::Cursor<Vec<u8>>,
    end: End,
    /// True if the server keeps the connection open.
    goes_on: bool,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({:?})", self.end)
    }
}

/// Framing of a body (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Number of bytes left.
    After(u64),
    Chunked,
    WithTheConnection,
}

impl Pool {
    /// Creates an empty pool.
    ///
    /// # Errors
    ///
    /// Returns an error if this machine has no root certificates.
    pub(super) fn new() -> io::Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())?
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Ok(Self { connector, idle: Mutex::default() })
    }

    /// Sends a request and reads the head of the response.
    pub(super) async fn send(self: &Arc<Self>, uri: &Uri, request: &[u8]) -> io::Result<Answer> {
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        let to = Uri::from_parts(parts).map_err(io::Error::other)?;
        while let Some(mut connection) = self.take(&to) {
            let mut came = Vec::new();
            match exchange(&mut connection.socket, request, &mut came).await {
                Ok(head) => return Answer::new(head, came, connection),
                // The server closed the idle connection. A GET can be sent again without harm.
                Err(_) if came.is_empty() => {}
                Err(error) => return Err(error),
            }
        }
        let mut connection = self.connect(to).await?;
        let mut came = Vec::new();
        let head = exchange(&mut connection.socket, request, &mut came).await?;
        Answer::new(head, came, connection)
    }

    async fn connect(self: &Arc<Self>, to: Uri) -> io::Result<Connection> {
        let mut connector = self.connector.clone();
        poll_fn(|context| connector.poll_ready(context)).await.map_err(io::Error::other)?;
        let stream = connector.call(to.clone()).await.map_err(io::Error::other)?;
        let socket = Box::new(TokioIo::new(stream));
        Ok(Connection { socket, to, pool: Arc::downgrade(self) })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock()
    }

    fn take(&self, to: &Uri) -> Option<Connection> {
        let mut idle = self.idle();
        idle.retain(|idle| idle.since.elapsed() < IDLE);
        let place = idle.iter().rposition(|idle| idle.connection.to == *to)?;
        Some(idle.remove(place).connection)
    }

    fn put(self: &Arc<Self>, connection: Connection) {
        self.idle().push(Idle { connection, since: Instant::now() });
        // After the last load no request clears the pool, so a task closes the idle connections.
        let pool = Arc::downgrade(self);
        tokio::spawn(async move {
            sleep(IDLE).await;
            if let Some(pool) = pool.upgrade() {
                pool.idle().retain(|idle| idle.since.elapsed() < IDLE);
            }
        });
    }
}

/// Sends a request and reads the head of the response. Bytes after the head are left in `came`.
async fn exchange(
    socket: &mut Socket,
    request: &[u8],
    came: &mut Vec<u8>,
) -> io::Result<http::Response<()>> {
    socket.write_all(request).await?;
    socket.flush().await?;
    loop {
        if socket.read_buf(came).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed without an answer"));
        }
        while let Some((length, head)) = parsed(came)? {
            came.drain(..length);
            if !head.status().is_informational() {
                return Ok(head);
            }
        }
        if came.len() > LONGEST_HEAD {
            return Err(io::Error::other("the head of the answer has no end"));
        }
    }
}

/// Parses the head at the start of the bytes; returns it with its length if it is complete.
fn parsed(bytes: &[u8]) -> io::Result<Option<(usize, http::Response<()>)>> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(bytes).map_err(io::Error::other)?
    else {
        return Ok(None);
    };
    let mut head = http::Response::builder().status(response.code.unwrap_or_default());
    for header in response.headers {
        head = head.header(header.name, header.value);
    }
    if response.version == Some(0) {
        head = head.version(http::Version::HTTP_10);
    }
    Ok(Some((length, head.body(()).map_err(io::Error::other)?)))
}

impl Answer {
    fn new(head: http::Response<()>, early: Vec<u8>, connection: Connection) -> io::Result<Self> {
        let end = End::of(head.headers())?;
        let names_close = |value: &http::HeaderValue| {
            value.to_str().is_ok_and(|value| value.to_ascii_lowercase().contains("close"))
        };
        let closes = head.headers().get_all(CONNECTION).iter().any(names_close);
        let goes_on = !closes && head.version() == http::Version::HTTP_11;
        let early = io::Cursor::new(early);
        let body = Body { connection: Some(connection), early, end, goes_on };
        Ok(Self { head, body })
    }
}

impl End {
    fn of(headers: &HeaderMap) -> io::Result<Self> {
        let wrong = || io::Error::other("the answer's length makes no sense");
        if let Some(encoding) = headers.get(TRANSFER_ENCODING) {
            let chunked = encoding.as_bytes().eq_ignore_ascii_case(b"chunked");
            return if chunked { Ok(Self::Chunked) } else { Err(wrong()) };
        }
        let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
        let Some(length) = lengths.next() else { return Ok(Self::WithTheConnection) };
        if lengths.any(|other| other != length) {
            return Err(wrong());
        }
        let length = length.to_str().ok().and_then(|length| length.parse().ok());
        length.map(Self::After).ok_or_else(wrong)
    }
}

impl Body {
    /// Returns the number of bytes left if the response declared a length.
    pub(super) fn left(&self) -> Option<u64> {
        match self.end {
            End::After(left) => Some(left),
            _ => None,
        }
    }

    /// Reads at least one byte of a body of declared length, and 0 bytes at its end. Cancel-safe:
    /// no byte is lost if the future is dropped.
    pub(super) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (End::After(left), Some(connection)) = (self.end, &mut self.connection) else {
            return Ok(0);
        };
        let most = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let into = &mut into[..most];
        let mut count = io::Read::read(&mut self.early, into)?;
        if count == 0 {
            count = connection.socket.read(into).await?;
        }
        if count == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let left = left.saturating_sub(count as u64);
        self.end = End::After(left);
        if left == 0 {
            self.give_back();
        }
        Ok(count)
    }

    /// Reads the whole body.
    ///
    /// # Errors
    ///
    /// Returns an error if the body has more than `most` bytes.
    pub(super) async fn whole(mut self, most: u64) -> io::Result<Vec<u8>> {
        let too_long = || io::Error::other("an error of many words");
        let Some(connection) = &mut self.connection else { return Ok(Vec::new()) };
        let mut reader = BufReader::new((&mut self.early).chain(&mut connection.socket));
        let mut bytes = Vec::new();
        match self.end {
            End::After(left) if left > most => return Err(too_long()),
            End::After(left) => {
                reader.take(left).read_to_end(&mut bytes).await?;
                if bytes.len() as u64 == left {
                    self.give_back();
                }
            }
            End::WithTheConnection => {
                reader.take(most).read_to_end(&mut bytes).await?;
            }
            End::Chunked => loop {
                let mut line = Vec::new();
                (&mut reader).take(100).read_until(b'\n', &mut line).await?;
                let Ok(httparse::Status::Complete((_, size))) = httparse::parse_chunk_size(&line)
                else {
                    return Err(io::Error::other("a part of the answer tells no length"));
                };
                if size == 0 {
                    break;
                }
                if size > most.saturating_sub(bytes.len() as u64) {
                    return Err(too_long());
                }
                (&mut reader).take(size).read_to_end(&mut bytes).await?;
                // The CRLF at the end of the chunk.
                reader.read_u16().await?;
            },
        }
        Ok(bytes)
    }

    fn give_back(&mut self) {
        let at_end = self.early.position() == self.early.get_ref().len() as u64;
        if let Some(connection) = self.connection.take()
            && self.goes_on
            && at_end
            && let Some(pool) = connection.pool.upgrade()
        {
            pool.put(connection);
        }
    }
}

#[cfg(test)]
mod tests;
