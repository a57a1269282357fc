//! Request that is being answered.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use nsbridge_handler::{Emitter, Error, Finish, Refused, Result, TextPiece};

use super::EngineRequest;
use crate::schedule::Work;

/// Request with the pieces that its consumer has not yet taken.
pub(super) struct Request {
    pub(super) input: EngineRequest,
    emitter: Emitter<TextPiece>,
    /// `None` once the result was sent.
    done: Option<oneshot::Sender<Result<Finish>>>,
    /// Pieces that were not yet taken; `finish` follows them.
    pieces: VecDeque<TextPiece>,
    finish: Option<Result<Finish>>,
    limit: Option<Limit>,
}

/// Deadline of a reply.
pub(super) struct Limit {
    given: Duration,
    /// `None` if the deadline exceeds the range of `Instant`.
    end: Option<Instant>,
}

impl Limit {
    /// Creates the deadline of a request that arrived at this time.
    fn new(given: Duration, arrived: Instant) -> Self {
        Self { given, end: arrived.checked_add(given) }
    }

    /// Returns the time that is left.
    pub(super) fn left(&self) -> Duration {
        self.end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    /// Error of a reply past its deadline. It goes to the client, because a retry would take as
    /// long.
    fn error(&self) -> Error {
        let seconds = self.given.as_secs_f64();
        Error::bad_input(format!(
            "the reply was not complete within this worker's `predict_timeout` of {seconds} s; ask \
             for a shorter one, read it faster, or ask again when less is going on"
        ))
    }
}

impl Request {
    pub(super) fn new(
        input: EngineRequest,
        emitter: Emitter<TextPiece>,
        done: oneshot::Sender<Result<Finish>>,
        limit: Option<Duration>,
    ) -> Self {
        let limit = limit.map(|given| Limit::new(given, input.arrived));
        Self { input, emitter, done: Some(done), pieces: VecDeque::new(), finish: None, limit }
    }

    pub(super) fn limit(&self) -> Option<&Limit> {
        self.limit.as_ref()
    }

    pub(super) fn tell(&mut self, result: Result<Finish>) {
        if let Some(done) = self.done.take() {
            let _ = done.send(result);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.done.is_none()
    }

    /// Ends the request if it was stopped or is past its deadline; otherwise offers the waiting
    /// pieces.
    pub(super) fn look(&mut self) {
        if self.done.as_ref().is_some_and(oneshot::Sender::is_canceled) {
            self.done = None;
        } else if let Err(stop) = self.emitter.check() {
            self.tell(Err(Error::Stopped(stop)));
        } else if let Some(limit) = self.limit.as_ref().filter(|limit| limit.left().is_zero()) {
            self.tell(Err(limit.error()));
        } else {
            self.offer();
        }
    }

    /// Emits pieces until one is refused, and sends the result after the last one.
    fn offer(&mut self) {
        while let Some(piece) = self.pieces.front() {
            match self.emitter.try_emit(piece) {
                Ok(()) => drop(self.pieces.pop_front()),
                Err(Refused::Full) => return,
                Err(Refused::Stopped(stop)) => return self.tell(Err(Error::Stopped(stop))),
            }
        }
        if let Some(finish) = self.finish.take() {
            self.tell(finish);
        }
    }

    /// Takes the new pieces and the result from the group, and offers them.
    pub(super) fn collect(&mut self) {
        let group = &mut self.input.group;
        self.pieces.extend(std::iter::from_fn(|| group.next_piece()));
        self.finish = group.finish();
        self.offer();
    }

    /// Returns the tokens to run; none while pieces wait for the consumer.
    pub(super) fn work(&self) -> Work {
        let rests = self.is_over() || !self.pieces.is_empty();
        if rests { Work::default() } else { self.input.group.work() }
    }
}
