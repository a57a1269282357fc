//! Several calls as a JSON array of objects.

use super::{CallObject, Outcome};
use crate::output::sink::Sink;
use crate::output::tag::is_space;

/// Parser of an array of calls.
pub(in crate::output) struct CallList {
    state: State,
    /// Text since the last call that began.
    held: String,
    begun: bool,
}

enum State {
    Start,
    First,
    Call(CallObject),
    Between,
    Next,
}

impl CallList {
    /// Creates the parser of an array. Whitespace may precede it.
    pub(in crate::output) fn new() -> Self {
        Self { state: State::Start, held: String::new(), begun: false }
    }

    /// Returns true if a call was told to the client.
    pub(in crate::output) fn begun(&self) -> bool {
        self.begun
    }

    /// Returns the text that is content if the list fails here.
    pub(in crate::output) fn text(&self) -> String {
        match &self.state {
            State::Call(call) => format!("{}{}", self.held, call.text()),
            _ => self.held.clone(),
        }
    }

    /// Returns the text that is content if the reply ends here: no separators after a call.
    pub(in crate::output) fn text_at_end(&self) -> String {
        if self.begun && !matches!(self.state, State::Call(_)) {
            return String::new();
        }
        self.text()
    }

    /// Takes a character.
    pub(in crate::output) fn push(&mut self, c: char, sink: &mut Sink) -> Outcome {
        let next = match &mut self.state {
            State::Call(call) => {
                let outcome = call.push(c, sink);
                if call.begun() {
                    self.begun = true;
                    self.held.clear();
                }
                if outcome == Outcome::Done {
                    self.state = State::Between;
                    return Outcome::More;
                }
                return outcome;
            }
            _ if is_space(c) => None,
            State::Start if c == '[' => Some(State::First),
            State::First | State::Next if c == '{' => {
                let mut call = CallObject::new();
                let outcome = call.push(c, sink);
                self.state = State::Call(call);
                return outcome;
            }
            State::Between if c == ',' => Some(State::Next),
            State::Between if c == ']' => return Outcome::Done,
            State::Start | State::First | State::Between | State::Next => return Outcome::Failed,
        };
        self.held.push(c);
        if let Some(next) = next {
            self.state = next;
        }
        Outcome::More
    }
}
