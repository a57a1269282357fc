//! Reply of a completion: chunks of a stream, or one object.

use std::sync::Arc;

use nsbridge_client::{FinishReason, Summary, TextPiece, Usage};
use nsbridge_gateway_replies::{RawPiece, ReplyEnd, ReplyLog};
use serde_json::{Map, Value, json};

use super::CompletionRequest;
use crate::api::chat::reply::{token_text, usage_json};
use crate::api::sse::{Events, View, padding};
use crate::error::ApiError;
use crate::field_names::Interface;
use crate::ids;

/// Chunks of a stream.
pub(crate) struct Stream {
    request: CompletionRequest,
    log: Arc<ReplyLog>,
    /// Number of characters of each reply so far; `None` after its end.
    lengths: Vec<Option<usize>>,
}

impl Stream {
    pub(crate) fn new(request: CompletionRequest, log: &Arc<ReplyLog>) -> Self {
        let lengths = vec![Some(0); request.replies as usize];
        Self { request, log: log.clone(), lengths }
    }

    fn chunk(&self, events: &mut Events, choices: Value, usage: Option<&Usage>) {
        let mut chunk = Value::Object(head(&self.request, &self.log));
        chunk["choices"] = choices;
        if self.request.include_usage {
            chunk["usage"] = usage.map_or(Value::Null, |usage| usage_json(usage, 0));
        }
        if events.is_obfuscated() {
            chunk["obfuscation"] = padding(&chunk).into();
        }
        events.data(&chunk);
    }

    fn finish(&mut self, events: &mut Events, index: usize, reason: FinishReason) {
        if self.lengths.get_mut(index).and_then(Option::take).is_some() {
            let choice = choice_json(index, "", &Value::Null, Some(finish_reason(reason)));
            self.chunk(events, json!([choice]), None);
        }
    }
}

impl View for Stream {
    const ENDS_WITH_DONE: bool = true;

    fn begin(&mut self, _: &mut Events) {}

    fn piece(&mut self, piece: &TextPiece, events: &mut Events) {
        let index = piece.index as usize;
        let Some(Some(length)) = self.lengths.get_mut(index) else { return };
        let mut logprobs = Value::Null;
        if self.request.logprobs {
            let mut told = Logprobs::default();
            told.push(piece, length);
            logprobs = told.json();
        }
        if !piece.text.is_empty() || !logprobs.is_null() {
            let choice = choice_json(index, &piece.text, &logprobs, None);
            self.chunk(events, json!([choice]), None);
        }
        if let Some(reason) = piece.finish_reason {
            self.finish(events, index, reason);
        }
    }

    fn end(&mut self, end: &ReplyEnd, events: &mut Events) {
        match end {
            ReplyEnd::Failed(failure) => {
                let failure = Interface::Completions.named(failure.clone());
                events.data(&ApiError::from(failure).json());
            }
            ReplyEnd::Done(summary) => {
                for index in 0..self.lengths.len() {
                    self.finish(events, index, summary.finish_reason);
                }
                if self.request.include_usage {
                    self.chunk(events, json!([]), Some(&summary.usage));
                }
            }
        }
    }
}

fn head(request: &CompletionRequest, log: &ReplyLog) -> Map<String, Value> {
    let mut head = Map::new();
    head.insert("id".into(), ids::completion(log.id).into());
    head.insert("object".into(), "text_completion".into());
    head.insert("created".into(), ids::seconds(log.created_at).into());
    head.insert("model".into(), request.name.clone().into());
    let fingerprint = log.revision().map(|revision| revision.as_str().to_owned());
    head.insert("system_fingerprint".into(), fingerprint.into());
    head
}

fn choice_json(index: usize, text: &str, logprobs: &Value, finish_reason: Option<&str>) -> Value {
    json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason })
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::ContentFilter => "content_filter",
        _ => "stop",
    }
}

