//! Incremental validation of JSON (RFC 8259) by a state machine, without recursion.

use std::mem;

use super::tag::is_space;

/// Consequence of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The value goes on.
    More,
    /// The value ends with this character.
    Last,
    /// The value ended before this character, which is not part of it. Only numbers end so.
    Past,
    /// This character cannot follow.
    Bad,
}

/// Reader of a JSON string after its opening quote.
#[derive(Default)]
pub(super) struct StringReader {
    state: StringState,
    /// First half of a surrogate pair.
    high: Option<u32>,
}

#[derive(Clone, Copy, Default)]
enum StringState {
    #[default]
    Plain,
    Escape,
    /// Within `\uXXXX`: number of digits read, and their value.
    Unicode(u8, u32),
}

impl StringReader {
    /// Takes a character. The characters that it completes go to `decoded`; half of a surrogate
    /// pair is U+FFFD.
    pub(super) fn push(&mut self, c: char, mut decoded: impl FnMut(char)) -> Step {
        match self.state {
            StringState::Plain => match c {
                '\\' => self.state = StringState::Escape,
                '"' => {
                    self.end_pair(&mut decoded);
                    return Step::Last;
                }
                '\0'..='\x1f' => return Step::Bad,
                _ => self.tell(c, &mut decoded),
            },
            StringState::Escape => {
                self.state = StringState::Plain;
                match c {
                    '"' | '\\' | '/' => self.tell(c, &mut decoded),
                    'b' => self.tell('\x08', &mut decoded),
                    'f' => self.tell('\x0c', &mut decoded),
                    'n' => self.tell('\n', &mut decoded),
                    'r' => self.tell('\r', &mut decoded),
                    't' => self.tell('\t', &mut decoded),
                    'u' => self.state = StringState::Unicode(0, 0),
                    _ => return Step::Bad,
                }
            }
            StringState::Unicode(digits, value) => {
                let Some(digit) = c.to_digit(16) else { return Step::Bad };
                let value = value << 4 | digit;
                if digits < 3 {
                    self.state = StringState::Unicode(digits + 1, value);
                } else {
                    self.state = StringState::Plain;
                    self.unit(value, &mut decoded);
                }
            }
        }
        Step::More
    }

