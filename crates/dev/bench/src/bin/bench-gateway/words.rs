//! Text handler that emits without a delay, unless it is told to wait.

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

#[derive(Debug)]
pub(crate) struct Words;

impl AsyncHandler for Words {
    type Options = ();
    type Input = TextInput;
    type Output = TextPiece;

    async fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    async fn handle(&self, input: TextInput, job: &mut AsyncJob<TextPiece>) -> Result<Finish> {
        let mut open = OPEN.subscribe();
        tokio::select! {
            _ = open.wait_for(|open| *open) => {}
            stop = job.stopped() => return Err(stop.into()),
        }
        let pieces = input.max_tokens.unwrap_or(1);
        for token in 0..pieces {
            job.emit(TextPiece::new(token, "word ")).await?;
        }
        let usage = Usage { output_tokens: pieces.into(), ..Usage::default() };
        Ok(Finish::LENGTH.with_usage(usage))
    }

    fn tasks(&self) -> usize {
        64
    }
}
