//! The reply of one job while it is made: pieces out, control frames in.

use std::time::{Duration, SystemTime};

use nsbridge_crypto::ControlFrame;
use nsbridge_handler::Stop;
use nsbridge_handler::transcript::Reader;
use nsbridge_protocol::{ControlKind, Pieces, Resume};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::attempt::{Address, Attempt, Broken, Ending, Stuck};
use crate::config::ReplyConfig;
use crate::registry::Mail;
use crate::runner::Outcome;

/// How long the worker that opens a redelivered job waits for what the client already has.
const RESUME_WAIT: Duration = Duration::from_millis(250);

/// A client hears from an open stream at least this often.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// What may end a job from outside.
pub(crate) struct Until<'a> {
    pub(crate) deadline: SystemTime,
    /// The worker's grace is over.
    pub(crate) hand_off: &'a CancellationToken,
    /// The connection that the job came on is gone, and the job is somebody else's.
    pub(crate) lost: &'a CancellationToken,
}

/// The reply of one job, through as many attempts as it takes to send it.
pub(crate) struct ReplyStream<'a> {
    address: &'a Address<'a>,
    attempt: Attempt<'a>,
    /// When pieces were sent.
    last_sent: Instant,
    /// When anything was sent.
    last_frame: Instant,
}

impl<'a> ReplyStream<'a> {
    /// Opens the first attempt.
    pub(crate) async fn open(address: &'a Address<'a>) -> Result<Self, Stuck> {
        let attempt = Attempt::open(address).await?;
        // The first piece waits for nobody.
        let now = Instant::now();
        let last_sent = now.checked_sub(address.config.coalesce()).unwrap_or(now);
        Ok(Self { address, attempt, last_sent, last_frame: now })
    }

    /// Rule R7: waits for what the client of a redelivered job already has.
    pub(crate) async fn wait_for_resume(&mut self, mail: &mut Receiver<Mail>) -> Welcome {
        let welcome = async {
            if self.attempt.window.flush().await.is_err() {
                // The next frame will open another attempt; nobody can answer this one.
                return Welcome::Start;
            }
            while let Some(frame) = mail.recv().await {
                match self.read_mail(&frame) {
                    Some(Letter::Cancel) => return Welcome::Cancelled,
                    Some(Letter::Resume(resume)) => return self.accept(resume),
                    None => {}
                }
            }
            Welcome::Start
        };
        timeout(RESUME_WAIT, welcome).await.unwrap_or(Welcome::Start)
    }

    fn accept(&self, resume: Resume) -> Welcome {
        // Pieces of another arithmetic are never mixed with ours.
        if resume.fingerprint == self.address.fingerprint && !resume.pieces.is_empty() {
            Welcome::Resume(resume.pieces)
        } else {
            Welcome::Start
        }
    }

    /// Opens a control frame; one that was not made by the request's client is nothing.
    pub(crate) fn read_mail(&self, frame: &[u8]) -> Option<Letter> {
        let control = ControlFrame::parse(frame).ok()?;
        if control.request != self.address.request {
            return None;
        }
        let body = control.open(self.address.root).ok()?;
        match control.kind {
            ControlKind::Cancel => Some(Letter::Cancel),
            ControlKind::Resume => Resume::decode(&body).map(Letter::Resume),
        }
    }

