//! What comes from the broker, without header tables that are too deep to be read.
//!
//! lapin reads tables and arrays within each other by recursion, on a thread of the usual stack: a
//! message whose headers are some thousand deep, which takes 10 kB and no key, would end the
//! process, and wait for the next. One that is deeper than [`DEEPEST`] is therefore told to be bytes
//! before lapin sees it: a table, an array and bytes are all a letter, a length and so many bytes, so
//! one letter changes. Nobody's headers are that deep.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_rs::traits::{Executor, Reactor, RuntimeKit};
use async_rs::util::Task;
use async_rs::{Runtime, Tokio};
use futures_util::{AsyncRead, AsyncWrite, Stream, TryFutureExt};
use lapin::tcp::{AMQPUriTcpExt, AsyncTcpStream};
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};

/// Tables and arrays within each other: the broker's own `x-death` has three.
const DEEPEST: usize = 16;

/// Opens a connection that is served by the present runtime.
pub(super) async fn connect(
    uri: AMQPUri,
    properties: ConnectionProperties,
) -> lapin::Result<Connection> {
    let tokio = Tokio::current();
    let runtime = Runtime::new(Kit(tokio.clone()));
    let tokio = Runtime::new(tokio);
    let connect = async move |uri: AMQPUri, _| {
        let stream = uri.connect_async(&tokio).await?;
        Ok(AsyncTcpStream::Plain(Shallow::new(stream)))
    };
    Connection::connector(uri, runtime, connect, properties).await
}

type Socket = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;

/// tokio, with streams of ours.
#[derive(Clone, Debug)]
struct Kit(Tokio);

impl RuntimeKit for Kit {}

impl Executor for Kit {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        self.0.block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        future: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn(future)
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        work: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn_blocking(work)
    }
}

impl Reactor for Kit {
    type TcpStream = Shallow;
    type Sleep = <Tokio as Reactor>::Sleep;

    // lapin registers nothing.
    fn register<H: Read + Write + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Shallow, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        addr: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        self.0.tcp_connect_addr(addr).map_ok(|stream| Shallow::new(AsyncTcpStream::Plain(stream)))
    }
}

/// A connection to a broker.
struct Shallow {
    socket: Socket,
    reader: Reader,
}

impl Shallow {
    fn new(socket: Socket) -> Self {
        Self { socket, reader: Reader::new() }
    }
}

impl AsyncRead for Shallow {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        self.reader.read(&mut buffer[..count]);
        Poll::Ready(Ok(count))
    }
}

impl AsyncWrite for Shallow {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx)
    }
}

/// Follows the frames, byte by byte where there are headers: AMQP 0-9-1, 4.2.3 to 4.2.6, with the
/// letters that RabbitMQ gives types.
#[derive(Debug)]
struct Reader {
    state: State,
    /// Bytes of the frame that are still to come, its end mark among them.
    left: u64,
    in_header: bool,
    /// Short strings before the headers.
    before: u32,
    /// The tables and arrays that are open, the outermost first.
    open: Vec<Open>,
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
    FrameKind,
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
    /// The frame's channel and size.
    Frame,
    /// A content header up to its flags.
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
    /// A property before the headers.
    Before,
    Name,
    Value,
}

impl Reader {
    fn new() -> Self {
        Self { state: State::FrameKind, left: 0, in_header: false, before: 0, open: Vec::new() }
    }

    /// Reads what comes next, and changes it where it must.
    fn read(&mut self, mut bytes: &mut [u8]) {
        while let Some((first, rest)) = bytes.split_first_mut() {
            let taken = match self.state {
                State::Skip(count, after) => {
                    let taken = usize::try_from(count).unwrap_or(usize::MAX).min(1 + rest.len());
                    self.left -= taken as u64;
                    self.skip(count - taken as u64, after);
                    taken
                }
                state => {
                    self.byte(state, first);
                    1
                }
            };
            bytes = &mut bytes[taken..];
        }
    }

    fn byte(&mut self, state: State, byte: &mut u8) {
        // Of a frame's head there is nothing left to count yet.
        self.left = self.left.saturating_sub(1);
        match state {
            State::FrameKind => {
                const HEADER: u8 = 2;
                self.in_header = *byte == HEADER;
                self.number(6, Number::Frame);
            }
            State::Letter => self.letter(byte),
            State::Number { bytes, so_far, of } => {
                let so_far = so_far << 8 | u64::from(*byte);
                match bytes - 1 {
                    0 => self.has(of, so_far),
                    bytes => self.state = State::Number { bytes, so_far, of },
                }
            }
            State::Skip(..) => {}
        }
    }

    fn number(&mut self, bytes: u8, of: Number) {
        self.state = State::Number { bytes, so_far: 0, of };
    }

