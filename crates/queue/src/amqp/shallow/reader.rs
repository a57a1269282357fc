//! AMQP's frames, followed byte by byte where that is needed.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::Bodies;

/// Tables and arrays within each other: the broker's own `x-death` has three.
pub(crate) const DEEPEST: usize = 16;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;

/// A frame without content, which says that the peer lives.
const HEARTBEAT: [u8; 8] = [8, 0, 0, 0, 0, 0, 0, 0xce];

/// Methods with a table that clients send and brokers do not: `connection.start-ok`, `exchange`'s
/// declare, bind and unbind, `queue`'s declare, bind and unbind, `basic.consume`.
const CLIENTS: [(u64, u64); 8] =
    [(10, 11), (40, 10), (40, 30), (40, 40), (50, 10), (50, 20), (50, 50), (60, 20)];

/// Follows the frames: AMQP 0-9-1, 4.2.3 to 4.2.6, with the letters that RabbitMQ gives types.
#[derive(Debug)]
pub(crate) struct Reader {
    bodies: Arc<Bodies>,
    state: State,
    /// Bytes of the frame that are still to come, its end mark among them.
    left: u64,
    /// The frame's channel.
    channel: u16,
    /// Whether the frame is kept from lapin.
    drops: bool,
    /// Short strings before the headers.
    before: u32,
    /// The tables and arrays that are open, the outermost first.
    open: Vec<Open>,
    /// The tags of deliveries whose content is to come, by channel.
    tags: HashMap<u16, u64>,
    /// Bytes of a body that are still to be dropped, by channel.
    dropping: HashMap<u16, u64>,
}

/// A table or an array.
#[derive(Clone, Copy, Debug)]
struct Open {
    is_table: bool,
    /// What is left of the frame when it ends.
    until: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The type of a value.
    Letter,
    /// So many bytes of a number, which is so far.
    Number {
        bytes: u8,
        so_far: u64,
        of: Number,
    },
    Skip(u64, After),
}

#[derive(Clone, Copy, Debug)]
enum Number {
    /// The frame's kind, channel and size.
    Frame,
    /// A method's class and number.
    Method,
    /// How long the consumer's tag is.
    Consumer,
    /// A delivery's tag.
    Tag,
    /// A content header's class and weight.
    Class,
    /// How long the body is.
    Body,
    /// Which properties there are.
    Flags,
    /// How long the property before the headers is.
    Before,
    /// How long the name of an entry is.
    Name,
    /// How long a string is.
    Text,
    /// How long a table is, or an array.
    Nested { is_table: bool },
}

#[derive(Clone, Copy, Debug)]
enum After {
    Frame,
    /// The version in `connection.start`.
    Version,
    Consumer,
    /// A property before the headers.
    Before,
    Name,
    Value,
}

impl Number {
    /// Whether it may be changed, and is kept back until it is complete.
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

    /// Whether a frame is to begin.
    #[cfg(test)]
    pub(super) fn is_between_frames(&self) -> bool {
        matches!(self.state, State::Number { bytes: 7, of: Number::Frame, .. })
    }

    /// Reads what comes next; appends to `passed` what lapin may see of it.
    ///
    /// # Errors
    ///
    /// The broker sent what only clients send.
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
        // Of a frame's head there is nothing left to count yet.
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

    /// Reads a number next, if the frame has one.
    fn number(&mut self, bytes: u8, of: Number) {
        if u64::from(bytes) > self.room() {
            return self.give_up();
        }
        self.state = State::Number { bytes, so_far: 0, of };
    }

    /// A number is there.
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
            // One that is longer than what it is in: lapin cannot read it either.
            Number::Nested { .. } if number > self.room() => self.give_up(),
            Number::Nested { is_table } => {
                self.open.push(Open { is_table, until: self.left - number });
                self.value();
            }
        }
        Ok(())
    }

    /// A frame begins.
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

    /// What is left of the innermost that is open.
    fn room(&self) -> u64 {
        self.left.saturating_sub(self.open.last().map_or(1, |open| open.until))
    }

    /// The next property up to the headers.
    fn property(&mut self) {
        match self.before.checked_sub(1) {
            Some(before) => {
                self.before = before;
                self.number(1, Number::Before);
            }
            None => self.number(4, Number::Nested { is_table: true }),
        }
    }

    /// The next value of what is open.
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

    /// Leaves the rest of the frame alone: there is nothing in it, or nothing that can be read.
    fn give_up(&mut self) {
        self.open.clear();
        self.pass_over(self.left, After::Frame);
    }

    /// Skips at least a byte.
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
                // A broker that sends a large body is alive, and lapin is to know.
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

/// Before a frame.
const FRAME: State = State::Number { bytes: 7, so_far: 0, of: Number::Frame };

#[cfg(test)]
mod tests;
