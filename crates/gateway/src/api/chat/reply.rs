//! Reply of a chat completion: chunks of a stream, or one object.

use std::sync::Arc;

use nsbridge_client::{FinishReason, Summary, TextPiece, Usage};
use nsbridge_gateway_access::Priority;
use nsbridge_gateway_replies::{RawPiece, ReplyEnd, ReplyLog};
use nsbridge_protocol::TokenText;
use nsbridge_reply_text::{Delta, OutputParser};
use serde_json::{Map, Value, json};

use super::request::ChatRequest;
use crate::api::service_tier::{Tier, tier_name};
use crate::api::sse::{Events, View, padding};
use crate::error::ApiError;
use crate::ids;

/// Chunks of a stream.
pub(crate) struct Stream {
    request: ChatRequest,
    head: Map<String, Value>,
    choices: Vec<Choice>,
    /// Tokens of the replies that have ended which are reasoning.
    reasoning_tokens: u64,
    log: Arc<ReplyLog>,
}

/// State of one of the replies to the prompt.
struct Choice {
    /// `None` after its end.
    parser: Option<OutputParser>,
}

impl Stream {
    pub(crate) fn new(request: ChatRequest, log: &Arc<ReplyLog>) -> Self {
        let choices = (0..request.replies).map(|_| Choice { parser: Some(request.parser()) });
        let choices = choices.collect();
        let head = head(&request, log, "chat.completion.chunk");
        Self { request, head, choices, reasoning_tokens: 0, log: log.clone() }
    }

    fn chunk(&self, events: &mut Events, choices: Value, usage: Option<&Usage>) {
        let mut chunk = Value::Object(self.head.clone());
        if let Some(revision) = self.log.revision() {
            chunk["system_fingerprint"] = revision.as_str().into();
        }
        chunk["choices"] = choices;
        if self.request.include_usage {
            chunk["usage"] =
                usage.map_or(Value::Null, |usage| usage_json(usage, self.reasoning_tokens));
        }
        if events.is_obfuscated() {
            chunk["obfuscation"] = padding(&chunk).into();
        }
        events.data(&chunk);
    }

    fn delta(
        &self,
        events: &mut Events,
        index: usize,
        delta: &Value,
        logprobs: &Value,
        end: Option<&str>,
    ) {
        let choice =
            json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": end });
        self.chunk(events, json!([choice]), None);
    }

    /// Writes the deltas of a piece. The log-probabilities stand at the first of them.
    fn deltas(&self, events: &mut Events, index: usize, deltas: Vec<Delta>, logprobs: Value) {
        let mut logprobs = Some(logprobs);
        for delta in deltas {
            let delta = delta_json(&self.log, index, delta);
            self.delta(events, index, &delta, &logprobs.take().unwrap_or_default(), None);
        }
        if let Some(logprobs) = logprobs.filter(|logprobs| !logprobs.is_null()) {
            self.delta(events, index, &json!({}), &logprobs, None);
        }
    }

    /// Ends one of the replies.
    fn finish(&mut self, events: &mut Events, index: usize, reason: FinishReason) {
        let Some(parser) = self.choices.get_mut(index).and_then(|choice| choice.parser.take())
        else {
            return;
        };
        self.reasoning_tokens += parser.reasoning_tokens();
        let (rest, calls) = end_of(parser);
        self.deltas(events, index, rest, Value::Null);
        let reason = finish_reason(reason, calls);
        self.delta(events, index, &json!({}), &Value::Null, Some(reason));
    }
}

impl View for Stream {
    const ENDS_WITH_DONE: bool = true;

    fn begin(&mut self, events: &mut Events) {
        for index in 0..self.choices.len() {
            let delta = json!({ "role": "assistant", "content": "", "refusal": null });
            self.delta(events, index, &delta, &Value::Null, None);
        }
    }

    fn piece(&mut self, piece: &TextPiece, events: &mut Events) {
        let index = piece.index as usize;
        let Some(parser) = self.choices.get_mut(index).and_then(|choice| choice.parser.as_mut())
        else {
            return;
        };
        let deltas = parser.push(&piece.text);
        let logprobs = if self.request.logprobs { logprobs_json(&[piece]) } else { Value::Null };
        self.deltas(events, index, deltas, logprobs);
        if let Some(reason) = piece.finish_reason {
            self.finish(events, index, reason);
        }
    }

    fn end(&mut self, end: &ReplyEnd, events: &mut Events) {
        match end {
            ReplyEnd::Failed(failure) => {
                events.data(&ApiError::from(failure.clone()).json());
            }
            ReplyEnd::Done(summary) => {
                for index in 0..self.choices.len() {
                    self.finish(events, index, summary.finish_reason);
                }
                if self.request.include_usage {
                    self.chunk(events, json!([]), Some(&summary.usage));
                }
            }
        }
    }
}

fn head(request: &ChatRequest, log: &ReplyLog, object: &str) -> Map<String, Value> {
    let mut head = Map::new();
    head.insert("id".into(), ids::chat(log.id).into());
    head.insert("object".into(), object.into());
    head.insert("created".into(), ids::seconds(log.created_at).into());
    head.insert("model".into(), request.name.clone().into());
    head.insert("system_fingerprint".into(), Value::Null);
    if request.tier != Tier::Unnamed || log.class == Priority::Bulk {
        head.insert("service_tier".into(), tier_name(log.class).into());
    }
    head
}

fn delta_json(log: &ReplyLog, choice: usize, delta: Delta) -> Value {
    match delta {
        Delta::Content(text) => json!({ "content": text }),
        Delta::Reasoning(text) => json!({ "reasoning_content": text }),
        Delta::CallBegin { index, name } => json!({ "tool_calls": [{
            "index": index, "id": ids::call(log.id, choice, index), "type": "function",
            "function": { "name": name, "arguments": "" }
        }] }),
        Delta::CallArguments { index, text } => json!({ "tool_calls": [{
            "index": index, "function": { "arguments": text }
        }] }),
    }
}

