//! Calls written as JSON: one object, a list of objects, or arguments alone.
//!
//! Each parser takes characters until it says [`Outcome::Done`] or [`Outcome::Failed`]. The text of
//! a call that has not begun is kept, and is content if the call fails.

mod list;
mod object;

pub(super) use self::list::CallList;
pub(super) use self::object::CallObject;
use super::json::{Scanner, Step, StringReader};
use super::sink::Sink;

/// Maximum number of arrays and objects that are nested in a call.
pub(super) const DEEPEST: usize = 128;

/// Maximum size of a call's JSON, in bytes.
pub(super) const MAX_CALL_BYTES: usize = 1 << 20;

/// Consequence of a character for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The call goes on.
    More,
    /// The call ends with this character.
    Done,
    /// The text is no call. This character was not taken.
    Failed,
}

/// Number of bytes that a call may still have.
struct Room(usize);

impl Room {
    fn new() -> Self {
        Self(MAX_CALL_BYTES)
    }

    /// Takes the bytes of a character. Returns false if there is no room for them.
    fn take(&mut self, c: char) -> bool {
        let left = self.0.checked_sub(c.len_utf8());
        self.0 = left.unwrap_or_default();
        left.is_some()
    }
}

/// Call whose name is known and whose JSON is the arguments alone. It has begun.
pub(super) struct BareCall {
    room: Room,
    scanner: Scanner,
}

impl BareCall {
    /// Begins a call of this function.
    pub(super) fn begin(name: &str, sink: &mut Sink) -> Self {
        sink.begin(name);
        Self { room: Room::new(), scanner: Scanner::new(DEEPEST) }
    }

    /// Takes a character of the arguments.
    pub(super) fn push(&mut self, c: char, sink: &mut Sink) -> Outcome {
        if !self.room.take(c) {
            return Outcome::Failed;
        }
        let step = self.scanner.push(c);
        if matches!(step, Step::More | Step::Last) {
            sink.arguments(c.encode_utf8(&mut [0; 4]));
        }
        match step {
            Step::More => Outcome::More,
            Step::Last => Outcome::Done,
            Step::Past | Step::Bad => Outcome::Failed,
        }
    }
}

/// Value of `arguments` within a call.
///
/// A JSON string is decoded, because its contents are the arguments. `null` and the empty string
/// are `{}`.
struct Arguments {
    scanner: Scanner,
    form: Form,
}

enum Form {
    /// Nothing was read yet.
    Unknown,
    Raw,
    Text {
        reader: StringReader,
        empty: bool,
    },
    Null,
}

impl Arguments {
    /// Creates the arguments of an object, which itself counts as one nesting.
    fn new() -> Self {
        Self { scanner: Scanner::new(DEEPEST - 1), form: Form::Unknown }
    }

    /// Takes a character, the first of which is no whitespace. Appends the arguments' text that it
    /// completes to `out`.
    fn push(&mut self, c: char, out: &mut String) -> Step {
        let step = self.scanner.push(c);
        if matches!(step, Step::Past | Step::Bad) {
            return step;
        }
        match (&mut self.form, c) {
            (Form::Unknown, '"') => {
                self.form = Form::Text { reader: StringReader::default(), empty: true };
            }
            (Form::Unknown, 'n') => self.form = Form::Null,
            (Form::Unknown, _) => {
                self.form = Form::Raw;
                out.push(c);
            }
            (Form::Raw, _) => out.push(c),
            (Form::Text { reader, empty }, _) => {
                reader.push(c, |c| {
                    *empty = false;
                    out.push(c);
                });
            }
            (Form::Null, _) => {}
        }
        if step == Step::Last && matches!(self.form, Form::Null | Form::Text { empty: true, .. }) {
            out.push_str("{}");
        }
        step
    }
}
