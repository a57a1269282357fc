//! Replies of a call: their pieces in turn, and its end.
//!
//! Pieces leave in a fixed order: the first piece of each reply, then the second of each reply that has
//! not ended, and so on.

use std::sync::Arc;

use nsbridge_handler::{AsyncJob, Error, Finish, FinishReason, Result, TextPiece, Usage};
use tokio::sync::mpsc::{Receiver, channel};

use crate::background::{Background, Task};
use crate::chunk::Counts;
use crate::plan::{Plan, Start};
use crate::server::Server;
use crate::stream::{End, Step, run};

/// Maximum number of pieces by which a reply may be ahead of the others.
const MOST_AHEAD: usize = 4096;

/// Replies of a call.
#[derive(Debug)]
pub(crate) struct Replies {
    replies: Vec<Running>,
    prompt: Option<usize>,
    prompt_pieces: Vec<TextPiece>,
}

/// Reply whose pieces come from a task.
#[derive(Debug)]
struct Running {
    work: Option<(Receiver<Result<Step>>, Task<()>)>,
    /// Number of pieces that the client has.
    told: usize,
    end: Option<End>,
}

impl Running {
    fn new(
        start: Start,
        server: &Arc<Server>,
        background: &Background,
        job: &AsyncJob<TextPiece>,
    ) -> Self {
        let end = start.ended.map(|reason| End { reason, counts: Counts::default() });
        let work = start.request.map(|(request, reply)| {
            let (steps, receiver) = channel(MOST_AHEAD);
            let deadline = job.info().deadline;
            let task = background.spawn(run(server.clone(), request, reply, deadline, steps));
            (receiver, task)
        });
        Self { work, told: start.known, end }
    }

    async fn next(&mut self) -> Result<Step> {
        let lost = || Error::fatal("the thread of the exchanges with the server has ended");
        let (steps, _) = self.work.as_mut().ok_or_else(lost)?;
        steps.recv().await.ok_or_else(lost)?
    }
}

impl Replies {
    /// Starts the requests of a plan.
    pub(crate) fn new(
        plan: Plan,
        server: &Arc<Server>,
        background: &Background,
        job: &mut AsyncJob<TextPiece>,
    ) -> Self {
        if let Some(prompt) = plan.prompt {
            job.set_input_tokens(prompt as u64);
        }
        if let Some(most) = plan.most_pieces {
            job.set_max_pieces(most);
        }
        let start = |start| Running::new(start, server, background, job);
        let replies = plan.replies.into_iter().map(start).collect();
        Self { replies, prompt: plan.prompt, prompt_pieces: plan.prompt_pieces }
    }

    /// Emits all pieces.
    ///
    /// # Errors
    ///
    /// Returns the stop of the call, or the error of a reply.
    pub(crate) async fn run(mut self, job: &mut AsyncJob<TextPiece>) -> Result<Finish> {
        for piece in std::mem::take(&mut self.prompt_pieces) {
            job.emit(piece).await?;
        }
        let several = self.replies.len() > 1;
        while let Some(due) = self.due() {
            let reply = &mut self.replies[due];
            let step = tokio::select! {
                biased;
                stop = job.stopped() => return Err(stop.into()),
                step = reply.next() => step?,
            };
            match step {
                Step::Piece(mut piece) => {
                    if several {
                        piece.index = due as u32;
                    }
                    reply.told += 1;
                    job.emit(piece).await?;
                }
                Step::End(end) => {
                    reply.end = Some(end);
                    // The server may stop its work.
                    reply.work = None;
                }
            }
        }
        Ok(self.finish())
    }

    /// Returns the reply whose turn it is: of those that go on, the one with the fewest pieces.
    fn due(&self) -> Option<usize> {
        let replies = self.replies.iter().enumerate().filter(|(_, reply)| reply.end.is_none());
        replies.min_by_key(|(_, reply)| reply.told).map(|(index, _)| index)
    }

    /// Returns the finish: the reason is that of the first reply, the usage that of all.
    fn finish(&self) -> Finish {
        let ends = || self.replies.iter().filter_map(|reply| reply.end.as_ref());
        let reason = ends().next().map_or(FinishReason::Other, |end| end.reason);
        let cached = ends().find_map(|end| end.counts.cached).unwrap_or(0);
        let input = ends().find_map(|end| end.counts.input).unwrap_or(0);
        let usage = match self.prompt {
            Some(prompt) => {
                let told: usize = self.replies.iter().map(|reply| reply.told).sum();
                Usage::new(prompt as u64, told as u64)
            }
            None => Usage::new(input, ends().filter_map(|end| end.counts.output).sum()),
        };
        let cached = cached.min(usage.input_tokens);
        Finish::because(reason).with_usage(usage.with_cached(cached))
    }
}
