//! `/v1/models/{name}/run`: models with inputs and pieces of their own.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::stream::{self, StreamExt};
use nsbridge_client::{Event, ModelName, Reply, Request, Summary};
use nsbridge_gateway_access::{Caller, Reservation};
use nsbridge_gateway_replies::{Meter, Observer as _, Outcome, RequestContext};
use nsbridge_protocol::{FinishReason, ReplayKey, Usage};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::timeout;

use crate::api::sse::{Events, FIRST_PART_TIMEOUT, event_stream, restarted};
use crate::error::{ApiError, Result};
use crate::fields::{Bound, Fields};
use crate::ids;
use crate::state::App;

/// End of the path of the endpoint.
pub(crate) const SUFFIX: &str = "/run";

/// Piece as its worker wrote it. Its values are not built: they would take many times its memory.
#[derive(Deserialize, Serialize)]
#[serde(transparent)]
struct JsonPiece(Box<RawValue>);

impl ReplayKey for JsonPiece {}

/// Event of a piece.
#[derive(Serialize)]
struct PieceEvent {
    piece: JsonPiece,
}

/// End of a reply.
#[derive(Serialize)]
struct End {
    finish_reason: FinishReason,
    usage: Usage,
}

impl End {
    fn of(summary: &Summary) -> Self {
        Self { finish_reason: summary.finish_reason, usage: summary.usage }
    }
}

/// Whole reply.
#[derive(Serialize)]
struct Whole {
    id: String,
    object: &'static str,
    model: String,
    pieces: Vec<JsonPiece>,
    #[serde(flatten)]
    end: End,
}

/// Gives an input to a model, and returns the pieces of its reply.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    Path(path): Path<String>,
    body: Bytes,
) -> Result<Response> {
    let name = path.strip_suffix(SUFFIX).ok_or_else(ApiError::wrong_method)?;
    let (model, _) = app.models.find(name, &caller)?;
    let mut fields = Fields::parse(&body)?;
    let input = fields.raw_or_null("input", Bound::BODY)?;
    let input = input.ok_or_else(|| ApiError::field("input", "`input` is missing"))?;
    let is_stream = fields.take("stream")?.unwrap_or(false);
    let seed: Option<u64> = fields.take("seed")?;
    fields.finish()?;
    let most = (body.len() / 4) as u64;
    let reservation = caller.limiter.reserve(most)?;
    app.metrics.reserved(most);
    let mut request = Request::new(model.clone(), caller.tenant.clone()).input(input);
    (request.trace, request.seed) = (context.trace, seed);
    let request = request.timeout(app.settings.timeout).priority(caller.priority);
    let meter = app.metrics.begin("run", &model);
    let reply = match app.client.submit::<JsonPiece>(request).await {
        Ok(reply) => reply,
        Err(error) => {
            meter.end(Outcome::Failed);
            return Err(error.into());
        }
    };
    context.submitted();
    let (name, patience) = (name.to_owned(), context.patience);
    let run = Run { app, name, model, patience, reply, meter, reservation };
    if is_stream { run.stream().await } else { run.whole().await }
}

/// Run in progress.
struct Run {
    app: Arc<App>,
    name: String,
    /// Queue of the model.
    model: ModelName,
    patience: Option<Duration>,
    reply: Reply<JsonPiece>,
    meter: Box<dyn Meter>,
    reservation: Reservation,
}

impl Run {
    /// Returns all pieces in one object.
    async fn whole(self) -> Result<Response> {
        let Self { app, name, model, patience, reply, meter, reservation } = self;
        let id = reply.id();
        let (pieces, summary) = match app.whole(reply, &model, patience).await {
            Ok(replied) => replied,
            Err(error) => {
                meter.end(Outcome::Failed);
                return Err(error);
            }
        };
        settle(&app, reservation, meter, &summary);
        let (id, end) = (ids::run(id), End::of(&summary));
        Ok(Json(Whole { id, object: "run", model: name, pieces, end }).into_response())
    }

    /// Returns a stream of the pieces: an event for each, one with the end, and `[DONE]`.
    async fn stream(mut self) -> Result<Response> {
        let id = self.reply.id();
        let first = tokio::select! {
            first = timeout(FIRST_PART_TIMEOUT, self.reply.next()) => first,
            _ = self.app.workers.missing(id, &self.model) => {
                Ok(Some(Ok(Event::Waiting)))
            }
        };
        let first = match first {
            Ok(Some(Err(error))) => {
                self.meter.end(Outcome::Failed);
                return Err(error.into());
            }
            Ok(event) => event,
            Err(_) => Some(Ok(Event::Waiting)),
        };
        let state = Some((self, first));
        let body = stream::unfold(state, |state| async move {
            let (mut run, first) = state?;
            let event = match first {
                Some(first) => Some(first),
                None => run.reply.next().await,
            };
            let mut events = Events::default();
            match event {
                Some(Ok(Event::Piece(piece))) => {
                    run.meter.piece();
                    events.data(&PieceEvent { piece });
                }
                Some(Ok(Event::Waiting | Event::Hint(_))) => events.waiting(),
                Some(Ok(Event::Done(summary))) => {
                    events.data(&End::of(&summary));
                    events.done();
                    settle(&run.app, run.reservation, run.meter, &summary);
                    return Some((events.take(), None));
                }
                // The pieces that the client has cannot be withdrawn.
                Some(Ok(_)) => return Some((failed(run, &restarted()), None)),
                Some(Err(error)) => return Some((failed(run, &error.into()), None)),
                None => return None,
            }
            Some((events.take(), Some((run, None))))
        });
        let body = body.filter_map(async |bytes| bytes.map(Ok::<_, Infallible>));
        Ok(event_stream(Body::from_stream(body)))
    }
}

/// Returns the event of a failure.
fn failed(run: Run, error: &ApiError) -> Option<Bytes> {
    run.meter.end(Outcome::Failed);
    let mut events = Events::default();
    events.data(&error.json());
    events.take()
}

fn settle(app: &App, reservation: Reservation, meter: Box<dyn Meter>, summary: &Summary) {
    let tokens = summary.usage.input_tokens + summary.usage.output_tokens;
    meter.end(Outcome::Done(summary.usage));
    reservation.settle(tokens);
    app.metrics.settled(tokens);
}
