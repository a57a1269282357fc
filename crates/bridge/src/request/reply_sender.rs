//! Sending of one job's reply while it is computed, over one protocol stream after another. Decides
//! when a frame is due; [`ReplyStream`] seals and publishes it.

use std::time::Duration;

use nsbridge_crypto::ControlFrame;
use nsbridge_handler::Stop;
use nsbridge_handler::transcript::{Cursor, StartAt};
use nsbridge_protocol::{AttemptNo, ControlKind, Pieces, Resume};
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::config::ReplyConfig;
use crate::request::disposition::Disposition;
use crate::request::in_flight::SealedControl;
use crate::request::reply_stream::{ReplyContext, ReplyStream, StreamError, Undeliverable};
use crate::request::runner::CallEnd;
use crate::request::stream_opener::StreamOpener;

/// Number of broker round trips that are added to the wait for a `resume`. The open frame and the
/// `resume` take two between worker and broker and two between broker and client; the rest is for a
/// busy machine.
const ROUND_TRIPS: u32 = 8;

/// Divisor of the request's age. The wait for a `resume` is at least this part of the age, which
/// bounds the work that may have to be repeated.
const PART_OF_AGE: u32 = 4;

/// Sender of one job's reply. It opens another stream when one is lost.
pub(crate) struct ReplySender<'a> {
    context: &'a ReplyContext<'a>,
    /// Attempt number of the job's latest delivery.
    number: watch::Receiver<AttemptNo>,
    opener: StreamOpener<'a>,
    stream: ReplyStream<'a>,
    /// Number of pieces in the client's `resume`; 0 if none came in time.
    known: usize,
    /// Time at which pieces were last sent.
    last_sent: Instant,
    /// Time at which any frame was last sent.
    last_frame: Instant,
}

impl<'a> ReplySender<'a> {
    /// Starts the first stream.
    pub(crate) async fn start(
        context: &'a ReplyContext<'a>,
        mut number: watch::Receiver<AttemptNo>,
    ) -> Result<Self, Undeliverable> {
        let latest = *number.borrow_and_update();
        let mut opener = StreamOpener::new(context);
        let stream = opener.open(latest, StartAt::FirstNew).await?;
        // The first piece is sent without a delay.
        let now = Instant::now();
        let last_sent = now.checked_sub(context.config.coalesce()).unwrap_or(now);
        Ok(Self { context, number, opener, stream, known: 0, last_sent, last_frame: now })
    }

    /// Waits for the pieces that the client already has (rule R7), in a later attempt at a request of
    /// this age.
    ///
    /// A live client answers at once, without pieces if it has none. So the whole wait is spent
    /// only on a client that does not answer. To begin too early would repeat the work for the
    /// client's pieces. No heartbeat is sent during the wait (rule A4): [`send`](Self::send) sends
    /// them.
    pub(crate) async fn wait_for_resume(
        &mut self,
        controls: &mut Receiver<SealedControl>,
        age: Duration,
    ) -> ResumeDecision {
        let opened = Instant::now();
        let most = Duration::from_millis(self.context.config.resume_wait_ms);
        let confirmed = async {
            while let Err(error) = self.stream.window.flush().await {
                // No client can answer on a lost channel. Another stream is opened, as it is later
                // on.
                let has_confirmed = self.stream.window.has_confirmed();
                if self.opener.lost(has_confirmed, error.into()).is_err() {
                    return false;
                }
                let number = *self.number.borrow_and_update();
                match self.opener.open(number, StartAt::FirstNew).await {
                    Ok(stream) => self.stream = stream,
                    // The next send reports this error.
                    Err(_) => return false,
                }
            }
            true
        };
        if !timeout(most, confirmed).await.unwrap_or(false) {
            return ResumeDecision::Start;
        }
        let context = self.context;
        let decision = async {
            while let Some(control) = controls.recv().await {
                match context.open_control(&control) {
                    Some(ControlMessage::Cancel) => return ResumeDecision::Cancelled,
                    Some(ControlMessage::Resume(resume)) => {
                        context.trace.follows(control.before);
                        return context.accept(resume);
                    }
                    None => {}
                }
            }
            ResumeDecision::Start
        };
        let least = context.timing.min_resume_wait;
        let wait = resume_wait(opened.elapsed(), age, least, most);
        let decision = timeout_at(opened + wait, decision).await.unwrap_or(ResumeDecision::Start);
        if let ResumeDecision::Resume(pieces) = &decision {
            self.known = pieces.len();
        }
        decision
    }

