//! A request that is being answered.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use nsbridge_handler::{Emitter, Error, Finish, Refused, Result, TextPiece};

use super::Order;
use crate::schedule::Work;

/// What is made, for whom, and what of it is still to be taken.
pub(super) struct Request {
    pub(super) order: Order,
    emitter: Emitter<TextPiece>,
    /// `None` once it was told.
    done: Option<oneshot::Sender<Result<Finish>>>,
    /// Pieces that nobody has taken yet, and what is behind them.
    pieces: VecDeque<TextPiece>,
    finish: Option<Result<Finish>>,
    limit: Option<Limit>,
}

/// When a reply must be complete.
pub(super) struct Limit {
    given: Duration,
    /// `None` if no clock goes so far.
    end: Option<Instant>,
}

impl Limit {
    pub(super) fn new(given: Duration) -> Self {
        Self { given, end: Instant::now().checked_add(given) }
    }

    /// What is left of it.
    pub(super) fn left(&self) -> Duration {
        self.end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    /// The client is told, and nothing is tried again: it would take as long.
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
        order: Order,
        emitter: Emitter<TextPiece>,
        done: oneshot::Sender<Result<Finish>>,
        limit: Option<Limit>,
    ) -> Self {
        Self { order, emitter, done: Some(done), pieces: VecDeque::new(), finish: None, limit }
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

    /// Ends it if it is to stop, and offers the waiting piece again.
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

    /// Hands over as many pieces as are taken, and after the last one how it ended.
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

    /// Takes over what the choices have made since, and hands it over.
    pub(super) fn collect(&mut self) {
        let choices = &mut self.order.choices;
        self.pieces.extend(std::iter::from_fn(|| choices.next_piece()));
        self.finish = choices.finish();
        self.offer();
    }

    /// What is to be run; nothing while its client does not read.
    pub(super) fn work(&self) -> Work {
        let rests = self.is_over() || !self.pieces.is_empty();
        if rests { Work::default() } else { self.order.choices.work() }
    }
}
