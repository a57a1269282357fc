//! Parser for AMQP frames, byte by byte where that is needed.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::Bodies;

/// Maximum nesting depth of tables and arrays. The broker's own `x-death` has three levels.
pub(crate) const DEEPEST: usize = 16;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;

/// Frame without content, which shows that the peer is alive.
const HEARTBEAT: [u8; 8] = [8, 0, 0, 0, 0, 0, 0, 0xce];

/// Methods with a table that only clients send: `connection.start-ok`; declare, bind and unbind of
/// `exchange` and of `queue`; `basic.consume`.
const CLIENTS: [(u64, u64); 8] =
    [(10, 11), (40, 10), (40, 30), (40, 40), (50, 10), (50, 20), (50, 50), (60, 20)];

/// Parser of frames by AMQP 0-9-1, 4.2.3 to 4.2.6, with RabbitMQ's letters for field types.
#[derive(Debug)]
pub(crate) struct Reader {
    bodies: Arc<Bodies>,
    state: State,
    /// Number of bytes of the frame still to come, including the end mark.
    left: u64,
    /// Channel of the frame.
    channel: u16,
    /// True if the frame is withheld from lapin.
    drops: bool,
    /// Number of short-string properties still to come before the headers.
    before: u32,
    /// Open tables and arrays, the outermost first.
    open: Vec<Open>,
    /// Tags of deliveries whose content header is still to come, by channel.
    tags: HashMap<u16, u64>,
    /// Number of body bytes still to be dropped, by channel.
    dropping: HashMap<u16, u64>,
}

/// Open table or array.
#[derive(Clone, Copy, Debug)]
struct Open {
    is_table: bool,
    /// Value of [`Reader::left`] at which it ends.
    until: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Type letter of a value.
    Letter,
    /// Number of which this many bytes are still to come; `so_far` is the value read so far.
    Number {
        bytes: u8,
        so_far: u64,
        of: Number,
    },
    Skip(u64, After),
}

#[derive(Clone, Copy, Debug)]
enum Number {
    /// Type, channel and size of the frame.
    Frame,
    /// Class and id of a method.
    Method,
    /// Length of the consumer tag.
    Consumer,
    /// Delivery tag.
    Tag,
    /// Class and weight of a content header.
    Class,
    /// Size of the body.
    Body,
    /// Property flags.
    Flags,
    /// Length of a property before the headers.
    Before,
    /// Length of an entry's name.
    Name,
    /// Length of a string or byte array.
    Text,
    /// Length of a table or an array.
    Nested { is_table: bool },
}

#[derive(Clone, Copy, Debug)]
enum After {
    Frame,
    /// Version in `connection.start`.
    Version,
    Consumer,
    /// Property before the headers.
    Before,
    Name,
    Value,
}

impl Number {
    /// Returns true if the number may be changed and is therefore withheld until it is complete.
    fn is_kept_back(self) -> bool {
        matches!(self, Self::Frame | Self::Body)
    }
}

impl Reader {
    pub(crate) fn new(bodies: Arc<Bodies>) -> Self {
        Self {
            bodies,
            state: FRAME,
            left: 0,
            channel: 0,
            drops: false,
            before: 0,
            open: Vec::new(),
            tags: HashMap::new(),
            dropping: HashMap::new(),
        }
    }

    /// Returns true if the next byte begins a frame.
    #[cfg(test)]
    pub(super) fn is_between_frames(&self) -> bool {
        matches!(self.state, State::Number { bytes: 7, of: Number::Frame, .. })
    }

