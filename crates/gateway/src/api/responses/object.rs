//! Response as an object: its state, its output, its usage.

use std::collections::HashMap;

use nsbridge_client::{FinishReason, Summary, TextPiece, Usage};
use nsbridge_gateway_replies::{ReplyEnd, ReplyLog};
use nsbridge_reply_text::tools::namespace;
use nsbridge_reply_text::{Delta, OutputParser};
use serde_json::{Map, Value, json};

use super::echo::Object;
use super::request::ResponsesRequest;
use crate::api::chat::reply::token_json;
use crate::api::service_tier::tier_name;
use crate::field_names::Interface;
use crate::ids;

/// Item of the output in progress.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Place in the output.
    pub(super) index: usize,
    pub(super) id: String,
    pub(super) kind: Kind,
    pub(super) text: String,
    /// Log-probabilities of the text's tokens.
    pub(super) logprobs: Vec<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    Reasoning,
    Call { call_id: String, name: String, namespace: Option<String> },
}

impl Item {
    /// Returns the item as an object.
    pub(super) fn json(&self, status: &str) -> Value {
        match &self.kind {
            Kind::Message => {
                let content =
                    if status == "in_progress" { json!([]) } else { json!([self.part()]) };
                json!({ "id": self.id, "type": "message", "role": "assistant", "status": status, "content": content })
            }
            Kind::Reasoning => {
                let content =
                    if status == "in_progress" { json!([]) } else { json!([self.part()]) };
                json!({ "id": self.id, "type": "reasoning", "summary": [], "content": content, "status": status })
            }
            Kind::Call { call_id, name, namespace } => {
                let mut call = json!({
                    "id": self.id, "type": "function_call", "call_id": call_id, "name": name,
                    "arguments": self.text, "status": status
                });
                if let Some(namespace) = namespace {
                    call["namespace"] = namespace.as_str().into();
                }
                call
            }
        }
    }

    /// Returns the only part of a message or of a reasoning.
    pub(super) fn part(&self) -> Value {
        match self.kind {
            Kind::Reasoning => json!({ "type": "reasoning_text", "text": self.text }),
            _ => json!({
                "type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs
            }),
        }
    }
}

/// Step of an output, from which the events of a stream are made.
pub(super) enum Step {
    Opened(Item),
    Extended { item: Item, delta: String, logprobs: Vec<Value> },
    Closed(Item),
}

/// Output of a reply: items that the pieces open, extend and close.
#[derive(Debug)]
pub(super) struct Output {
    log: nsbridge_client::RequestId,
    parser: Option<OutputParser>,
    open: Option<Item>,
    closed: Vec<Item>,
    calls: usize,
    reasoning_tokens: u64,
    logprobs: bool,
    /// Namespaces of functions by the names that the worker sees.
    namespaces: HashMap<String, String>,
}

impl Output {
    pub(super) fn new(request: &ResponsesRequest, log: &ReplyLog) -> Self {
        Self {
            log: log.id,
            parser: Some(request.parser()),
            open: None,
            closed: Vec::new(),
            calls: 0,
            reasoning_tokens: 0,
            logprobs: request.logprobs,
            namespaces: request.namespaces.clone(),
        }
    }

    /// Takes a piece.
    pub(super) fn push(&mut self, piece: &TextPiece, steps: &mut Vec<Step>) {
        let Some(parser) = &mut self.parser else { return };
        let deltas = parser.push(&piece.text);
        self.reasoning_tokens = parser.reasoning_tokens();
        let mut logprobs = Vec::new();
        if self.logprobs {
            let top = piece.top_logprobs.iter();
            let top: Vec<Value> =
                top.map(|top| token_json(top.text.as_ref(), Some(top.logprob))).collect();
            let mut token = token_json(piece.token_text.as_ref(), piece.logprob);
            token["top_logprobs"] = top.into();
            logprobs.push(token);
        }
        self.extend(deltas, logprobs, steps);
    }

