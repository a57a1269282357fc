//! Reply of a message: events of a stream, or one object.

use nsbridge_client::{FinishReason, RequestId, Summary, TextPiece, Usage};
use nsbridge_gateway_replies::ReplyEnd;
use nsbridge_reply_text::{Delta, OutputParser};
use serde_json::{Map, Value, json};

use super::error;
use super::request::MessagesRequest;
use crate::api::sse::{Events, View};
use crate::field_names::Interface;
use crate::ids;

/// Events of a message.
pub(crate) struct MessageView {
    request: MessagesRequest,
    log: RequestId,
    /// `None` after its end.
    parser: Option<OutputParser>,
    blocks: Blocks,
}

impl MessageView {
    pub(crate) fn new(request: MessagesRequest, log: RequestId) -> Self {
        let (parser, blocks) = (Some(request.parser()), Blocks::new(&request, log));
        Self { request, log, parser, blocks }
    }
}

impl View for MessageView {
    const ENDS_WITH_DONE: bool = false;

    fn begin(&mut self, events: &mut Events) {
        // The worker counts the prompt, and tells the number at the end.
        let message = message(&self.request, self.log, &json!([]), None, &Usage::default());
        let start = json!({ "type": "message_start", "message": message });
        events.named("message_start", &start);
    }

    fn piece(&mut self, piece: &TextPiece, events: &mut Events) {
        if let Some(parser) = &mut self.parser {
            let deltas = parser.push(&piece.text);
            self.blocks.push(deltas, |name, event| events.named(name, event));
        }
    }

    fn end(&mut self, end: &ReplyEnd, events: &mut Events) {
        let Some(parser) = self.parser.take() else { return };
        match end {
            // The blocks of a reply that failed stay open.
            ReplyEnd::Failed(failure) => {
                events.named(
                    "error",
                    &error::event(&Interface::Messages.named(failure.clone()).into()),
                );
            }
            ReplyEnd::Done(summary) => {
                self.blocks.push(parser.end(), |name, event| events.named(name, event));
                self.blocks.close(|name, event| events.named(name, event));
                let (reason, sequence) = stop(&self.request, summary, &self.blocks);
                let mut delta = json!({
                    "type": "message_delta", "usage": usage(&summary.usage),
                    "delta": { "stop_reason": reason, "stop_sequence": sequence }
                });
                tell_edits(&self.request, &mut delta);
                events.named("message_delta", &delta);
                events.named("message_stop", &json!({ "type": "message_stop" }));
            }
        }
    }
}

/// Returns the whole message.
pub(crate) fn whole<'a>(
    request: &MessagesRequest,
    log: RequestId,
    pieces: impl IntoIterator<Item = &'a TextPiece>,
    summary: &Summary,
) -> Value {
    let (mut parser, mut blocks) = (request.parser(), Blocks::new(request, log));
    for piece in pieces {
        blocks.push(parser.push(&piece.text), |_, _| {});
    }
    blocks.push(parser.end(), |_, _| {});
    let stop = stop(request, summary, &blocks);
    let content: Value = blocks.blocks.iter().map(Block::json).collect();
    message(request, log, &content, Some(stop), &summary.usage)
}

fn message(
    request: &MessagesRequest,
    log: RequestId,
    content: &Value,
    stop: Option<(&'static str, Option<&str>)>,
    usage: &Usage,
) -> Value {
    let (reason, sequence) = stop.map_or((None, None), |(reason, text)| (Some(reason), text));
    let mut message = json!({
        "id": ids::message(log), "type": "message", "role": "assistant", "model": request.name,
        "content": content, "stop_reason": reason, "stop_sequence": sequence,
        "usage": self::usage(usage)
    });
    if stop.is_some() {
        tell_edits(request, &mut message);
    }
    message
}

/// Tells that no edit of the context was applied, if the request has edits.
fn tell_edits(request: &MessagesRequest, message: &mut Value) {
    if request.tells_edits {
        message["context_management"] = json!({ "applied_edits": [] });
    }
}

/// Returns the reason of the end, and the stop sequence that was found, if only one was given.
fn stop<'a>(
    request: &'a MessagesRequest,
    summary: &Summary,
    blocks: &Blocks,
) -> (&'static str, Option<&'a str>) {
    let called = || blocks.blocks.iter().any(|block| matches!(block, Block::ToolUse { .. }));
    match summary.finish_reason {
        FinishReason::Length => ("max_tokens", None),
        FinishReason::ContentFilter => ("refusal", None),
        FinishReason::StopText => match request.input.stop.as_slice() {
            [only] => ("stop_sequence", Some(only)),
            _ => ("stop_sequence", None),
        },
        _ if called() => ("tool_use", None),
        _ => ("end_turn", None),
    }
}