    /// Runs the call while `opening` opens the stream, and sends pieces as they come, until the call
    /// has ended and all are published. A cancel reaches the call even while opening or sending has
    /// to wait. Returns the end of the call even if its pieces could not be sent.
    pub(crate) async fn run_call(
        context: &ReplyContext<'_>,
        opening: impl Future<Output = Result<Self, Undeliverable>>,
        call: impl Future<Output = CallEnd>,
        controls: &mut Receiver<SealedControl>,
    ) -> (CallEnd, Result<Self, Undeliverable>) {
        let ended = CancellationToken::new();
        let send = async {
            let sending = async {
                let mut reply = opening.await?;
                reply.send(&ended).await?;
                Ok(reply)
            };
            let sent = tokio::select! {
                sent = sending => sent,
                () = context.overdue.cancelled() => Err(Undeliverable::Overdue),
            };
            if sent.is_err() {
                // No client will get the pieces that the call still makes.
                context.reader.stop(Stop::HandOff);
            }
            sent
        };
        // The call is polled first, so that the handler starts before the open frame is sealed.
        tokio::join!(biased; steer(context, call, controls, &ended), send)
    }

    /// Sends the pieces of the call until it has `ended` and none is left, and heartbeats in between.
    async fn send(&mut self, ended: &CancellationToken) -> Result<(), Undeliverable> {
        let reader = self.context.reader;
        loop {
            let position = self.stream.cursor.position();
            self.context.trace.sent(position, reader.resumed());
            if position > self.known {
                self.context.claim.progress();
            }
            let over = ended.is_cancelled();
            if over && self.nothing_left() {
                return Ok(());
            }
            let room = self.stream.has_room();
            let sent = tokio::select! {
                () = ended.cancelled(), if !over => Ok(()),
                Ok(()) = self.number.changed() => {
                    self.open_again().await?;
                    Ok(())
                }
                confirmed = self.stream.window.read_confirms() => {
                    if self.stream.window.client_gone() {
                        reader.stop(Stop::ClientGone);
                    }
                    confirmed.map_err(StreamError::Lost)
                }
                () = frame_due(self.context.config, &self.stream.cursor, self.last_sent, !over), if room => {
                    self.last_sent = Instant::now();
                    self.last_frame = self.last_sent;
                    self.stream.send_pieces().await
                }
                () = sleep_until(self.last_frame + self.context.timing.heartbeat), if room => {
                    self.last_frame = Instant::now();
                    self.stream.send_heartbeat().await
                }
            };
            if let Err(error) = sent {
                self.opener.lost(self.stream.window.has_confirmed(), error)?;
                self.open_again().await?;
            }
        }
    }

    /// Ends the stream: sends the remaining pieces and the last frame, and waits for the publisher
    /// confirms.
    pub(crate) async fn end(self, disposition: &Disposition) -> Result<(), Undeliverable> {
        let Self { context, number, mut opener, mut stream, .. } = self;
        loop {
            let has_confirmed = stream.window.has_confirmed();
            let ended = tokio::select! {
                ended = stream.end(disposition) => ended,
                () = context.overdue.cancelled() => return Err(Undeliverable::Overdue),
            };
            let Err(error) = ended else { return Ok(()) };
            opener.lost(has_confirmed, error)?;
            let number = *number.borrow();
            stream = opener.open(number, StartAt::PieceZero).await?;
        }
    }

    fn nothing_left(&self) -> bool {
        let client_gone = self.context.reader.stopped() == Some(Stop::ClientGone);
        client_gone || self.stream.cursor.is_at_end()
    }