/// Ends a parser. Returns the rest of its text and the number of its calls.
pub(crate) fn end_of(parser: OutputParser) -> (Vec<Delta>, usize) {
    let before = parser.calls();
    let rest = parser.end();
    let more = rest.iter().filter(|delta| matches!(delta, Delta::CallBegin { .. })).count();
    (rest, before + more)
}

fn finish_reason(reason: FinishReason, calls: usize) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::ContentFilter => "content_filter",
        _ if calls > 0 => "tool_calls",
        _ => "stop",
    }
}

/// Returns usage in the shape of chat completions.
pub(crate) fn usage_json(usage: &Usage, reasoning_tokens: u64) -> Value {
    json!({
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens, "audio_tokens": 0 },
        "completion_tokens_details": {
            "reasoning_tokens": reasoning_tokens, "audio_tokens": 0,
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.drafted_tokens.saturating_sub(usage.accepted_tokens)
        }
    })
}

/// Returns the log-probabilities of pieces in the shape of chat completions.
fn logprobs_json(pieces: &[&TextPiece]) -> Value {
    let content: Vec<Value> = pieces
        .iter()
        .map(|piece| {
            let top = piece.top_logprobs.iter();
            let top: Vec<Value> =
                top.map(|top| token_json(top.text.as_ref(), Some(top.logprob))).collect();
            let mut token = token_json(piece.token_text.as_ref(), piece.logprob);
            token["top_logprobs"] = top.into();
            token
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

pub(crate) fn token_json(text: Option<&TokenText>, logprob: Option<f32>) -> Value {
    let bytes = text.map(TokenText::as_bytes).unwrap_or_default();
    // JSON has no infinite number; OpenAI sends this one.
    let logprob = logprob.filter(|logprob| logprob.is_finite()).unwrap_or(-9999.0);
    json!({ "token": token_text(text), "bytes": bytes, "logprob": logprob })
}

/// Returns the text of a token; OpenAI writes incomplete characters in this way.
pub(crate) fn token_text(text: Option<&TokenText>) -> String {
    match text {
        None => String::new(),
        Some(TokenText::Text(text)) => text.clone(),
        Some(TokenText::Bytes(bytes)) => {
            bytes.iter().fold("bytes:".to_owned(), |text, byte| text + &format!("\\x{byte:02x}"))
        }
    }
}

/// Text and calls of one reply.
#[derive(Default)]
pub(crate) struct Message {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    /// Name and arguments of each call.
    pub(crate) calls: Vec<(String, String)>,
}

impl Message {
    /// Adds deltas to the message.
    pub(crate) fn extend(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.content.push_str(&text),
                Delta::Reasoning(text) => self.reasoning.push_str(&text),
                Delta::CallBegin { name, .. } => self.calls.push((name, String::new())),
                Delta::CallArguments { text, .. } => {
                    if let Some((_, arguments)) = self.calls.last_mut() {
                        arguments.push_str(&text);
                    }
                }
            }
        }
    }
}

/// Returns the whole reply as one object.
pub(crate) fn whole(
    request: &ChatRequest,
    log: &ReplyLog,
    pieces: &[Arc<RawPiece>],
    summary: &Summary,
) -> Value {
    let mut body = head(request, log, "chat.completion");
    if let Some(revision) = log.revision() {
        body.insert("system_fingerprint".into(), revision.as_str().into());
    }
    let (mut choices, mut reasoning_tokens) = (Vec::new(), 0);
    for index in 0..request.replies {
        let (json, tokens) = choice(request, log, index, pieces, summary);
        choices.push(json);
        reasoning_tokens += tokens;
    }
    body.insert("choices".into(), choices.into());
    body.insert("usage".into(), usage_json(&summary.usage, reasoning_tokens));
    Value::Object(body)
}

/// Returns one of the replies, and the number of its tokens that are reasoning.
fn choice(
    request: &ChatRequest,
    log: &ReplyLog,
    index: u32,
    pieces: &[Arc<RawPiece>],
    summary: &Summary,
) -> (Value, u64) {
    let own = pieces.iter().map(|piece| &piece.piece).filter(|piece| piece.index == index);
    let own: Vec<&TextPiece> = own.collect();
    let (mut parser, mut message) = (request.parser(), Message::default());
    own.iter().for_each(|piece| message.extend(parser.push(&piece.text)));
    let reasoning_tokens = parser.reasoning_tokens();
    message.extend(parser.end());
    let reason = own.last().and_then(|piece| piece.finish_reason).unwrap_or(summary.finish_reason);
    let reason = finish_reason(reason, message.calls.len());
    let content = if message.content.is_empty() && !message.calls.is_empty() {
        Value::Null
    } else {
        message.content.into()
    };
    let mut json =
        json!({ "role": "assistant", "content": content, "refusal": null, "annotations": [] });
    if !message.reasoning.is_empty() {
        json["reasoning_content"] = message.reasoning.into();
    }
    if !message.calls.is_empty() {
        let calls = message.calls.into_iter().enumerate().map(|(call, (name, arguments))| {
            json!({ "id": ids::call(log.id, index as usize, call), "type": "function",
                    "function": { "name": name, "arguments": arguments } })
        });
        json["tool_calls"] = calls.collect();
    }
    let logprobs = if request.logprobs { logprobs_json(&own) } else { Value::Null };
    let json =
        json!({ "index": index, "message": json, "logprobs": logprobs, "finish_reason": reason });
    (json, reasoning_tokens)
}
