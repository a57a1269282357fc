//! Text handler that emits without a delay, unless it is told to wait.

use std::time::Duration;

use nsbridge_client::{TextInput, TextPiece};
use nsbridge_handler::{AsyncHandler, AsyncJob, Finish, Models, Result, Usage};
use tokio::sync::watch;

/// False while requests wait.
static OPEN: std::sync::LazyLock<watch::Sender<bool>> =
    std::sync::LazyLock::new(|| watch::Sender::new(true));

/// Opens or closes all workers of this process.
pub(crate) fn set(open: bool) {
    OPEN.send_replace(open);
}

/// Number of concurrent requests, and pace of each.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
pub(crate) struct Pace {
    pub(crate) tasks: usize,
    /// Time between two words; zero for none.
    pub(crate) every: Duration,
}

#[derive(Debug)]
pub(crate) struct Words(Pace);

impl AsyncHandler for Words {
    type Options = Pace;
    type Input = TextInput;
    type Output = TextPiece;

    async fn load(pace: Pace, _models: Models) -> Result<Self> {
        Ok(Self(pace))
    }

    async fn handle(&self, input: TextInput, job: &mut AsyncJob<TextPiece>) -> Result<Finish> {
        let mut open = OPEN.subscribe();
        tokio::select! {
            _ = open.wait_for(|open| *open) => {}
            stop = job.stopped() => return Err(stop.into()),
        }
        let pieces = input.max_tokens.unwrap_or(1);
        let mut next = tokio::time::Instant::now();
        for token in 0..pieces {
            if !self.0.every.is_zero() {
                next += self.0.every;
                tokio::select! {
                    () = tokio::time::sleep_until(next) => {}
                    stop = job.stopped() => return Err(stop.into()),
                }
            }
            job.emit(TextPiece::new(token, "word ")).await?;
        }
        let usage = Usage::new(0, pieces.into());
        Ok(Finish::LENGTH.with_usage(usage))
    }

    fn tasks(&self) -> usize {
        self.0.tasks
    }
}
