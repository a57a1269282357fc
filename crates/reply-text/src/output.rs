//! Text that a model generates, turned into OpenAI-style deltas while it streams.
//!
//! A reply is read character by character: first [`reasoning`], then the format of the model's tool
//! calls. Every decision depends on the characters read so far and never on the pieces in which
//! they arrived. The same pieces give the same deltas, so a resumed stream can be recomputed.
//!
//! A call is told as soon as its name is known and its arguments begin. From then on it cannot be
//! taken back: if its JSON turns out to be invalid, the rest of the text is content.

mod forced;
mod hermes;
mod json;
mod json_calls;
mod llama3_json;
mod mistral;
mod name;
mod reasoning;
mod sink;
mod tag;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::fmt;

use self::forced::ForcedReply;
use self::hermes::Hermes;
use self::llama3_json::Llama3Json;
use self::mistral::Mistral;
pub use self::name::{LONGEST_NAME, is_name};
use self::reasoning::Reasoning;
pub use self::reasoning::ReasoningTags;
use self::sink::Sink;

/// Part of a reply.
#[derive(Clone, PartialEq, Eq)]
pub enum Delta {
    /// Text of the answer.
    Content(String),
    /// Text of the model's reasoning.
    Reasoning(String),
    /// Beginning of a tool call.
    CallBegin {
        /// Index of the call within the reply, from 0.
        index: usize,
        /// Name of the function.
        name: String,
    },
    /// Next part of a call's arguments, which are JSON as the model writes it.
    CallArguments {
        /// Index of the call within the reply, from 0.
        index: usize,
        /// Text to append to the call's arguments.
        text: String,
    },
}

impl fmt::Debug for Delta {
    /// Omits the model's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Content(text) => write!(f, "Content({} bytes)", text.len()),
            Self::Reasoning(text) => write!(f, "Reasoning({} bytes)", text.len()),
            Self::CallBegin { index, .. } => write!(f, "CallBegin({index})"),
            Self::CallArguments { index, text } => {
                write!(f, "CallArguments({index}, {} bytes)", text.len())
            }
        }
    }
}

/// Format in which a model writes tool calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// No calls: all text is content.
    None,
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`, as Hermes and Qwen write it.
    Hermes,
    /// `{"name": .., "parameters": ..}` as the whole reply, as Llama 3 writes it.
    Llama3Json,
    /// `[TOOL_CALLS]` before a list of calls, or before the name of each call, as Mistral writes
    /// it.
    Mistral,
    /// JSON alone, to which the worker's grammar constrains the reply.
    Forced(Forced),
}

/// Shape of a reply that consists of tool calls alone.
///
/// The grammar leaves no room for reasoning, so [`OutputParser::new`] ignores the reasoning tags.
#[derive(Clone, PartialEq, Eq)]
pub enum Forced {
    /// The whole reply is the arguments of this function.
    Named {
        /// Name of the function.
        name: String,
    },
    /// The whole reply is a JSON array of `{"name", "arguments"}`.
    Required,
    /// The whole reply is one object `{"name", "arguments"}`.
    RequiredOne,
}

impl fmt::Debug for Forced {
    /// Omits the name of the user's function.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named { .. } => "Named",
            Self::Required => "Required",
            Self::RequiredOne => "RequiredOne",
        })
    }
}

/// Parser of one reply.
pub struct OutputParser {
    /// `None` if the model does not reason.
    reasoning: Option<Reasoning>,
    calls: Calls,
    sink: Sink,
    reasoning_tokens: u64,
}

/// Parser of the text after the reasoning.
enum Calls {
    None,
    Hermes(Hermes),
    Llama3Json(Llama3Json),
    Mistral(Mistral),
    Forced(ForcedReply),
}

impl fmt::Debug for OutputParser {
    /// Omits the model's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputParser").field("calls", &self.calls()).finish_non_exhaustive()
    }
}

impl OutputParser {
    /// Creates the parser of a reply. `reasoning` is `None` for a model that does not reason.
    pub fn new(tools: ToolFormat, reasoning: Option<ReasoningTags>) -> Self {
        let reasoning = reasoning.filter(|_| !matches!(tools, ToolFormat::Forced(_)));
        let calls = match tools {
            ToolFormat::None => Calls::None,
            ToolFormat::Hermes => Calls::Hermes(Hermes::new()),
            ToolFormat::Llama3Json => Calls::Llama3Json(Llama3Json::new()),
            ToolFormat::Mistral => Calls::Mistral(Mistral::new()),
            ToolFormat::Forced(forced) => Calls::Forced(ForcedReply::new(forced)),
        };
        Self {
            reasoning: reasoning.map(Reasoning::new),
            calls,
            sink: Sink::default(),
            reasoning_tokens: 0,
        }
    }

    /// Takes the text of the next token of the reply and returns the deltas that it completes.
    ///
    /// Only text that may still be the beginning of a tag or of a call is held back.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        let before = self.is_reasoning();
        for c in text.chars() {
            match &mut self.reasoning {
                Some(reasoning) if !reasoning.is_over() => {
                    let answer = reasoning.push(c, &mut self.sink);
                    self.calls.push(&answer, &mut self.sink);
                }
                _ => self.calls.push_char(c, &mut self.sink),
            }
        }
        self.reasoning_tokens += u64::from(before || self.is_reasoning());
        self.sink.take()
    }

    /// Returns the number of tokens so far that are reasoning, with its tags.
    pub fn reasoning_tokens(&self) -> u64 {
        self.reasoning_tokens
    }

    fn is_reasoning(&self) -> bool {
        self.reasoning.as_ref().is_some_and(Reasoning::is_inside)
    }

    /// Ends the reply and returns the text that was held back. This begins no call.
    pub fn end(mut self) -> Vec<Delta> {
        if let Some(reasoning) = self.reasoning {
            let answer = reasoning.end(&mut self.sink);
            self.calls.push(&answer, &mut self.sink);
        }
        self.calls.end(&mut self.sink);
        self.sink.take()
    }

    /// Returns the number of calls begun so far.
    pub fn calls(&self) -> usize {
        self.sink.calls()
    }
}

impl Calls {
    fn push(&mut self, text: &str, sink: &mut Sink) {
        for c in text.chars() {
            self.push_char(c, sink);
        }
    }

    fn push_char(&mut self, c: char, sink: &mut Sink) {
        match self {
            Self::None => sink.content_char(c),
            Self::Hermes(hermes) => hermes.push(c, sink),
            Self::Llama3Json(llama) => llama.push(c, sink),
            Self::Mistral(mistral) => mistral.push(c, sink),
            Self::Forced(forced) => forced.push(c, sink),
        }
    }

    fn end(self, sink: &mut Sink) {
        match self {
            Self::None | Self::Forced(_) => {}
            Self::Hermes(hermes) => hermes.end(sink),
            Self::Llama3Json(llama) => llama.end(sink),
            Self::Mistral(mistral) => mistral.end(sink),
        }
    }
}