    /// Parses `bytes` and appends to `passed` what lapin may see of them.
    ///
    /// # Errors
    ///
    /// Returns an error if the broker sent a method that only clients send.
    pub(crate) fn read(&mut self, mut bytes: &[u8], passed: &mut Vec<u8>) -> io::Result<()> {
        while let Some(first) = bytes.first() {
            let taken = match self.state {
                State::Skip(count, after) => {
                    let taken = usize::try_from(count).unwrap_or(usize::MAX).min(bytes.len());
                    if !self.drops {
                        passed.extend_from_slice(&bytes[..taken]);
                    }
                    self.left = self.left.saturating_sub(taken as u64);
                    self.skip(count.saturating_sub(taken as u64), after, passed);
                    taken
                }
                state => {
                    self.byte(state, *first, passed)?;
                    1
                }
            };
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    fn byte(&mut self, state: State, byte: u8, passed: &mut Vec<u8>) -> io::Result<()> {
        // While the header of a frame is read, `left` is already 0.
        self.left = self.left.saturating_sub(1);
        match state {
            State::Letter => self.letter(byte, passed),
            State::Number { bytes, so_far, of } => {
                if !of.is_kept_back() {
                    passed.push(byte);
                }
                let so_far = so_far << 8 | u64::from(byte);
                match bytes.saturating_sub(1) {
                    0 => self.has(of, so_far, passed)?,
                    bytes => self.state = State::Number { bytes, so_far, of },
                }
            }
            State::Skip(..) => {}
        }
        Ok(())
    }

    /// Expects a number next, unless the frame is too short for it.
    fn number(&mut self, bytes: u8, of: Number) {
        if u64::from(bytes) > self.room() {
            return self.give_up();
        }
        self.state = State::Number { bytes, so_far: 0, of };
    }

    /// Handles a complete number.
    fn has(&mut self, what: Number, number: u64, passed: &mut Vec<u8>) -> io::Result<()> {
        match what {
            Number::Frame => self.frame(number, passed),
            Number::Method => self.method(number >> 16, number & 0xffff)?,
            Number::Consumer => self.skip(number, After::Consumer, passed),
            Number::Tag => {
                self.tags.insert(self.channel, number);
                self.give_up();
            }
            Number::Class => self.number(8, Number::Body),
            Number::Body => {
                let tag = self.tags.remove(&self.channel);
                let drops = self.bodies.drops(self.channel, tag, number);
                if drops {
                    self.dropping.insert(self.channel, number);
                }
                let told = if drops { 0 } else { number };
                passed.extend_from_slice(&told.to_be_bytes());
                self.number(2, Number::Flags);
            }
            Number::Flags => {
                const TYPE_AND_ENCODING: u64 = 0b11 << 14;
                const HEADERS: u64 = 1 << 13;
                self.before = (number & TYPE_AND_ENCODING).count_ones();
                if number & HEADERS == 0 { self.give_up() } else { self.property() }
            }
            Number::Before => self.skip(number, After::Before, passed),
            Number::Name => self.skip(number, After::Name, passed),
            Number::Text => self.skip(number, After::Value, passed),
            // The length exceeds the enclosing table or frame, so lapin cannot parse it either.
            Number::Nested { .. } if number > self.room() => self.give_up(),
            Number::Nested { is_table } => {
                self.open.push(Open { is_table, until: self.left - number });
                self.value();
            }
        }
        Ok(())
    }

    /// Handles the header of a frame.
    fn frame(&mut self, head: u64, passed: &mut Vec<u8>) {
        let [_, kind, a, b, size @ ..] = head.to_be_bytes();
        let size = u64::from(u32::from_be_bytes(size));
        self.channel = u16::from_be_bytes([a, b]);
        self.left = size + 1;
        self.open.clear();
        self.drops = false;
        if kind == BODY
            && let Some(left) = self.dropping.get_mut(&self.channel)
        {
            *left = left.saturating_sub(size);
            if *left == 0 {
                self.dropping.remove(&self.channel);
            }
            self.drops = true;
        } else {
            self.dropping.remove(&self.channel);
            passed.extend_from_slice(&head.to_be_bytes()[1..]);
        }
        match kind {
            METHOD => self.number(4, Number::Method),
            HEADER => self.number(4, Number::Class),
            _ => self.give_up(),
        }
    }

    fn method(&mut self, class: u64, method: u64) -> io::Result<()> {
        self.tags.remove(&self.channel);
        match (class, method) {
            // connection.start
            (10, 10) => self.pass_over(2, After::Version),
            // basic.deliver
            (60, 60) => self.number(1, Number::Consumer),
            clients if CLIENTS.contains(&clients) => {
                let what = format!("the broker sent method {class}.{method}, which clients send");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            _ => self.give_up(),
        }
        Ok(())
    }

    /// Returns the number of bytes left in the innermost open table or array, or in the frame.
    fn room(&self) -> u64 {
        self.left.saturating_sub(self.open.last().map_or(1, |open| open.until))
    }

    /// Expects the next property before the headers, or the headers themselves.
    fn property(&mut self) {
        match self.before.checked_sub(1) {
            Some(before) => {
                self.before = before;
                self.number(1, Number::Before);
            }
            None => self.number(4, Number::Nested { is_table: true }),
        }
    }

    /// Closes tables and arrays that have ended, and expects the next value of the innermost open
    /// one.
    fn value(&mut self) {
        while self.open.last().is_some_and(|open| open.until == self.left) {
            self.open.pop();
        }
        match self.open.last() {
            Some(Open { is_table: true, .. }) => self.number(1, Number::Name),
            Some(Open { is_table: false, .. }) => self.state = State::Letter,
            None => self.give_up(),
        }
    }

    fn letter(&mut self, mut letter: u8, passed: &mut Vec<u8>) {
        const BYTES: u8 = b'x';
        if matches!(letter, b'A' | b'F') && self.open.len() >= DEEPEST {
            letter = BYTES;
        }
        passed.push(letter);
        match letter {
            b'A' => self.number(4, Number::Nested { is_table: false }),
            b'F' => self.number(4, Number::Nested { is_table: true }),
            b'S' | BYTES => self.number(4, Number::Text),
            b'V' => self.value(),
            b't' | b'b' | b'B' => self.pass_over(1, After::Value),
            b's' | b'U' | b'u' => self.pass_over(2, After::Value),
            b'I' | b'i' | b'f' => self.pass_over(4, After::Value),
            b'D' => self.pass_over(5, After::Value),
            b'L' | b'l' | b'd' | b'T' => self.pass_over(8, After::Value),
            _ => self.give_up(),
        }
    }

    /// Passes the rest of the frame through unparsed: it needs no check or cannot be parsed.
    fn give_up(&mut self) {
        self.open.clear();
        self.pass_over(self.left, After::Frame);
    }

    /// Skips `count` bytes, at least one; skips the whole frame if it is shorter.
    fn pass_over(&mut self, count: u64, after: After) {
        self.state = if count > self.room() && !matches!(after, After::Frame) {
            State::Skip(self.left, After::Frame)
        } else {
            State::Skip(count, after)
        };
    }

    fn skip(&mut self, count: u64, after: After, passed: &mut Vec<u8>) {
        if count > 0 {
            return self.pass_over(count, after);
        }
        match after {
            After::Frame => {
                // A broker that sends a large body is alive, so lapin receives a heartbeat instead.
                if std::mem::take(&mut self.drops) {
                    passed.extend_from_slice(&HEARTBEAT);
                }
                self.state = FRAME;
            }
            After::Version => self.number(4, Number::Nested { is_table: true }),
            After::Consumer => self.number(8, Number::Tag),
            After::Before => self.property(),
            After::Name if self.room() == 0 => self.give_up(),
            After::Name => self.state = State::Letter,
            After::Value => self.value(),
        }
    }
}

/// State between two frames.
const FRAME: State = State::Number { bytes: 7, so_far: 0, of: Number::Frame };

#[cfg(test)]
mod tests;
