//! Events of a response's stream.

use std::sync::Arc;

use nsbridge_client::TextPiece;
use nsbridge_gateway_replies::{ReplyEnd, ReplyLog};
use serde::Serialize;
use serde_json::{Value, json};

use super::echo::Object;
use super::object::{Item, Kind, Output, Reply, Step, created, incomplete, shown};
use super::request::ResponsesRequest;
use crate::api::sse::{Events, View, padding};

/// Events of a response.
pub(crate) struct ResponseView {
    request: ResponsesRequest,
    log: Arc<ReplyLog>,
    output: Option<Output>,
}

impl ResponseView {
    pub(crate) fn new(request: ResponsesRequest, log: &Arc<ReplyLog>) -> Self {
        let output = Some(Output::new(&request, log));
        Self { request, log: log.clone(), output }
    }
}

impl View for ResponseView {
    const ENDS_WITH_DONE: bool = false;

    fn begin(&mut self, events: &mut Events) {
        let status = if self.request.background { "queued" } else { "in_progress" };
        let response = created(&self.request, &self.log, status);
        render_state(events, "response.created", &response);
        let response = created(&self.request, &self.log, "in_progress");
        render_state(events, "response.in_progress", &response);
    }

    fn piece(&mut self, piece: &TextPiece, events: &mut Events) {
        let mut steps = Vec::new();
        if let Some(output) = &mut self.output {
            output.push(piece, &mut steps);
        }
        steps.into_iter().for_each(|step| render(events, step));
    }

    fn end(&mut self, end: &ReplyEnd, events: &mut Events) {
        let Some(mut output) = self.output.take() else { return };
        let mut steps = Vec::new();
        output.end(&mut steps);
        // The items of a reply that failed stay open.
        if matches!(end, ReplyEnd::Done(_)) {
            steps.into_iter().for_each(|step| render(events, step));
        }
        let name = match end {
            ReplyEnd::Done(summary) if incomplete(summary.finish_reason).is_some() => {
                "response.incomplete"
            }
            ReplyEnd::Done(_) => "response.completed",
            ReplyEnd::Failed(_) => "response.failed",
        };
        let reply = Reply::ended(output, end.clone());
        let response = shown(&self.request, &self.log, &reply);
        render_state(events, name, &response);
    }
}

/// Event that has the whole response.
#[derive(Serialize)]
struct State<'a> {
    response: &'a Object,
    r#type: &'a str,
    sequence_number: u64,
}

/// Adds an event that has the whole response.
fn render_state(events: &mut Events, kind: &str, response: &Object) {
    let sequence_number = events.next();
    events.named(kind, &State { response, r#type: kind, sequence_number });
}

/// Adds an event with its type and its number.
fn send(events: &mut Events, kind: &str, mut event: Value) {
    event["type"] = kind.into();
    event["sequence_number"] = events.next().into();
    events.named(kind, &event);
}

fn render(events: &mut Events, step: Step) {
    match step {
        Step::Opened(item) => {
            let shown = item.json("in_progress");
            send(
                events,
                "response.output_item.added",
                json!({ "output_index": item.index, "item": shown }),
            );
            if !matches!(item.kind, Kind::Call { .. }) {
                let part = item.part();
                send(events, "response.content_part.added", of_part(&item, "part", part));
            }
        }
        Step::Extended { item, delta, logprobs } => {
            let (kind, mut event) = match item.kind {
                Kind::Message => {
                    let mut event = of_part(&item, "delta", delta.into());
                    event["logprobs"] = logprobs.into();
                    ("response.output_text.delta", event)
                }
                Kind::Reasoning => {
                    ("response.reasoning_text.delta", of_part(&item, "delta", delta.into()))
                }
                Kind::Call { .. } => (
                    "response.function_call_arguments.delta",
                    json!({ "item_id": item.id, "output_index": item.index, "delta": delta }),
                ),
            };
            if events.is_obfuscated() {
                event["obfuscation"] = padding(&event).into();
            }
            send(events, kind, event);
        }
        Step::Closed(item) => {
            match &item.kind {
                Kind::Message => {
                    let mut event = of_part(&item, "text", item.text.clone().into());
                    event["logprobs"] = item.logprobs.clone().into();
                    send(events, "response.output_text.done", event);
                    send(events, "response.content_part.done", of_part(&item, "part", item.part()));
                }
                Kind::Reasoning => {
                    let event = of_part(&item, "text", item.text.clone().into());
                    send(events, "response.reasoning_text.done", event);
                    send(events, "response.content_part.done", of_part(&item, "part", item.part()));
                }
                Kind::Call { name, .. } => {
                    let event = json!({ "item_id": item.id, "output_index": item.index,
                                        "name": name, "arguments": item.text });
                    send(events, "response.function_call_arguments.done", event);
                }
            }
            let shown = item.json("completed");
            send(
                events,
                "response.output_item.done",
                json!({ "output_index": item.index, "item": shown }),
            );
        }
    }
}

/// Returns the fields of an event about the only part of an item, with one more field.
fn of_part(item: &Item, name: &str, value: Value) -> Value {
    let mut event = json!({ "item_id": item.id, "output_index": item.index, "content_index": 0 });
    event[name] = value;
    event
}
