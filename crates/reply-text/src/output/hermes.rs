//! Calls within `<tool_call>` and `</tool_call>`, as Hermes and Qwen write them.
//!
//! Text before, between and after the calls is content, without the whitespace directly around
//! them. A call without its closing tag is a call if its JSON is complete.

use super::json_calls::{CallObject, Outcome};
use super::sink::Sink;
use super::tag::{Content, Tag, is_space};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Parser of a reply.
pub(super) struct Hermes {
    content: Content,
    state: State,
}

enum State {
    Content,
    Call {
        /// Opening tag with the whitespace before it.
        tag: String,
        call: CallObject,
    },
    /// After the JSON of a call.
    Close(Tag),
}

impl Hermes {
    /// Creates the parser.
    pub(super) fn new() -> Self {
        Self { content: Content::new(OPEN), state: State::Content }
    }

    /// Takes a character.
    pub(super) fn push(&mut self, c: char, sink: &mut Sink) {
        match &mut self.state {
            State::Content => self.content(c, sink),
            State::Call { tag, call } => match call.push(c, sink) {
                Outcome::More => {}
                Outcome::Done => self.state = State::Close(Tag::new(CLOSE)),
                Outcome::Failed => {
                    tell(tag, call, sink);
                    self.state = State::Content;
                    self.content(c, sink);
                }
            },
            State::Close(tag) => {
                if tag.held().is_empty() && is_space(c) {
                    return;
                }
                let mut passed = String::new();
                let closed = tag.push(c, |c| passed.push(c));
                if closed || !passed.is_empty() {
                    passed.push_str(tag.held());
                    self.state = State::Content;
                    self.content.follows_call();
                }
                // A text that begins like the closing tag does not contain the opening tag.
                for c in passed.chars() {
                    self.content(c, sink);
                }
            }
        }
    }

    /// Ends the reply.
    pub(super) fn end(self, sink: &mut Sink) {
        match &self.state {
            State::Content => self.content.end(sink),
            State::Call { tag, call } => tell(tag, call, sink),
            State::Close(tag) => sink.content(tag.held()),
        }
    }

    fn content(&mut self, c: char, sink: &mut Sink) {
        if let Some(tag) = self.content.push(c, sink) {
            self.state = State::Call { tag, call: CallObject::new() };
        }
    }
}

/// Tells the text of a call that failed as content.
fn tell(tag: &str, call: &CallObject, sink: &mut Sink) {
    if !call.begun() {
        sink.content(tag);
        sink.content(call.text());
    }
}

#[cfg(test)]
mod tests;
