//! HTTP front of the store: applies faults and counts requests, then calls the S3 operations.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderName, HeaderValue};
use hyper::http::response::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::service::S3Service;
use s3s::{Body, S3Error, S3ErrorCode, StdError};
use tokio::net::{TcpListener, TcpStream};

use super::body::{Sent, Twist};
use super::call::{Call, Kind, Tally};
use super::faults::{Fault, Faults};
use super::operations::IgnoreRange;
use super::socket::{End, Socket};
use super::store::Store;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");

/// State that every connection shares.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) service: S3Service,
    pub(super) store: Arc<Store>,
    pub(super) faults: Arc<Mutex<Faults>>,
    pub(super) tally: Tally,
}

impl Front {
    pub(super) async fn serve(self, listener: TcpListener) -> Infallible {
        loop {
            // An accept error concerns a connection that is already closed.
            if let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(self.clone().connection(stream));
            }
        }
    }

    async fn connection(self, stream: TcpStream) {
        let (end, tally) = (End::default(), self.tally.clone());
        let socket = Socket::new(stream, end.clone(), tally);
        let answer = service_fn(move |request| self.clone().answer(request, end.clone()));
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).half_close(true);
        // The client and the injected faults decide how a connection ends, so the result is
        // ignored.
        let _ = server.serve_connection(TokioIo::new(socket), answer).await;
    }

    async fn answer(
        self,
        request: Request<Incoming>,
        end: End,
    ) -> Result<Response<Sent>, StdError> {
        let call = Call::new(request.method(), request.uri());
        let under_way = self.tally.request(&call, request.headers());
        let fault = self.faults.lock().unwrap_or_else(PoisonError::into_inner).strike(&call);
        if fault.is_some() {
            self.tally.fault();
        }
        let mut request = request;
        match &fault {
            Some(Fault::RefuseEndlessly(status)) => {
                let (mut parts, body) = refusal(&call, *status, "InternalError").into_parts();
                bend(&mut parts, &Fault::Endless);
                let twist = Twist::new(Fault::Endless, end, 0);
                return Ok(Response::from_parts(parts, Sent::new(body, under_way, Some(twist))));
            }
            Some(Fault::Refuse(status, code)) => {
                // A client that is still sending its body would take an early response for a broken
                // connection.
                let _ = request.into_body().collect().await;
                let (parts, body) = refusal(&call, *status, code).into_parts();
                return Ok(Response::from_parts(parts, Sent::new(body, under_way, None)));
            }
            Some(Fault::ResetAtOnce) => {
                end.by_reset();
                return Err("the connection is reset on purpose".into());
            }
            Some(Fault::Change(bytes)) => {
                let (bucket, key) = call.path.split_once('/').unwrap_or_default();
                self.store.put(bucket, key, bytes.clone());
            }
            Some(Fault::IgnoreRange) => {
                request.extensions_mut().insert(IgnoreRange);
            }
            _ => {}
        }
        let response = self.service.call(request.map(Body::from)).await?;
        let (mut parts, body) = response.into_parts();
        // S3 sends a request id with each response, which users quote in support requests.
        let id = HeaderValue::from_str(&self.store.name("r"));
        parts.headers.extend(id.ok().map(|id| (REQUEST_ID, id)));
        let twist = fault.filter(|_| parts.status.is_success()).and_then(|fault| {
            let at = bend(&mut parts, &fault);
            in_body(&fault).then(|| Twist::new(fault, end, at))
        });
        Ok(Response::from_parts(parts, Sent::new(body, under_way, twist)))
    }
}

/// Returns true if a fault applies to the response body.
fn in_body(fault: &Fault) -> bool {
    match fault {
        Fault::Reset(_)
        | Fault::Truncate(_)
        | Fault::Stall(..)
        | Fault::Slow(_)
        | Fault::Endless
        | Fault::Longer(_)
        | Fault::Flip(_) => true,
        Fault::Refuse(..)
        | Fault::RefuseEndlessly(_)
        | Fault::ResetAtOnce
        | Fault::Change(_)
        | Fault::IgnoreRange
        | Fault::WrongRange => false,
    }
}

/// Applies a fault to the response headers. Returns the offset in the object at which the body
/// begins.
fn bend(parts: &mut Parts, fault: &Fault) -> u64 {
    let headers = &mut parts.headers;
    let range = headers.get(CONTENT_RANGE).and_then(|range| Range::read(range.to_str().ok()?));
    match fault {
        Fault::Endless => {
            headers.remove(CONTENT_LENGTH);
        }
        Fault::Longer(by) => {
            let length = headers.get(CONTENT_LENGTH).and_then(|text| text.to_str().ok());
            let length: u64 = length.and_then(|text| text.parse().ok()).unwrap_or(0);
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length + by));
        }
        Fault::WrongRange => {
            if let Some(further) = range.as_ref().and_then(Range::further) {
                headers.insert(CONTENT_RANGE, further);
            }
        }
        _ => {}
    }
    range.map_or(0, |range| range.first)
}

/// Parsed `Content-Range` header.
struct Range {
    first: u64,
    last: u64,
    all: u64,
}

impl Range {
    fn read(text: &str) -> Option<Self> {
        let (range, all) = text.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        Some(Self { first: first.parse().ok()?, last: last.parse().ok()?, all: all.parse().ok()? })
    }

    fn further(&self) -> Option<HeaderValue> {
        let Self { first, last, all } = self;
        format!("bytes {}-{}/{}", first + 1, last + 1, all + 1).parse().ok()
    }
}

/// Returns an S3 error response.
fn refusal(call: &Call, status: u16, code: &'static str) -> Response<Body> {
    let code: S3ErrorCode = code.parse().unwrap_or(S3ErrorCode::InternalError);
    let mut error = S3Error::with_message(code, "This is a fault that was asked for.");
    error.set_status_code(StatusCode::from_u16(status).unwrap_or_default());
    let mut response = error.to_http_response().unwrap_or_default();
    if call.kind == Kind::Head {
        *response.body_mut() = Body::empty();
    }
    response
}
