//! Calls as the whole reply, `{"name": .., "parameters": ..}`, as Llama 3 writes them.
//!
//! `<|python_tag|>` may precede the first call; further calls follow after whitespace or `;`. A
//! reply that begins in any other way is content, and so is JSON that is no call.

use std::mem;

use super::json_calls::{CallObject, Outcome};
use super::sink::Sink;
use super::tag::is_space;

const TAG: &str = "<|python_tag|>";

/// Parser of a reply.
pub(super) struct Llama3Json {
    state: State,
    /// True after the tag.
    tagged: bool,
    /// Text since the beginning or the last call, up to the next call.
    held: String,
}

enum State {
    /// Before the first call; number of bytes of the tag that were read.
    Start(usize),
    Call(CallObject),
    Between,
    Content,
}

impl Llama3Json {
    /// Creates the parser.
    pub(super) fn new() -> Self {
        Self { state: State::Start(0), tagged: false, held: String::new() }
    }

    /// Takes a character.
    pub(super) fn push(&mut self, c: char, sink: &mut Sink) {
        match &mut self.state {
            State::Content => sink.content_char(c),
            State::Start(read) => {
                if *read == 0 && is_space(c) {
                    self.held.push(c);
                } else if *read == 0 && c == '{' {
                    self.call(c, sink);
                } else if TAG.get(*read..).is_some_and(|rest| rest.starts_with(c)) {
                    *read += c.len_utf8();
                    self.held.push(c);
                    if *read == TAG.len() {
                        self.tagged = true;
                        self.state = State::Call(CallObject::new());
                    }
                } else {
                    self.no_call(c, sink);
                }
            }
            State::Call(call) => match call.push(c, sink) {
                Outcome::More => {}
                Outcome::Done => {
                    self.held.clear();
                    self.state = State::Between;
                }
                Outcome::Failed => self.no_call(c, sink),
            },
            State::Between if c == '{' => self.call(c, sink),
            State::Between if c == ';' || is_space(c) => self.held.push(c),
            State::Between => self.no_call(c, sink),
        }
    }

    /// Ends the reply.
    pub(super) fn end(mut self, sink: &mut Sink) {
        if !matches!(self.state, State::Between) {
            self.tell_held(sink);
        }
    }

    fn call(&mut self, c: char, sink: &mut Sink) {
        let mut call = if self.tagged { CallObject::new() } else { CallObject::untagged() };
        // The brace fits always.
        call.push(c, sink);
        self.state = State::Call(call);
    }

    fn no_call(&mut self, c: char, sink: &mut Sink) {
        self.tell_held(sink);
        self.state = State::Content;
        sink.content_char(c);
    }

    /// Tells the text that was held back as content, unless its call has begun.
    fn tell_held(&mut self, sink: &mut Sink) {
        let held = mem::take(&mut self.held);
        match &self.state {
            State::Call(call) if call.begun() => {}
            State::Call(call) => {
                sink.content(&held);
                sink.content(call.text());
            }
            State::Start(_) | State::Between | State::Content => sink.content(&held),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::output::ToolFormat;
    use crate::output::testing::check;

    #[track_caller]
    fn check_llama(text: &str, content: &str, calls: &[(&str, &str)]) {
        check(&ToolFormat::Llama3Json, text, content, calls);
    }

    #[test]
    fn the_whole_reply_is_a_call() {
        check_llama("{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "", &[("f", "{\"a\": 1}")]);
        check_llama("\n{\"name\": \"f\", \"arguments\": {}}\n", "", &[("f", "{}")]);
        check_llama(
            "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": \"b\"}}",
            "",
            &[("f", "{\"a\": \"b\"}")],
        );
    }

    #[test]
    fn several_calls_are_separated() {
        let call = "{\"name\": \"f\", \"parameters\": {}}";
        for between in ["; ", "\n", ";", ""] {
            check_llama(&[call, call].join(between), "", &[("f", "{}"), ("f", "{}")]);
        }
    }

    #[test]
    fn a_tag_may_come_first() {
        check_llama("<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "", &[("f", "{}")]);
        check_llama(
            " <|python_tag|> {\"name\": \"f\"}; {\"name\": \"g\"};",
            "",
            &[("f", "{}"), ("g", "{}")],
        );
    }

    #[test]
    fn any_other_reply_is_content() {
        for text in [
            "",
            " ",
            "Hello {\"name\": \"f\", \"parameters\": {}}",
            "{\"city\": \"Paris\", \"name\": \"f\", \"parameters\": {}}",
            "{\"name\": \"Bear\", \"age\": 7}",
            "{\"name\": \"Bear\"}",
            "{\"name\": \"f\", \"param",
            "[{\"name\": \"f\", \"parameters\": {}}]",
            "<|python_tag|>print(1)",
            "<|python_tag|>{\"a\": 1}",
            "<|python_tag|>",
            "<|python",
            "<<|python_tag|>{\"name\": \"f\"}",
            "; {\"name\": \"f\", \"parameters\": {}}",
        ] {
            check_llama(text, text, &[]);
        }
    }

    #[test]
    fn the_text_after_a_call_is_content_to_the_end() {
        let call = "{\"name\": \"f\", \"parameters\": {}}";
        check_llama(&format!("{call}; or {call}"), &format!("; or {call}"), &[("f", "{}")]);
        check_llama(&format!("{call};{{\"a\": 1}}"), ";{\"a\": 1}", &[("f", "{}")]);
        check_llama("{\"name\": \"f\", \"parameters\": {?} x", "?} x", &[("f", "{")]);
    }
}
