//! Request that is being answered.

use std::time::{Duration, Instant};

use futures_channel::oneshot;
use nsbridge_handler::{Error, Finish, Refused, Result, TextPiece};

use super::EngineRequest;
use super::outlet::Outlet;
use crate::panics::caught;
use crate::sample::{LogitsRow, Scratch};
use crate::schedule::Work;
use crate::speculation::Tally;

/// Request with the piece that its consumer has not yet taken.
pub(super) struct Request {
    pub(super) input: EngineRequest,
    outlet: Box<dyn Outlet>,
    /// `None` once the result was sent.
    done: Option<oneshot::Sender<Result<Finish>>>,
    /// Next piece, while the consumer has no room for it. The pieces after it are in the group.
    waiting: Option<TextPiece>,
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
        outlet: Box<dyn Outlet>,
        done: oneshot::Sender<Result<Finish>>,
        limit: Option<Duration>,
    ) -> Self {
        let limit = limit.map(|given| Limit::new(given, input.arrived));
        Self { input, outlet, done: Some(done), waiting: None, limit }
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

    /// Runs a part of the work on the request. A panic fails this request alone: its memory is then
    /// freed, and the rest of its state is not used any more.
    fn caught(&mut self, work: impl FnOnce(&mut Self)) {
        if let Err(panicked) = caught(|| work(self)) {
            self.tell(Err(panicked.into()));
        }
    }

    /// Ends the request if it was stopped or is past its deadline; otherwise offers its pieces.
    pub(super) fn look(&mut self) {
        self.caught(Self::end_or_offer);
    }

    /// Samples the next tokens from rows of logits, and offers their pieces.
    pub(super) fn sample(
        &mut self,
        rows: &[LogitsRow<'_>],
        scratch: &mut Scratch,
        tally: &mut Tally,
    ) {
        self.caught(|request| {
            request.input.group.next(&mut rows.iter().copied(), scratch, tally);
            request.offer();
        });
    }

    fn end_or_offer(&mut self) {
        if self.done.as_ref().is_some_and(oneshot::Sender::is_canceled) {
            self.done = None;
        } else if let Err(stop) = self.outlet.check() {
            self.tell(Err(Error::Stopped(stop)));
        } else if let Some(limit) = self.limit.as_ref().filter(|limit| limit.left().is_zero()) {
            self.tell(Err(limit.error()));
        } else {
            self.offer();
        }
    }

    /// Emits the group's pieces until one is refused, and sends the result after the last one. A
    /// piece leaves the group only when its turn to be emitted has come, so a long prompt is not
    /// held as pieces.
    fn offer(&mut self) {
        while let Some(piece) = self.waiting.take().or_else(|| self.input.group.next_piece()) {
            match self.outlet.offer(&piece) {
                Ok(()) => {}
                Err(Refused::Full) => {
                    self.waiting = Some(piece);
                    return;
                }
                Err(Refused::Stopped(stop)) => return self.tell(Err(Error::Stopped(stop))),
            }
        }
        if let Some(finish) = self.input.group.finish() {
            self.tell(finish);
        }
    }

    /// Returns the tokens to run; none while a piece waits for the consumer.
    pub(super) fn work(&self) -> Work {
        let rests = self.is_over() || self.waiting.is_some();
        if rests { Work::default() } else { self.input.group.work() }
    }
}