    /// Takes a UTF-16 code unit.
    fn unit(&mut self, unit: u32, decoded: &mut impl FnMut(char)) {
        match (unit, self.high) {
            (0xdc00..=0xdfff, Some(high)) => {
                self.high = None;
                let scalar = 0x10000 + ((high - 0xd800) << 10) + (unit - 0xdc00);
                decoded(char::from_u32(scalar).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            (0xd800..=0xdbff, _) => {
                self.end_pair(decoded);
                self.high = Some(unit);
            }
            _ => {
                self.tell(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER), decoded);
            }
        }
    }

    fn tell(&mut self, c: char, decoded: &mut impl FnMut(char)) {
        self.end_pair(decoded);
        decoded(c);
    }

    fn end_pair(&mut self, decoded: &mut impl FnMut(char)) {
        if self.high.take().is_some() {
            decoded(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Scanner of one JSON value.
pub(super) struct Scanner {
    /// Arrays and objects that are open, from the outermost.
    open: Vec<Container>,
    /// Maximum length of `open`.
    deepest: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Container {
    Array,
    Object,
}

enum State {
    Value,
    /// After `[`.
    ValueOrEnd,
    /// After `{`.
    KeyOrEnd,
    Key,
    InKey(StringReader),
    Colon,
    InString(StringReader),
    /// Rest of `true`, `false` or `null`.
    Literal(&'static str),
    Number(Number),
    /// After a value within a container.
    After,
}

/// Part of a number that was read last.
#[derive(Clone, Copy)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

impl Scanner {
    /// Creates the scanner of a value in which at most `deepest` arrays and objects are nested.
    pub(super) fn new(deepest: usize) -> Self {
        Self { open: Vec::new(), deepest, state: State::Value }
    }

    /// Takes a character. After another step than [`Step::More`] the scanner is used up.
    pub(super) fn push(&mut self, c: char) -> Step {
        // A string stays in its state, the others are replaced.
        match &mut self.state {
            State::InKey(reader) => {
                let step = reader.push(c, |_| ());
                return if step == Step::Last { self.go(State::Colon) } else { step };
            }
            State::InString(reader) => {
                let step = reader.push(c, |_| ());
                return if step == Step::Last { self.value_ends() } else { step };
            }
            _ => {}
        }
        match mem::replace(&mut self.state, State::After) {
            State::Number(number) => self.number(number, c),
            State::Literal(rest) => match rest.strip_prefix(c) {
                Some("") => self.value_ends(),
                Some(rest) => self.go(State::Literal(rest)),
                None => Step::Bad,
            },
            state if is_space(c) => self.go(state),
            State::Value => self.value(c),
            State::ValueOrEnd if c == ']' => self.close(Container::Array),
            State::ValueOrEnd => self.value(c),
            State::KeyOrEnd if c == '}' => self.close(Container::Object),
            State::KeyOrEnd | State::Key if c == '"' => {
                self.go(State::InKey(StringReader::default()))
            }
            State::Colon if c == ':' => self.go(State::Value),
            State::After => self.after(c),
            State::KeyOrEnd | State::Key | State::Colon | State::InKey(_) | State::InString(_) => {
                Step::Bad
            }
        }
    }

    fn go(&mut self, state: State) -> Step {
        self.state = state;
        Step::More
    }

    fn value(&mut self, c: char) -> Step {
        match c {
            '{' => self.enter(Container::Object, State::KeyOrEnd),
            '[' => self.enter(Container::Array, State::ValueOrEnd),
            '"' => self.go(State::InString(StringReader::default())),
            't' => self.go(State::Literal("rue")),
            'f' => self.go(State::Literal("alse")),
            'n' => self.go(State::Literal("ull")),
            '-' => self.go(State::Number(Number::Minus)),
            '0' => self.go(State::Number(Number::Zero)),
            '1'..='9' => self.go(State::Number(Number::Whole)),
            _ => Step::Bad,
        }
    }

    fn enter(&mut self, container: Container, state: State) -> Step {
        if self.open.len() >= self.deepest {
            return Step::Bad;
        }
        self.open.push(container);
        self.go(state)
    }

    fn number(&mut self, number: Number, c: char) -> Step {
        if let Some(next) = number.next(c) {
            return self.go(State::Number(next));
        }
        if !number.may_end() {
            return Step::Bad;
        }
        if self.open.is_empty() {
            return Step::Past;
        }
        if is_space(c) { self.go(State::After) } else { self.after(c) }
    }

    fn after(&mut self, c: char) -> Step {
        match (c, self.open.last()) {
            (',', Some(Container::Array)) => self.go(State::Value),
            (',', Some(Container::Object)) => self.go(State::Key),
            (']', _) => self.close(Container::Array),
            ('}', _) => self.close(Container::Object),
            _ => Step::Bad,
        }
    }

    fn close(&mut self, container: Container) -> Step {
        if self.open.pop() == Some(container) { self.value_ends() } else { Step::Bad }
    }

    fn value_ends(&mut self) -> Step {
        if self.open.is_empty() { Step::Last } else { self.go(State::After) }
    }
}

impl Number {
    fn next(self, c: char) -> Option<Self> {
        Some(match (self, c) {
            (Self::Minus, '0') => Self::Zero,
            (Self::Minus, '1'..='9') | (Self::Whole, '0'..='9') => Self::Whole,
            (Self::Zero | Self::Whole, '.') => Self::Point,
            (Self::Point | Self::Fraction, '0'..='9') => Self::Fraction,
            (Self::Zero | Self::Whole | Self::Fraction, 'e' | 'E') => Self::Exponent,
            (Self::Exponent, '+' | '-') => Self::Sign,
            (Self::Exponent | Self::Sign | Self::Power, '0'..='9') => Self::Power,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Whole | Self::Fraction | Self::Power)
    }
}

#[cfg(test)]
mod tests;
