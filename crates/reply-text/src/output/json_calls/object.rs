//! One call as an object `{"name": .., "arguments": ..}`.
//!
//! `parameters` is an alias of `arguments`. The call begins when its name is known and its arguments
//! begin, or else at the end of the object.

use std::mem;

use super::{Arguments, DEEPEST, Outcome, Room};
use crate::output::json::{Scanner, Step, StringReader};
use crate::output::name::is_name;
use crate::output::sink::Sink;
use crate::output::tag::is_space;

/// Fields that a call without a tag may have.
const FIELDS: [&str; 5] = ["name", "arguments", "parameters", "type", "id"];

/// Parser of one call.
pub(in crate::output) struct CallObject {
    room: Room,
    /// True if nothing but the object itself says that it is a call.
    untagged: bool,
    state: State,
    /// Text so far; empty once the call has begun.
    held: String,
    name: Option<String>,
    /// Arguments read before the name was known.
    early: Option<String>,
    begun: bool,
}

enum State {
    Start,
    KeyOrEnd,
    Key,
    InKey(StringReader, String),
    Colon(Field),
    Value(Field),
    InName(StringReader, String),
    InArguments(Arguments),
    InOther(Scanner),
    After,
}

#[derive(Clone, Copy)]
enum Field {
    Name,
    Arguments,
    Other,
}

impl CallObject {
    /// Creates the parser of a call that a tag announces. Whitespace may precede it.
    pub(in crate::output) fn new() -> Self {
        Self {
            room: Room::new(),
            untagged: false,
            state: State::Start,
            held: String::new(),
            name: None,
            early: None,
            begun: false,
        }
    }

    /// Creates the parser of a call without a tag. It must have arguments and no other fields than
    /// those of calls, because other JSON is an answer.
    pub(in crate::output) fn untagged() -> Self {
        Self { untagged: true, ..Self::new() }
    }

    /// Returns true if the call was told to the client.
    pub(in crate::output) fn begun(&self) -> bool {
        self.begun
    }

    /// Returns the text that is content if the call fails here.
    pub(in crate::output) fn text(&self) -> &str {
        &self.held
    }

    /// Takes a character.
    pub(in crate::output) fn push(&mut self, c: char, sink: &mut Sink) -> Outcome {
        if !self.room.take(c) {
            return Outcome::Failed;
        }
        let outcome = self.step(c, sink);
        if self.begun {
            self.held = String::new();
        } else if outcome == Outcome::More {
            self.held.push(c);
        }
        outcome
    }

    fn step(&mut self, c: char, sink: &mut Sink) -> Outcome {
        match mem::replace(&mut self.state, State::After) {
            State::InKey(reader, key) => self.key(reader, key, c),
            State::InName(reader, name) => self.name(reader, name, c),
            State::InArguments(arguments) => self.arguments(arguments, c, sink),
            State::InOther(mut scanner) => match scanner.push(c) {
                Step::More => self.go(State::InOther(scanner)),
                Step::Last => Outcome::More,
                Step::Past => self.after(c, sink),
                Step::Bad => Outcome::Failed,
            },
            state @ (State::Start
            | State::KeyOrEnd
            | State::Key
            | State::Colon(_)
            | State::Value(_)
            | State::After)
                if is_space(c) =>
            {
                self.go(state)
            }
            State::Start if c == '{' => self.go(State::KeyOrEnd),
            State::KeyOrEnd if c == '}' => self.end(sink),
            State::KeyOrEnd | State::Key if c == '"' => {
                self.go(State::InKey(StringReader::default(), String::new()))
            }
            State::Colon(field) if c == ':' => self.go(State::Value(field)),
            State::Value(Field::Name) if c == '"' => {
                self.go(State::InName(StringReader::default(), String::new()))
            }
            State::Value(Field::Arguments) => self.arguments(Arguments::new(), c, sink),
            State::Value(Field::Other) => {
                self.state = State::InOther(Scanner::new(DEEPEST - 1));
                self.step(c, sink)
            }
            State::After => self.after(c, sink),
            State::Start
            | State::KeyOrEnd
            | State::Key
            | State::Colon(_)
            | State::Value(Field::Name) => Outcome::Failed,
        }
    }

    fn go(&mut self, state: State) -> Outcome {
        self.state = state;
        Outcome::More
    }

    fn key(&mut self, mut reader: StringReader, mut key: String, c: char) -> Outcome {
        match reader.push(c, |c| key.push(c)) {
            Step::More => self.go(State::InKey(reader, key)),
            Step::Last if self.untagged && !self.begun && !FIELDS.contains(&key.as_str()) => {
                Outcome::Failed
            }
            Step::Last => self.go(State::Colon(self.field(&key))),
            Step::Past | Step::Bad => Outcome::Failed,
        }
    }

    /// Returns the field that a key names. The first of several counts.
    fn field(&self, key: &str) -> Field {
        match key {
            "name" if self.name.is_none() => Field::Name,
            "arguments" | "parameters" if !self.begun && self.early.is_none() => Field::Arguments,
            _ => Field::Other,
        }
    }

    fn name(&mut self, mut reader: StringReader, mut name: String, c: char) -> Outcome {
        match reader.push(c, |c| name.push(c)) {
            Step::More => self.go(State::InName(reader, name)),
            Step::Last if is_name(&name) => {
                self.name = Some(name);
                self.go(State::After)
            }
            Step::Last | Step::Past | Step::Bad => Outcome::Failed,
        }
    }

    fn arguments(&mut self, mut arguments: Arguments, c: char, sink: &mut Sink) -> Outcome {
        let mut told = String::new();
        let step = arguments.push(c, &mut told);
        if step == Step::Bad {
            return Outcome::Failed;
        }
        self.begin(sink);
        if self.begun {
            sink.arguments(&told);
        } else {
            self.early.get_or_insert_default().push_str(&told);
        }
        match step {
            Step::More => self.go(State::InArguments(arguments)),
            Step::Past => self.after(c, sink),
            Step::Last | Step::Bad => Outcome::More,
        }
    }

    fn after(&mut self, c: char, sink: &mut Sink) -> Outcome {
        match c {
            ',' => self.go(State::Key),
            '}' => self.end(sink),
            // The character after a number.
            _ if is_space(c) => self.go(State::After),
            _ => Outcome::Failed,
        }
    }

    /// Begins the call if its name is known.
    fn begin(&mut self, sink: &mut Sink) {
        if let Some(name) = &self.name
            && !self.begun
        {
            sink.begin(name);
            self.begun = true;
        }
    }

    fn end(&mut self, sink: &mut Sink) -> Outcome {
        if self.begun {
            return Outcome::Done;
        }
        if self.name.is_none() || self.untagged && self.early.is_none() {
            return Outcome::Failed;
        }
        self.begin(sink);
        sink.arguments(self.early.as_deref().unwrap_or("{}"));
        Outcome::Done
    }
}
