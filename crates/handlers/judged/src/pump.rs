//! Passage of pieces from the handler to the client, through the judge.

use std::pin::pin;

use futures_util::future::{Either, poll_fn, select};
use nsbridge_handler::transcript::{Cursor, Reader};
use nsbridge_handler::{
    AsyncJob, Emitter, Error, Finish, FinishReason, Job, Pieces, Result, Stop, TextPiece, Usage,
};
use tokio::sync::oneshot;

use crate::counts::{Counts, Phase};
use crate::hold::Hold;
use crate::judge::Judge;

/// Number of pieces after which other calls of the thread go on.
const PIECES: usize = 256;

/// Job of the client, of either trait.
pub(crate) trait ClientJob {
    /// Promises to continue after the pieces that the client has.
    fn accept_resume(&mut self);

    fn set_max_pieces(&mut self, pieces: usize);
}

impl ClientJob for Job<TextPiece> {
    fn accept_resume(&mut self) {
        Self::accept_resume(self);
    }

    fn set_max_pieces(&mut self, pieces: usize) {
        Self::set_max_pieces(self, pieces);
    }
}

impl ClientJob for AsyncJob<TextPiece> {
    fn accept_resume(&mut self) {
        Self::accept_resume(self);
    }

    fn set_max_pieces(&mut self, pieces: usize) {
        Self::set_max_pieces(self, pieces);
    }
}

/// Returns to the executor once, so that the other calls of the thread go on.
pub(crate) async fn let_others_go_on() {
    let mut done = false;
    poll_fn(|context| {
        if std::mem::replace(&mut done, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// Reply in progress. Dropping it stops the handler.
#[derive(Debug)]
pub(crate) struct Pump<'a, J> {
    pub(crate) reader: Reader,
    pub(crate) cursor: Cursor,
    pub(crate) emitter: Emitter<TextPiece>,
    pub(crate) hold: Hold<'a, J>,
    pub(crate) counts: &'a Counts,
}

impl<J: Judge> Pump<'_, J> {
    /// Passes pieces on until the handler has returned, the reply is refused or the call must stop.
    pub(crate) async fn run(
        mut self,
        job: &mut impl ClientJob,
        returned: oneshot::Receiver<Result<Finish>>,
    ) -> Result<Finish> {
        let emitter = self.emitter.clone();
        let (mut stopped, mut returned) = (pin!(emitter.stopped()), returned);
        loop {
            let event = {
                let more = pin!(self.cursor.wait_for_bytes(1));
                let ended = pin!(select(&mut returned, more));
                match select(stopped.as_mut(), ended).await {
                    Either::Left((stop, _)) => return Err(stop.into()),
                    Either::Right((event, _)) => match event {
                        Either::Left((result, _)) => Some(result),
                        Either::Right(_) => None,
                    },
                }
            };
            self.pass(job).await?;
            if self.hold.is_over() {
                return Ok(self.finish(None));
            }
            if let Some(result) = event {
                // The sender is dropped without a result by a panic alone.
                let finish = result.map_err(|_| Error::fatal("the handler panicked"))??;
                for category in self.hold.end() {
                    self.counts.refused(category, Phase::After);
                }
                self.send().await?;
                return Ok(self.finish(Some(finish)));
            }
        }
    }

    /// Reads the new pieces, judges them and sends those that can be sent.
    async fn pass(&mut self, job: &mut impl ClientJob) -> Result<()> {
        let mut list = Vec::new();
        if self.cursor.read(usize::MAX, &mut list) == 0 {
            return Ok(());
        }
        let batch = Pieces::decode(&list)?;
        let resumed = self.reader.resumed();
        if batch.first == 0 {
            if let Some(most) = self.reader.max_pieces() {
                job.set_max_pieces(most);
            }
            if resumed > 0 {
                job.accept_resume();
            }
        }
        for (index, piece) in (batch.first as usize..).zip(batch.pieces) {
            // The pieces of a resume can be many.
            if index % PIECES == PIECES - 1 {
                let_others_go_on().await;
            }
            let piece: TextPiece = serde_json::from_slice(&piece)?;
            if let Some(category) = self.hold.push(piece, index < resumed) {
                self.counts.refused(category, Phase::After);
            }
        }
        self.cursor.mark_sent();
        self.send().await?;
        Ok(())
    }

    async fn send(&mut self) -> Result<(), Stop> {
        while let Some(piece) = self.hold.release() {
            self.emitter.emit(&piece).await?;
        }
        Ok(())
    }

    /// Returns the finish of the request: the handler's own if nothing is refused.
    ///
    /// The usage of a refused reply counts the pieces that were sent, because the number that the
    /// handler has made until it stops depends on the time.
    fn finish(&self, own: Option<Finish>) -> Finish {
        self.counts.judged(self.hold.begun() as u64, Phase::After);
        let reason = own.map_or(FinishReason::Stop, |own| own.reason);
        let reason = self.hold.finish_reason().unwrap_or(reason);
        if let Some(own) = own.filter(|_| self.hold.refused() == 0) {
            return own;
        }
        let input_tokens = self.reader.input_tokens().unwrap_or(0);
        let usage = Usage::new(input_tokens, self.hold.released());
        Finish::because(reason).with_usage(usage)
    }
}