    /// Sends pieces as they come, until the call has ended and all are on their way.
    pub(crate) async fn follow(
        &mut self,
        call: impl Future<Output = Outcome>,
        reader: &Reader,
        mail: &mut Receiver<Mail>,
        until: Until<'_>,
    ) -> Result<Outcome, Stuck> {
        let stop = stop_from_outside(&until);
        tokio::pin!(call, stop);
        let mut outcome = None;
        loop {
            self.attempt.skip_resumed(reader);
            let late = self.address.overdue.is_cancelled();
            if (late || self.nothing_left(reader))
                && let Some(outcome) = outcome.take()
            {
                return Ok(outcome);
            }
            let (running, room) = (outcome.is_none(), self.attempt.has_room());
            let position = self.attempt.position;
            let sent = tokio::select! {
                ended = &mut call, if running => {
                    reader.close();
                    outcome = Some(ended);
                    Ok(())
                }
                stop = &mut stop, if reader.stopped().is_none() => {
                    reader.stop(stop);
                    Ok(())
                }
                Some(frame) = mail.recv() => {
                    if let Some(Letter::Cancel) = self.read_mail(&frame) {
                        reader.stop(Stop::Cancelled);
                    }
                    Ok(())
                }
                settled = self.attempt.window.settle() => {
                    if self.attempt.window.receiver_gone() {
                        reader.stop(Stop::ClientGone);
                    }
                    settled.map_err(Broken::Lost)
                }
                () = ripe(self.address.config, position, self.last_sent, reader, running), if room => {
                    self.last_sent = Instant::now();
                    self.last_frame = self.last_sent;
                    self.attempt.send_pieces(reader).await
                }
                () = sleep_until(self.last_frame + HEARTBEAT), if room => {
                    self.last_frame = Instant::now();
                    self.attempt.send_heartbeat().await
                }
                () = self.address.overdue.cancelled(), if !running => Ok(()),
            };
            self.mend(sent).await?;
        }
    }

    /// Ends the stream: everything is sent, the last frame too, and the broker has confirmed it.
    pub(crate) async fn end(self, reader: &Reader, ending: &Ending) -> Result<(), Stuck> {
        let Self { address, mut attempt, .. } = self;
        loop {
            let ended = tokio::select! {
                ended = attempt.end(reader, ending) => ended,
                () = address.overdue.cancelled() => return Err(Stuck::Overdue),
            };
            match ended {
                Ok(()) => return Ok(()),
                Err(Broken::Seal(error)) => return Err(Stuck::Seal(error)),
                Err(Broken::Lost(error)) => {
                    log_lost(address, &error);
                    attempt = Attempt::open(address).await?;
                }
            }
        }
    }

    fn nothing_left(&self, reader: &Reader) -> bool {
        reader.stopped() == Some(Stop::ClientGone) || reader.len() == self.attempt.position
    }

    /// Rule A5: a stream whose channel is gone is never continued; another attempt sends it all.
    async fn mend(&mut self, sent: Result<(), Broken>) -> Result<(), Stuck> {
        match sent {
            Ok(()) => Ok(()),
            Err(Broken::Seal(error)) => Err(Stuck::Seal(error)),
            Err(Broken::Lost(error)) => {
                log_lost(self.address, &error);
                self.attempt = Attempt::open(self.address).await?;
                Ok(())
            }
        }
    }
}

/// What a redelivered job starts from.
pub(crate) enum Welcome {
    Start,
    Resume(Pieces),
    Cancelled,
}

/// A control frame that was opened.
pub(crate) enum Letter {
    Cancel,
    Resume(Resume),
}

/// Waits until a frame is worth sending: enough bytes, or enough time since the last one.
async fn ripe(
    config: &ReplyConfig,
    position: usize,
    last_sent: Instant,
    reader: &Reader,
    running: bool,
) {
    reader.holds(position, 1).await;
    let due = last_sent + config.coalesce();
    // A timer rounds up to its next tick, which a first piece need not wait for.
    if running && Instant::now() < due {
        tokio::select! {
            biased;
            () = reader.holds(position, config.coalesce_bytes) => {}
            () = sleep_until(due) => {}
        }
    }
}

async fn stop_from_outside(until: &Until<'_>) -> Stop {
    let left = until.deadline.duration_since(SystemTime::now()).unwrap_or_default();
    tokio::select! {
        () = tokio::time::sleep(left) => Stop::Deadline,
        () = until.hand_off.cancelled() => Stop::HandOff,
        () = until.lost.cancelled() => Stop::HandOff,
    }
}

fn log_lost(address: &Address<'_>, error: &nsbridge_queue::Error) {
    tracing::warn!(request = %address.request, %error, "a reply's channel is gone, opening another attempt");
}
