//! Window of published frames that the broker has not confirmed yet.

use std::collections::VecDeque;
use std::future::pending;
use std::time::Duration;

use futures_util::FutureExt;
use nsbridge_queue::{Confirm, Confirmation, Error, Message, Publisher, Result};
use tokio::time::{Instant, sleep_until};

use crate::observability::metrics::Metrics;
use crate::request::reply_queue_check::ReplyQueueCheck;
use crate::timing::Timing;

/// Frames of one channel in publish order, each until it is confirmed.
#[derive(Debug)]
pub(crate) struct ConfirmWindow<'a> {
    publisher: Box<dyn Publisher>,
    check: ReplyQueueCheck<'a>,
    metrics: Metrics,
    exchange: &'static str,
    key: String,
    frames: VecDeque<UnconfirmedFrame>,
    /// Index of the first frame to send again, and the time for it.
    resend: Option<(usize, Instant)>,
    missing_since: Option<Instant>,
    /// True once the broker has acked or returned a frame.
    has_confirmed: bool,
    gone: bool,
    gone_after: Duration,
    full_pause: Duration,
    /// Reason why the channel cannot confirm any more frames; `None` while it can.
    lost: Option<String>,
}

struct UnconfirmedFrame {
    confirm: Confirm,
    /// Time of the first publish.
    since: Instant,
    /// Kept, because the same bytes are sent again if the queue was full: a frame is never sealed
    /// twice.
    message: Message,
}

impl std::fmt::Debug for UnconfirmedFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.message.fmt(f)
    }
}

impl<'a> ConfirmWindow<'a> {
    pub(crate) fn new(
        publisher: Box<dyn Publisher>,
        check: ReplyQueueCheck<'a>,
        exchange: &'static str,
        key: String,
        metrics: Metrics,
        timing: &Timing,
    ) -> Self {
        Self {
            publisher,
            check,
            metrics,
            exchange,
            key,
            frames: VecDeque::new(),
            resend: None,
            missing_since: None,
            has_confirmed: false,
            gone: false,
            gone_after: timing.client_gone_after,
            full_pause: timing.full_reply_queue_pause,
            lost: None,
        }
    }

    /// Returns the channel, for when nothing is in flight.
    pub(crate) fn into_publisher(self) -> Box<dyn Publisher> {
        self.publisher
    }

    /// Returns the number of frames in flight.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns true if the broker has acked or returned a frame.
    pub(crate) fn has_confirmed(&self) -> bool {
        self.has_confirmed
    }

    /// Returns true if the client counts as gone (rule R10).
    pub(crate) fn client_gone(&self) -> bool {
        self.gone
    }

    /// Publishes a frame and keeps it until it is confirmed. After a nack it only keeps the frame:
    /// [`read_confirms`](Self::read_confirms) publishes it after the refused ones.
    pub(crate) async fn push(&mut self, message: Message) -> Result<()> {
        let confirm = if self.resend.is_some() {
            // The frame is sent after those before it, by the resend.
            pending().boxed()
        } else {
            self.publisher.publish(self.exchange, &self.key, message.clone()).await?
        };
        self.metrics.frame_sent();
        self.frames.push_back(UnconfirmedFrame { confirm, since: Instant::now(), message });
        Ok(())
    }

    /// Waits for the oldest confirm, then takes all others that have come. After a nack, publishes
    /// the refused frame and all later ones again (rule A6), or drops all frames if the node of the client's
    /// reply queue is down.
    ///
    /// Cancel safe. Pending while nothing is in flight. An error is permanent, because a confirm
    /// that has completed cannot be polled again.
    pub(crate) async fn read_confirms(&mut self) -> Result<()> {
        if let Some(reason) = &self.lost {
            return Err(Error::Lost { reason: reason.clone() });
        }
        let read = self.read_some().await;
        if let Err(error) = &read {
            self.lost = Some(error.to_string());
        }
        read
    }

    async fn read_some(&mut self) -> Result<()> {
        if self.resend.is_some() {
            return self.send_again().await;
        }
        let Some(oldest) = self.frames.front_mut() else { return pending().await };
        let confirmed = oldest.confirm.as_mut().await?;
        self.note(confirmed);
        while self.resend.is_none()
            && let Some(next) = self.frames.front_mut()
            && let Some(confirmed) = next.confirm.as_mut().now_or_never()
        {
            self.note(confirmed?);
        }
        Ok(())
    }

    /// Waits until the broker has acked or returned every frame. A returned frame is not sent again,
    /// because the client's reply queue does not exist (rule R8). The same holds for a queue whose node is
    /// down.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        while !self.frames.is_empty() {
            self.read_confirms().await?;
        }
        Ok(())
    }

    /// Applies the broker's answer to the oldest frame.
    fn note(&mut self, confirmed: Confirmation) {
        match confirmed {
            Confirmation::Ack => self.missing_since = None,
            Confirmation::Returned => {
                let since = *self.missing_since.get_or_insert_with(Instant::now);
                self.gone |= since.elapsed() >= self.gone_after;
            }
            Confirmation::Nack => {
                self.check.refused();
                self.resend = Some((0, Instant::now() + self.full_pause));
                return;
            }
        }
        self.check.answered();
        self.has_confirmed = true;
        if let Some(frame) = self.frames.pop_front() {
            self.metrics.confirmed(frame.since.elapsed());
        }
    }

    /// Sends the refused frame and all later ones again, in order (rule A6). Drops them if the node of the
    /// reply queue is down.
    ///
    /// Cancel safe: it continues at the same frame, and a reader ignores a frame that was sent
    /// twice.
    async fn send_again(&mut self) -> Result<()> {
        while let Some((next, at)) = self.resend {
            let Some(frame) = self.frames.get_mut(next) else { break };
            tokio::select! {
                () = sleep_until(at) => {}
                () = self.check.node_down(&self.key) => {
                    self.gone = true;
                    self.frames.clear();
                    break;
                }
            }
            let again = frame.message.clone();
            frame.confirm = self.publisher.publish(self.exchange, &self.key, again).await?;
            self.resend = Some((next + 1, at));
        }
        self.resend = None;
        Ok(())
    }
}