/// Returns usage in the shape of messages, where the tokens of the input exclude the cached ones.
fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens.saturating_sub(usage.cached_tokens),
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cached_tokens, "cache_creation_input_tokens": 0
    })
}

/// Content blocks of a reply so far.
///
/// A block of text or of thinking begins with its first character that is no whitespace: Anthropic's
/// interface refuses blocks without one when they are sent back.
struct Blocks {
    log: RequestId,
    omits_thinking: bool,
    blocks: Vec<Block>,
    /// True if the last block may go on.
    open: bool,
    /// Whitespace that begins a block if other text of this kind follows.
    held: Option<(Prose, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Prose {
    Text,
    Thinking,
}

enum Block {
    Prose(Prose, String),
    ToolUse {
        id: String,
        name: String,
        /// JSON as the model wrote it.
        input: String,
    },
}

impl Block {
    fn json(&self) -> Value {
        match self {
            Self::Prose(Prose::Text, text) => json!({ "type": "text", "text": text }),
            Self::Prose(Prose::Thinking, text) => {
                json!({ "type": "thinking", "thinking": text, "signature": "" })
            }
            Self::ToolUse { id, name, input } => {
                // A call that was cut off has no input that could be read.
                let input: Map<String, Value> = serde_json::from_str(input).unwrap_or_default();
                json!({ "type": "tool_use", "id": id, "name": name, "input": input })
            }
        }
    }

    fn is_prose(&self, kind: Prose) -> bool {
        matches!(self, Self::Prose(own, _) if *own == kind)
    }

    /// Appends a text. Returns the delta of an event.
    fn append(&mut self, text: &str) -> Value {
        match self {
            Self::Prose(kind, all) => {
                all.push_str(text);
                match kind {
                    Prose::Text => json!({ "type": "text_delta", "text": text }),
                    Prose::Thinking => json!({ "type": "thinking_delta", "thinking": text }),
                }
            }
            Self::ToolUse { input, .. } => {
                input.push_str(text);
                json!({ "type": "input_json_delta", "partial_json": text })
            }
        }
    }
}

impl Blocks {
    fn new(request: &MessagesRequest, log: RequestId) -> Self {
        let omits_thinking = request.omits_thinking;
        Self { log, omits_thinking, blocks: Vec::new(), open: false, held: None }
    }

    /// Adds deltas. `tell` is called with the name and the data of each event.
    fn push(&mut self, deltas: Vec<Delta>, mut tell: impl FnMut(&str, &Value)) {
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.prose(Prose::Text, &text, &mut tell),
                Delta::Reasoning(text) => self.prose(Prose::Thinking, &text, &mut tell),
                Delta::CallBegin { index, name } => {
                    self.held = None;
                    let id = ids::item("toolu", self.log, index);
                    self.begin(Block::ToolUse { id, name, input: String::new() }, &mut tell);
                }
                Delta::CallArguments { text, .. } => self.append(&text, &mut tell),
            }
        }
    }

    fn prose(&mut self, kind: Prose, text: &str, tell: &mut impl FnMut(&str, &Value)) {
        if !self.open || !self.blocks.last().is_some_and(|block| block.is_prose(kind)) {
            let held = self.held.take().filter(|(of, _)| *of == kind);
            let text = held.map(|(_, held)| held).unwrap_or_default() + text;
            if text.trim().is_empty() {
                self.held = Some((kind, text));
                return;
            }
            self.begin(Block::Prose(kind, String::new()), tell);
            self.prose_text(kind, &text, tell);
        } else {
            self.prose_text(kind, text, tell);
        }
    }

    fn prose_text(&mut self, kind: Prose, text: &str, tell: &mut impl FnMut(&str, &Value)) {
        if kind == Prose::Text || !self.omits_thinking {
            self.append(text, tell);
        }
    }

    fn begin(&mut self, block: Block, tell: &mut impl FnMut(&str, &Value)) {
        self.close(&mut *tell);
        let (index, name) = (self.blocks.len(), "content_block_start");
        tell(name, &json!({ "type": name, "index": index, "content_block": block.json() }));
        self.blocks.push(block);
        self.open = true;
    }

    /// Appends a text to the last block.
    fn append(&mut self, text: &str, tell: &mut impl FnMut(&str, &Value)) {
        let Some(index) = self.blocks.len().checked_sub(1) else { return };
        if let Some(block) = self.blocks.last_mut() {
            let (delta, name) = (block.append(text), "content_block_delta");
            tell(name, &json!({ "type": name, "index": index, "delta": delta }));
        }
    }

    /// Ends the last block.
    fn close(&mut self, mut tell: impl FnMut(&str, &Value)) {
        if let Some(index) = self.blocks.len().checked_sub(1).filter(|_| self.open) {
            self.open = false;
            let name = "content_block_stop";
            tell(name, &json!({ "type": name, "index": index }));
        }
    }
}

#[cfg(test)]
mod tests;