/// Log-probabilities in the shape of completions.
#[derive(Default)]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl Logprobs {
    /// Adds a piece; `length` is the number of characters before it.
    fn push(&mut self, piece: &TextPiece, length: &mut usize) {
        self.tokens.push(token_text(piece.token_text.as_ref()));
        let number = |logprob: Option<f32>| match logprob {
            Some(logprob) if logprob.is_finite() => Value::from(logprob),
            Some(_) => Value::from(-9999.0),
            None => Value::Null,
        };
        self.token_logprobs.push(number(piece.logprob));
        // The most likely tokens and the chosen one, as in OpenAI's interface.
        let top = piece.top_logprobs.iter().map(|top| (top.text.as_ref(), top.logprob));
        let own = piece.logprob.map(|logprob| (piece.token_text.as_ref(), logprob));
        let all: Map<String, Value> = top
            .chain(own)
            .map(|(text, logprob)| (token_text(text), number(Some(logprob))))
            .collect();
        self.top_logprobs.push(if piece.logprob.is_some() { all.into() } else { Value::Null });
        self.text_offset.push(*length);
        *length += piece.text.chars().count();
    }

    fn json(self) -> Value {
        json!({
            "tokens": self.tokens, "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs, "text_offset": self.text_offset
        })
    }
}

/// Returns the whole replies to all prompts as one object.
pub(crate) fn whole(
    request: &CompletionRequest,
    logs: &[Arc<ReplyLog>],
    replies: &[(Vec<Arc<RawPiece>>, Summary)],
) -> Value {
    let mut body = logs.first().map(|log| head(request, log)).unwrap_or_default();
    let mut usage = Usage::default();
    let mut choices = Vec::new();
    for (pieces, summary) in replies {
        usage.input_tokens += summary.usage.input_tokens;
        usage.output_tokens += summary.usage.output_tokens;
        usage.cached_tokens += summary.usage.cached_tokens;
        usage.drafted_tokens += summary.usage.drafted_tokens;
        usage.accepted_tokens += summary.usage.accepted_tokens;
        for reply in 0..request.replies {
            choices.push(choice(request, choices.len(), reply, pieces, summary));
        }
    }
    body.insert("choices".into(), choices.into());
    body.insert("usage".into(), usage_json(&usage, 0));
    Value::Object(body)
}

fn choice(
    request: &CompletionRequest,
    index: usize,
    reply: u32,
    pieces: &[Arc<RawPiece>],
    summary: &Summary,
) -> Value {
    let (mut text, mut length, mut told) = (String::new(), 0, Logprobs::default());
    let (mut reason, mut prompt) = (summary.finish_reason, Vec::new());
    for piece in pieces.iter().map(|piece| &piece.piece).filter(|piece| piece.index == reply) {
        text.push_str(&piece.text);
        // The tokens of a prompt that is not echoed are not a part of the completion.
        let echoed = !piece.prompt || request.inputs.first().is_some_and(|input| input.echo);
        if request.logprobs && echoed {
            told.push(piece, &mut length);
        }
        if piece.prompt {
            prompt.push(prompt_json(piece));
        }
        reason = piece.finish_reason.unwrap_or(reason);
    }
    let logprobs = if request.logprobs { told.json() } else { Value::Null };
    let mut choice = choice_json(index, &text, &logprobs, Some(finish_reason(reason)));
    if request.inputs.first().is_some_and(|input| input.prompt_logprobs.is_some()) {
        choice["prompt_logprobs"] = prompt.into();
    }
    choice
}

/// Returns the log-probabilities of a token of the prompt in vLLM's shape.
fn prompt_json(piece: &TextPiece) -> Value {
    let Some(logprob) = piece.logprob else { return Value::Null };
    let entry = |logprob: f32, rank: Option<u32>, text: &str| json!({ "logprob": logprob, "rank": rank, "decoded_token": text });
    let mut all = Map::new();
    let own = entry(logprob, piece.rank, &token_text(piece.token_text.as_ref()));
    all.insert(piece.token.to_string(), own);
    for (rank, top) in (1..).zip(&piece.top_logprobs) {
        let text = token_text(top.text.as_ref());
        all.entry(top.token.to_string()).or_insert(entry(top.logprob, Some(rank), &text));
    }
    all.into()
}