    /// A number is there.
    fn has(&mut self, what: Number, number: u64) {
        match what {
            Number::Frame => {
                self.left = (number & 0xffff_ffff) + 1;
                self.open.clear();
                if self.in_header { self.number(14, Number::Flags) } else { self.give_up() }
            }
            Number::Flags => {
                const TYPE_AND_ENCODING: u64 = 0b11 << 14;
                const HEADERS: u64 = 1 << 13;
                self.before = (number & TYPE_AND_ENCODING).count_ones();
                if number & HEADERS == 0 { self.give_up() } else { self.property() }
            }
            Number::Before => self.skip(number, After::Before),
            Number::Name => self.skip(number, After::Name),
            Number::Text => self.skip(number, After::Value),
            // One that is longer than what it is in: lapin cannot read it either.
            Number::Nested { .. } if number > self.room() => self.give_up(),
            Number::Nested { is_table } => {
                self.open.push(Open { is_table, until: self.left - number });
                self.value();
            }
        }
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

    fn letter(&mut self, letter: &mut u8) {
        const BYTES: u8 = b'x';
        if matches!(letter, b'A' | b'F') && self.open.len() >= DEEPEST {
            *letter = BYTES;
        }
        match *letter {
            b'A' => self.number(4, Number::Nested { is_table: false }),
            b'F' => self.number(4, Number::Nested { is_table: true }),
            b'S' | BYTES => self.number(4, Number::Text),
            b'V' => self.value(),
            b't' | b'b' | b'B' => self.skip(1, After::Value),
            b's' | b'U' | b'u' => self.skip(2, After::Value),
            b'I' | b'i' | b'f' => self.skip(4, After::Value),
            b'D' => self.skip(5, After::Value),
            b'L' | b'l' | b'd' | b'T' => self.skip(8, After::Value),
            _ => self.give_up(),
        }
    }

    /// Leaves the rest of the frame alone: there is nothing in it, or nothing that can be read.
    fn give_up(&mut self) {
        self.open.clear();
        self.skip(self.left, After::Frame);
    }

    fn skip(&mut self, count: u64, after: After) {
        if count > 0 {
            self.state = if count > self.room() && !matches!(after, After::Frame) {
                State::Skip(self.left, After::Frame)
            } else {
                State::Skip(count, after)
            };
            return;
        }
        match after {
            After::Frame => self.state = State::FrameKind,
            After::Before => self.property(),
            After::Name => self.state = State::Letter,
            After::Value => self.value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of this kind.
    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[kind, 0, 1], &size[..], payload, &[0xce]].concat()
    }

    fn sized(letter: &[u8], bytes: &[u8]) -> Vec<u8> {
        let size = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        [letter, &size, bytes].concat()
    }

    fn entry(name: &str, value: &[u8]) -> Vec<u8> {
        [&[u8::try_from(name.len()).unwrap()], name.as_bytes(), value].concat()
    }

    /// A content header with a type, an encoding and these headers, and a delivery mode.
    fn header(headers: &[u8]) -> Vec<u8> {
        let head = [&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9], &0xf000_u16.to_be_bytes()[..]].concat();
        let before = entry("application/octet-stream", &entry("F", b""));
        frame(2, &[&head, &before, &sized(b"", headers)[..], &[2]].concat())
    }

    /// An array or a table in another, so many of each, the outermost an entry of the headers.
    fn nested(pairs: usize) -> Vec<u8> {
        let mut value = b"t\x01".to_vec();
        for _ in 0..pairs {
            value = sized(b"A", &[&b"V"[..], &sized(b"F", &entry("k", &value))].concat());
        }
        entry("deep", &value)
    }

    fn usual() -> Vec<u8> {
        let values: [&[u8]; 8] = [
            b"t\x01",
            b"u\0\x01",
            b"I\0\0\0\x01",
            b"D\x02\0\0\0\x01",
            b"l\0\0\0\0\0\0\0\x01",
            b"V",
            b"S\0\0\0\x03AFA",
            b"x\0\0\0\x02FF",
        ];
        let mut headers: Vec<u8> = values.into_iter().flat_map(|value| entry("A", value)).collect();
        headers.extend(nested(1));
        headers.extend(entry("F", b"F\0\0\0\0"));
        headers
    }

    /// What becomes of it, however it is cut: by so many bytes.
    fn read(bytes: &[u8], by: usize) -> Vec<u8> {
        let (mut reader, mut bytes) = (Reader::new(), bytes.to_vec());
        bytes.chunks_mut(by).for_each(|chunk| reader.read(chunk));
        assert!(matches!(reader.state, State::FrameKind), "{reader:?}");
        bytes
    }

    #[test]
    fn what_is_usual_stays_as_it_is() {
        let body = [b"AAAAFFFF".repeat(40), header(&nested(DEEPEST))].concat();
        let frames =
            [frame(1, b"\0\x3c\0\x3cFFFF"), header(&usual()), frame(3, &body), frame(8, b"")];
        let bytes =
            [&frames.concat()[..], &header(&nested(DEEPEST / 2 - 1)), &header(b"")].concat();
        for by in [1, 2, 3, 7, 64, bytes.len()] {
            assert_eq!(read(&bytes, by), bytes);
        }
    }

    #[test]
    fn what_is_too_deep_becomes_bytes_and_what_follows_is_read_on() {
        for pairs in [DEEPEST / 2, DEEPEST, 2000] {
            let bytes =
                [header(&[nested(pairs), nested(pairs), usual()].concat()), header(&usual())]
                    .concat();
            let changed = read(&bytes, 1);
            assert_eq!(read(&bytes, 11), changed);
            let different: Vec<_> = (0..bytes.len()).filter(|i| bytes[*i] != changed[*i]).collect();
            // The headers themselves are one deep, so the seventeenth is the eighth pair's table.
            assert_eq!(different.len(), 2, "{pairs}: one in each of the two");
            assert!(different.iter().all(|i| changed[*i] == b'x' && bytes[*i] != b'x'));
        }
    }

    #[test]
    fn lengths_that_lie_do_not_lead_astray() {
        let too_long = entry("k", b"A\0\0\xff\xffAAAA");
        for headers in [&too_long[..], &entry("k", b"S\xff\xff\xff\xffxx"), &entry("k", b"?AFAF")] {
            let bytes = [header(headers), header(&nested(DEEPEST))].concat();
            for by in [1, 5] {
                let changed = read(&bytes, by);
                assert_eq!(changed[..header(headers).len()], bytes[..header(headers).len()]);
                assert_ne!(changed, bytes, "the next frame is read again");
            }
        }
    }
}
