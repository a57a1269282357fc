//! Task that reads a reply from the server and makes its pieces.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use nsbridge_base::Backoff;
use nsbridge_base::random::random;
use nsbridge_handler::{Error, FinishReason, Result, TextPiece};
use tokio::sync::mpsc::Sender;

use crate::answer::{is_busy, refusal, unanswered};
use crate::chunk::{Counts, decode};
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use crate::sse::Events;

/// Pauses while the server has no room.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));

/// Time in which a stream ends after its last event.
const REST_LIMIT: Duration = Duration::from_millis(200);

/// Step of a reply.
#[derive(Debug)]
pub(crate) enum Step {
    Piece(TextPiece),
    End(End),
}

/// End of a reply, after its last piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) reason: FinishReason,
    pub(crate) counts: Counts,
}

/// Sends the steps of a reply, or the error that ends it. Dropping this closes the connection, and the
/// server ends its work.
pub(crate) async fn run(
    server: Arc<Server>,
    request: Request,
    reply: Reply,
    deadline: SystemTime,
    steps: Sender<Result<Step>>,
) {
    if let Err(error) = read(&server, &request, reply, deadline, &steps).await {
        let _ = steps.send(Err(error)).await;
    }
}

async fn read(
    server: &Server,
    request: &Request,
    mut reply: Reply,
    deadline: SystemTime,
    steps: &Sender<Result<Step>>,
) -> Result<()> {
    let mut body = open(server, request, deadline).await?.into_body();
    let (mut events, mut counts) = (Events::default(), Counts::default());
    loop {
        while let Some(data) = events.next() {
            let Some(chunk) = decode(&data, server.flavor, server.http.root())? else {
                // Read to its end, the connection can take another request.
                let rest = async { while let Some(Ok(_)) = body.frame().await {} };
                let _ = tokio::time::timeout(REST_LIMIT, rest).await;
                return end(&reply, counts, server, steps).await;
            };
            counts.update(chunk.counts);
            for piece in reply.take(chunk, server.texts.as_ref()).await? {
                // The call has ended, and this task with it.
                let _ = steps.send(Ok(Step::Piece(piece))).await;
            }
            if reply.is_cut_short() {
                return end(&reply, counts, server, steps).await;
            }
        }
        match body.frame().await {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map(|bytes| &**bytes).unwrap_or_default();
                events.push(bytes).map_err(Error::retry)?;
            }
            Some(Err(error)) => return Err(unanswered(server.http.broken(&error))),
            None => return end(&reply, counts, server, steps).await,
        }
    }
}

async fn end(
    reply: &Reply,
    counts: Counts,
    server: &Server,
    steps: &Sender<Result<Step>>,
) -> Result<()> {
    let cut =
        || Error::retry(format!("the server at {} ends a reply in its middle", server.http.root()));
    let reason = reply.ended().ok_or_else(cut)?;
    let _ = steps.send(Ok(Step::End(End { reason, counts }))).await;
    Ok(())
}

/// Sends the request, again and again while the server has no room. The answer has the status 200.
pub(crate) async fn open(
    server: &Server,
    request: &Request,
    deadline: SystemTime,
) -> Result<Response<Incoming>> {
    let mut pauses = PAUSES.pauses();
    loop {
        let response = server.http.open(request.path, &request.body).await.map_err(unanswered)?;
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response);
        }
        let answer = server.http.read(request.path, response).await.map_err(unanswered)?;
        if !is_busy(status) || SystemTime::now() >= deadline {
            return Err(refusal(&answer, &server.http, &server.model).await);
        }
        tokio::time::sleep(pauses.next(random())).await;
    }
}
