//! Response body, with an optional fault.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use s3s::StdError;
use tokio::time::{Sleep, sleep};

use super::call::UnderWay;
use super::faults::Fault;
use super::socket::End;

/// Delay before a connection is broken, in which the bytes already sent arrive.
const ARRIVAL: Duration = Duration::from_millis(20);

/// Interval between two pieces of a slow body.
const PACE: Duration = Duration::from_millis(50);

/// Filler bytes that follow the object in endless and too-long bodies.
static FILL: [u8; 64 << 10] = [0xa5; 64 << 10];

/// Response body on its way to a connection.
pub(super) struct Sent {
    inner: s3s::Body,
    under_way: UnderWay,
    twist: Option<Box<Twist>>,
}

/// Fault of a body, with the progress of its injection.
pub(super) struct Twist {
    fault: Fault,
    end: End,
    /// Offset in the object of the next byte.
    at: u64,
    sent: u64,
    rest: Bytes,
    sleep: Option<Pin<Box<Sleep>>>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Sending,
    /// All bytes before the fault are sent; the connection breaks after [`ARRIVAL`].
    Breaking,
    /// The object's bytes are sent; filler bytes follow.
    Filling,
}

impl Sent {
    pub(super) fn new(inner: s3s::Body, under_way: UnderWay, twist: Option<Twist>) -> Self {
        Self { inner, under_way, twist: twist.map(Box::new) }
    }

    /// Polls the next bytes of the object; `None` after the last.
    fn poll_inner(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, StdError>>> {
        loop {
            let frame = match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(bytes) if !bytes.is_empty() => return Poll::Ready(Some(Ok(bytes))),
                _ => {}
            }
        }
    }

    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, StdError>>> {
        let Some(mut twist) = self.twist.take() else { return self.poll_inner(context) };
        let polled = self.poll_twisted(&mut twist, context);
        self.twist = Some(twist);
        polled
    }

    fn poll_twisted(
        &mut self,
        twist: &mut Twist,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, StdError>>> {
        loop {
            if let Some(sleep) = &mut twist.sleep {
                ready!(sleep.as_mut().poll(context));
                twist.sleep = None;
            }
            if twist.state == State::Breaking {
                return Poll::Ready(Some(Err("the connection is broken on purpose".into())));
            }
            if twist.pause() {
                continue;
            }
            if twist.rest.is_empty() && twist.state == State::Sending {
                match ready!(self.poll_inner(context)) {
                    Some(Ok(bytes)) => twist.rest = bytes,
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None => twist.state = State::Filling,
                }
            }
            if twist.state == State::Filling && !twist.fill() {
                return Poll::Ready(None);
            }
            return Poll::Ready(Some(Ok(twist.next())));
        }
    }
}

impl Twist {
    /// Creates a fault for a body that begins at offset `at` of the object.
    pub(super) fn new(fault: Fault, end: End, at: u64) -> Self {
        let (rest, sleep) = (Bytes::new(), None);
        Self { fault, end, at, sent: 0, rest, sleep, state: State::Sending }
    }

    /// Starts a pause if the fault wants one now. Returns true if it did.
    fn pause(&mut self) -> bool {
        let wait = match self.fault {
            Fault::Reset(after) if self.sent >= after => {
                self.end.by_reset();
                self.state = State::Breaking;
                ARRIVAL
            }
            Fault::Truncate(after) if self.sent >= after => {
                self.state = State::Breaking;
                ARRIVAL
            }
            Fault::Stall(after, time) if self.sent >= after => {
                // The body stalls only once.
                self.fault = Fault::Stall(u64::MAX, time);
                time
            }
            _ => return false,
        };
        self.sleep = Some(Box::pin(sleep(wait)));
        true
    }

    /// Queues filler bytes behind the object. Returns true if there are any.
    fn fill(&mut self) -> bool {
        let most = FILL.len() as u64;
        let length = match &mut self.fault {
            Fault::Endless => most,
            Fault::Longer(by) => {
                let length = most.min(*by);
                *by -= length;
                length
            }
            _ => 0,
        };
        self.rest = Bytes::from_static(&FILL[..length as usize]);
        length > 0
    }

    /// Splits off the bytes that may be sent now, and flips a bit if the fault says so.
    fn next(&mut self) -> Bytes {
        let most = match self.fault {
            Fault::Reset(after) | Fault::Truncate(after) | Fault::Stall(after, _) => {
                after - self.sent
            }
            Fault::Slow(rate) => {
                self.sleep = Some(Box::pin(sleep(PACE)));
                (rate * PACE.as_millis() as u64 / 1000).max(1)
            }
            _ => u64::MAX,
        };
        let length = self.rest.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        let mut bytes = self.rest.split_to(length);
        if let Fault::Flip(at) = self.fault
            && let Some(index) = at.checked_sub(self.at).filter(|index| *index < length as u64)
        {
            let mut changed = BytesMut::from(&bytes[..]);
            changed[index as usize] ^= 1;
            bytes = changed.freeze();
        }
        self.sent += length as u64;
        self.at += length as u64;
        bytes
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let polled = ready!(self.poll_bytes(context));
        if let Some(Ok(bytes)) = &polled {
            self.under_way.sent(bytes.len());
        }
        Poll::Ready(polled.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.twist.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // With a fault, the content length in the header may differ from the real one, so there is
        // no hint.
        if self.twist.is_some() { SizeHint::default() } else { self.inner.size_hint() }
    }
}
