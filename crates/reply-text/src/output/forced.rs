//! Replies that consist of tool calls alone, because the worker's grammar allows nothing else.
//!
//! Text that is no call is content nevertheless, for a worker that does not follow the grammar. The end of
//! the reply may cut a call before it begins: that text is the grammar's, and is dropped.

use super::Forced;
use super::json_calls::{BareCall, CallList, CallObject, Outcome};
use super::sink::Sink;
use super::tag::is_space;

/// Parser of a reply.
pub(super) struct ForcedReply {
    state: State,
}

enum State {
    /// Before the arguments of the named function.
    Start {
        name: String,
        /// Whitespace so far.
        space: String,
    },
    Arguments(BareCall),
    List(CallList),
    One(CallObject),
    /// After the JSON, where whitespace is dropped.
    After,
    Content,
}

impl ForcedReply {
    /// Creates the parser.
    pub(super) fn new(forced: Forced) -> Self {
        let state = match forced {
            Forced::Named { name } => State::Start { name, space: String::new() },
            Forced::Required => State::List(CallList::new()),
            Forced::RequiredOne => State::One(CallObject::new()),
        };
        Self { state }
    }

    /// Takes a character.
    pub(super) fn push(&mut self, c: char, sink: &mut Sink) {
        let outcome = match &mut self.state {
            State::Start { space, .. } if is_space(c) => {
                space.push(c);
                Outcome::More
            }
            State::Start { name, .. } if c == '{' => {
                let mut call = BareCall::begin(name, sink);
                let outcome = call.push(c, sink);
                self.state = State::Arguments(call);
                outcome
            }
            State::Arguments(call) => call.push(c, sink),
            State::List(list) => list.push(c, sink),
            State::One(call) => call.push(c, sink),
            State::After if is_space(c) => Outcome::More,
            State::Start { .. } | State::After | State::Content => Outcome::Failed,
        };
        match outcome {
            Outcome::More => {}
            Outcome::Done => self.state = State::After,
            Outcome::Failed => {
                self.tell(sink);
                self.state = State::Content;
                sink.content_char(c);
            }
        }
    }

    /// Tells the text that was held back as content.
    fn tell(&self, sink: &mut Sink) {
        match &self.state {
            State::Start { space, .. } => sink.content(space),
            State::List(list) => sink.content(&list.text()),
            State::One(call) => sink.content(call.text()),
            State::Arguments(_) | State::After | State::Content => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::output::testing::check;
    use crate::output::{Forced, ToolFormat};

    #[track_caller]
    fn check_forced(forced: Forced, text: &str, content: &str, calls: &[(&str, &str)]) {
        check(&ToolFormat::Forced(forced), text, content, calls);
    }

    fn named() -> Forced {
        Forced::Named { name: "f".to_owned() }
    }

    #[test]
    fn the_arguments_of_a_named_function_are_the_whole_reply() {
        check_forced(named(), r#"{"a":{"b":"}"}}"#, "", &[("f", r#"{"a":{"b":"}"}}"#)]);
        check_forced(named(), " \n{ } \n", "", &[("f", "{ }")]);
        check_forced(named(), "{\"a\":", "", &[("f", "{\"a\":")]);
    }

    #[test]
    fn a_required_call_is_in_a_list() {
        let two = r#"[{"name":"f","arguments":{"a":1}},{"name":"g","arguments":{}}]"#;
        check_forced(Forced::Required, two, "", &[("f", r#"{"a":1}"#), ("g", "{}")]);
        check_forced(Forced::Required, r#"[{"name":"f","arguments":{}},"#, "", &[("f", "{}")]);
        for cut in ["[", " [", r#"[{"na"#, r#"[{"name":"f"#, r#"[{"name":"f","arguments""#] {
            check_forced(Forced::Required, cut, "", &[]);
        }
        let second = r#"[{"name":"f","arguments":{}},{"name"#;
        check_forced(Forced::Required, second, "", &[("f", "{}")]);
    }

    #[test]
    fn a_single_required_call_is_an_object() {
        let one = r#"{"name":"f","arguments":{"a":1}}"#;
        check_forced(Forced::RequiredOne, one, "", &[("f", r#"{"a":1}"#)]);
        check_forced(Forced::RequiredOne, "{\"name\":", "", &[]);
    }

    #[test]
    fn a_reply_that_is_not_what_the_grammar_allows_is_content() {
        for forced in [named(), Forced::Required, Forced::RequiredOne] {
            for text in ["", " Hello.\n", "1", "\"f\""] {
                check_forced(forced.clone(), text, text, &[]);
            }
        }
        check_forced(named(), "{} and\n", "and\n", &[("f", "{}")]);
        check_forced(named(), "{]} ", "]} ", &[("f", "{")]);
    }
}