    /// Opens another stream, which sends the whole transcript under its own key. Needed after the
    /// loss of a channel (rule A5) and when another delivery adopted the job (rule R6).
    async fn open_again(&mut self) -> Result<(), Undeliverable> {
        let number = *self.number.borrow_and_update();
        self.stream = self.opener.open(number, StartAt::PieceZero).await?;
        self.last_frame = Instant::now();
        Ok(())
    }
}

/// Runs the call to its end, and stops it if the client cancels.
async fn steer(
    context: &ReplyContext<'_>,
    call: impl Future<Output = CallEnd>,
    controls: &mut Receiver<SealedControl>,
    ended: &CancellationToken,
) -> CallEnd {
    tokio::pin!(call);
    loop {
        tokio::select! {
            outcome = &mut call => {
                context.reader.close();
                ended.cancel();
                return outcome;
            }
            Some(control) = controls.recv() => {
                if let Some(ControlMessage::Cancel) = context.open_control(&control) {
                    context.reader.stop(Stop::Cancelled);
                }
            }
        }
    }
}

impl ReplyContext<'_> {
    fn accept(&self, resume: Resume) -> ResumeDecision {
        // Pieces of another fingerprint are never mixed with those of this worker.
        if resume.fingerprint == self.fingerprint && !resume.pieces.is_empty() {
            ResumeDecision::Resume(resume.pieces)
        } else {
            ResumeDecision::Start
        }
    }

    /// Opens a control frame; `None` if it was not sealed under the job's reply root.
    pub(crate) fn open_control(&self, sealed: &SealedControl) -> Option<ControlMessage> {
        let control = ControlFrame::parse(&sealed.frame).ok()?;
        if control.request != self.request {
            return None;
        }
        let body = control.open(self.root).ok()?;
        match control.kind {
            ControlKind::Cancel => {
                self.trace.metrics().cancelled();
                Some(ControlMessage::Cancel)
            }
            ControlKind::Resume => Resume::decode(&body).map(ControlMessage::Resume),
        }
    }
}

/// Starting point of a run.
pub(crate) enum ResumeDecision {
    Start,
    Resume(Pieces),
    Cancelled,
}

/// Control frame that was opened.
pub(crate) enum ControlMessage {
    Cancel,
    Resume(Resume),
}

/// Returns the time to wait for a `resume`, at most `most`. `round_trip` is the time that the
/// broker took to confirm the open frame.
fn resume_wait(round_trip: Duration, age: Duration, least: Duration, most: Duration) -> Duration {
    let distance = least.saturating_add(round_trip * ROUND_TRIPS);
    distance.max(age / PART_OF_AGE).min(most)
}

/// Waits until a data frame is due: enough bytes, or enough time since the last one. Once the call
/// has ended (`running` is false), a frame is due as soon as there is a piece.
async fn frame_due(config: &ReplyConfig, cursor: &Cursor, last_sent: Instant, running: bool) {
    cursor.wait_for_bytes(1).await;
    let due = last_sent + config.coalesce();
    // Skipped if the time has come: a timer rounds up to its next tick, which would delay a first
    // piece.
    if running && Instant::now() < due {
        tokio::select! {
            biased;
            () = cursor.wait_for_bytes(config.coalesce_bytes) => {}
            () = sleep_until(due) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::resume_wait;
    use crate::timing::Timing;

    #[track_caller]
    fn check(round_trip_ms: u64, age_s: u64, most_ms: u64, expected_ms: u64) {
        let ms = Duration::from_millis;
        let least = Timing::default().min_resume_wait;
        let wait = resume_wait(ms(round_trip_ms), Duration::from_secs(age_s), least, ms(most_ms));
        assert_eq!(wait, ms(expected_ms));
    }

    #[test]
    fn the_wait_for_a_resume_follows_the_clients_distance_and_what_there_is_to_lose() {
        check(0, 0, 3000, 250);
        check(50, 0, 3000, 650);
        check(50, 8, 3000, 2000);
        check(2, 600, 3000, 3000);
        check(2, 600, 100, 100);
    }
}