    /// Ends the output.
    pub(super) fn end(&mut self, steps: &mut Vec<Step>) {
        if let Some(parser) = self.parser.take() {
            self.extend(parser.end(), Vec::new(), steps);
            self.close(steps);
        }
    }

    fn extend(&mut self, deltas: Vec<Delta>, mut logprobs: Vec<Value>, steps: &mut Vec<Step>) {
        for delta in deltas {
            let text = match delta {
                Delta::Content(text) => {
                    self.open(Kind::Message, steps);
                    text
                }
                Delta::Reasoning(text) => {
                    self.open(Kind::Reasoning, steps);
                    text
                }
                Delta::CallBegin { name, .. } => {
                    let call_id = ids::call(self.log, 0, self.calls);
                    self.calls += 1;
                    let namespace = self.namespaces.get(&name).cloned();
                    let own = namespace.as_deref().map(|in_it| namespace::own_name(in_it, &name));
                    let name = own.map(str::to_owned).unwrap_or(name);
                    self.open(Kind::Call { call_id, name, namespace }, steps);
                    continue;
                }
                Delta::CallArguments { text, .. } => text,
            };
            let Some(item) = &mut self.open else { continue };
            item.text.push_str(&text);
            let told =
                if item.kind == Kind::Message { std::mem::take(&mut logprobs) } else { Vec::new() };
            item.logprobs.extend(told.iter().cloned());
            steps.push(Step::Extended { item: item.clone(), delta: text, logprobs: told });
        }
    }

    fn open(&mut self, kind: Kind, steps: &mut Vec<Step>) {
        if self.open.as_ref().is_some_and(|item| item.kind == kind) {
            return;
        }
        self.close(steps);
        let prefix = match kind {
            Kind::Message => "msg",
            Kind::Reasoning => "rs",
            Kind::Call { .. } => "fc",
        };
        let index = self.closed.len();
        let id = ids::item(prefix, self.log, index);
        let item = Item { index, id, kind, text: String::new(), logprobs: Vec::new() };
        steps.push(Step::Opened(item.clone()));
        self.open = Some(item);
    }

    fn close(&mut self, steps: &mut Vec<Step>) {
        if let Some(item) = self.open.take() {
            steps.push(Step::Closed(item.clone()));
            self.closed.push(item);
        }
    }

    /// Returns the items of the output.
    fn items(&self, status: &str) -> Vec<Value> {
        let closed = self.closed.iter().map(|item| item.json("completed"));
        closed.chain(self.open.iter().map(|item| item.json(status))).collect()
    }
}

/// State of a response.
pub(super) struct Reply {
    output: Output,
    end: Option<ReplyEnd>,
    begun: bool,
}

impl Reply {
    /// Returns the state of a reply, from its pieces so far.
    pub(super) fn of(request: &ResponsesRequest, log: &ReplyLog) -> Self {
        let (mut output, end) = (Output::new(request, log), log.end());
        let (pieces, _) = log.pieces();
        let mut steps = Vec::new();
        pieces.iter().for_each(|piece| output.push(&piece.piece, &mut steps));
        if end.is_some() {
            output.end(&mut steps);
        }
        Self { output, end, begun: !pieces.is_empty() }
    }

    /// Returns the items of the output so far.
    pub(super) fn items(&self) -> Vec<Value> {
        self.output.items("completed")
    }

    /// Returns the state at the end of a stream.
    pub(super) fn ended(output: Output, end: ReplyEnd) -> Self {
        Self { output, end: Some(end), begun: true }
    }
}

/// Returns the object of a response that has just begun.
pub(super) fn created(request: &ResponsesRequest, log: &ReplyLog, status: &str) -> Object {
    body(request, log, status, Vec::new(), json!({ "nsbridge": { "seed": log.seed } }))
}

