//! Opening of one stream after another for a job's reply.

use std::time::Duration;

use nsbridge_base::Pauses;
use nsbridge_base::random::random;
use nsbridge_handler::transcript::StartAt;
use nsbridge_protocol::AttemptNo;
use tokio::time::sleep;

use crate::request::reply_stream::{ReplyContext, ReplyStream, StreamError, Undeliverable};

/// Opener of a job's streams. It backs off while the broker confirms no frame of them.
pub(crate) struct StreamOpener<'a> {
    context: &'a ReplyContext<'a>,
    pauses: Pauses,
    /// Pause before the next stream.
    pause: Duration,
}

impl<'a> StreamOpener<'a> {
    pub(crate) fn new(context: &'a ReplyContext<'a>) -> Self {
        Self { context, pauses: context.timing.open_retry.pauses(), pause: Duration::ZERO }
    }

    /// Opens a stream under a fresh key: seals its open frame and publishes it. Retries until it is
    /// published, or the reply is overdue, or the worker can publish no reply. Does not wait for the
    /// publisher confirm.
    pub(crate) async fn open(
        &mut self,
        number: AttemptNo,
        start: StartAt,
    ) -> Result<ReplyStream<'a>, Undeliverable> {
        let context = self.context;
        loop {
            let opened = async {
                rest(self.pause).await;
                ReplyStream::open(context, number, start).await
            };
            let opened = tokio::select! {
                opened = opened => opened,
                () = context.publishing.given_up() => return Err(Undeliverable::Overdue),
                () = context.overdue.cancelled() => return Err(Undeliverable::Overdue),
            };
            match opened {
                Ok(stream) => return Ok(stream),
                Err(StreamError::Seal(error)) => return Err(Undeliverable::Seal(error)),
                Err(StreamError::Lost(error)) => {
                    tracing::warn!(request = %context.request, %error, "could not open a reply");
                    self.back_off();
                }
            }
        }
    }

    /// Records that the channel of a stream is gone, and if the broker had confirmed a frame on it. The
    /// stream is never continued: another stream sends the whole reply (rule A5). A frame that could
    /// not be sealed is an error, because another stream would meet it too.
    pub(crate) fn lost(
        &mut self,
        has_confirmed: bool,
        error: StreamError,
    ) -> Result<(), Undeliverable> {
        let error = match error {
            StreamError::Lost(error) => error,
            StreamError::Seal(error) => return Err(Undeliverable::Seal(error)),
        };
        let request = self.context.request;
        tracing::warn!(%request, %error, "a reply's channel is gone, opening another stream");
        if has_confirmed {
            self.pauses.reset();
            self.pause = Duration::ZERO;
            self.context.publishing.doubt();
        } else {
            self.back_off();
        }
        Ok(())
    }

    fn back_off(&mut self) {
        self.pause = self.pauses.next(random());
        self.context.publishing.doubt();
    }
}

/// Waits for a pause. The timer of the runtime rounds up to whole milliseconds, so that a sleep of zero
/// would delay each reply by about one.
async fn rest(pause: Duration) {
    if !pause.is_zero() {
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::time::advance;

    use super::rest;

    #[tokio::test(start_paused = true)]
    async fn a_first_stream_opens_without_a_pause() {
        advance(Duration::from_micros(500)).await;
        assert!(rest(Duration::ZERO).now_or_never().is_some());
        assert!(rest(Duration::from_millis(1)).now_or_never().is_none());
    }
}