/// Returns the object of a response.
pub(super) fn shown(request: &ResponsesRequest, log: &ReplyLog, reply: &Reply) -> Object {
    let usage = |summary: &Summary| usage(&summary.usage, reply.output.reasoning_tokens);
    let (status, mut more) = match &reply.end {
        None if reply.begun => ("in_progress", json!({})),
        None => (if request.background { "queued" } else { "in_progress" }, json!({})),
        Some(ReplyEnd::Done(summary)) => match incomplete(summary.finish_reason) {
            Some(reason) => (
                "incomplete",
                json!({ "incomplete_details": { "reason": reason }, "usage": usage(summary) }),
            ),
            None => ("completed", json!({ "usage": usage(summary) })),
        },
        Some(ReplyEnd::Failed(failure)) if failure.code() == "cancelled" => {
            ("cancelled", json!({}))
        }
        Some(ReplyEnd::Failed(failure)) => {
            let code = match failure.code() {
                // Clients shorten their history by this code.
                code @ "context_length_exceeded" => code,
                _ if failure.is_of_client() => "invalid_prompt",
                _ => "server_error",
            };
            let message = Interface::Responses.reworded(failure.message());
            ("failed", json!({ "error": { "code": code, "message": message } }))
        }
    };
    more["nsbridge"] = extension(log, reply.end.as_ref());
    let open = if status == "in_progress" { "in_progress" } else { "incomplete" };
    body(request, log, status, reply.output.items(open), more)
}

/// Returns the reason why a reply with this end is incomplete; `None` for a complete one.
pub(super) fn incomplete(reason: FinishReason) -> Option<&'static str> {
    match reason {
        FinishReason::Length => Some("max_output_tokens"),
        FinishReason::ContentFilter => Some("content_filter"),
        _ => None,
    }
}

fn body(
    request: &ResponsesRequest,
    log: &ReplyLog,
    status: &str,
    output: Vec<Value>,
    mut more: Value,
) -> Object {
    let mut head = Map::new();
    head.insert("id".into(), super::id(log.id).into());
    head.insert("object".into(), "response".into());
    head.insert("created_at".into(), ids::seconds(log.created_at).into());
    head.insert("status".into(), status.into());
    head.insert("error".into(), Value::Null);
    head.insert("incomplete_details".into(), Value::Null);
    let mut tail = Map::new();
    tail.insert("service_tier".into(), tier_name(log.class).into());
    tail.insert("output".into(), output.into());
    tail.insert("usage".into(), Value::Null);
    let mut body = Object { head, echo: request.echo.clone(), tail };
    body.extend(more.as_object_mut().map(std::mem::take).unwrap_or_default());
    body
}

/// Returns the fields of a response that OpenAI's interface lacks and that its last event has. They
/// depend on the request and the end alone, like the rest of the event.
fn extension(log: &ReplyLog, end: Option<&ReplyEnd>) -> Value {
    let mut fields = json!({ "seed": log.seed });
    match end {
        Some(ReplyEnd::Done(summary)) => {
            fields["drafted_tokens"] = summary.usage.drafted_tokens.into();
            fields["accepted_tokens"] = summary.usage.accepted_tokens.into();
        }
        Some(ReplyEnd::Failed(failure)) => fields["error_code"] = failure.code().into(),
        None => {}
    }
    fields
}

/// Returns the object of a response, with what this gateway knows of its workers.
pub(super) fn described(request: &ResponsesRequest, log: &ReplyLog, reply: &Reply) -> Object {
    let mut response = shown(request, log, reply);
    let mut fields = extension(log, reply.end.as_ref());
    fields["system_fingerprint"] = log.revision().map(|it| it.as_str().to_owned()).into();
    fields["worker_fingerprint"] = log.pieces().1.map(|print| print.to_string()).into();
    fields["attempts"] = log.attempts().into();
    fields["continued"] = log.continued.into();
    response.tail.insert("nsbridge".into(), fields);
    response
}

fn usage(usage: &Usage, reasoning_tokens: u64) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_tokens },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": { "reasoning_tokens": reasoning_tokens },
        "total_tokens": usage.input_tokens + usage.output_tokens
    })
}
