//! LLM engine as a worker's handler, and its reference text from an undisturbed run.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use futures_executor::block_on;
use nsbridge_handler::{
    AsyncHandler, AsyncJob, Fingerprint, Finish, Health, Model, Models, TextPiece, testing,
};
use nsbridge_llama::Llama;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::calls::Runs;
use crate::order::Order;

/// `[handler]` table of the configuration.
#[derive(Deserialize)]
pub(crate) struct Options {
    /// Folder of the journal.
    dir: PathBuf,
    worker: String,
    engine: nsbridge_llama::Options,
}

/// Handler that completes the prompt of its input and records each call in the journal.
#[derive(Debug)]
pub(crate) struct Engine {
    runs: Runs,
    llama: Llama,
}

impl AsyncHandler for Engine {
    type Options = Options;
    type Input = Order;
    type Output = TextPiece;

    async fn load(options: Options, models: Models) -> nsbridge_handler::Result<Self> {
        let runs = Runs::in_dir(&options.dir, options.worker)?;
        Ok(Self { runs, llama: Llama::load(options.engine, models).await? })
    }

    async fn handle(
        &self,
        order: Order,
        job: &mut AsyncJob<TextPiece>,
    ) -> nsbridge_handler::Result<Finish> {
        let resumed = job.accept_resume().len();
        let mut call = self.runs.begin(order.n, job.info(), resumed);
        let input =
            serde_json::from_value(input(&order)).map_err(nsbridge_handler::Error::fatal)?;
        let made = self.llama.handle(input, job).await;
        call.how = made.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned());
        made
    }

    fn tasks(&self) -> usize {
        self.llama.tasks()
    }

    async fn warm_up(&self) -> nsbridge_handler::Result<()> {
        self.llama.warm_up().await
    }

    fn health(&self) -> Health {
        self.llama.health()
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        self.llama.fingerprint()
    }
}

/// Returns the engine's input; the maximum number of tokens is the number of pieces.
fn input(order: &Order) -> Value {
    json!({ "prompt": order.prompt, "max_tokens": order.pieces, "ignore_eos": true, "temperature": 0.8 })
}

/// Engine with default options: one rank, no draft.
#[derive(Debug)]
pub(crate) struct Lone(Llama);

impl Lone {
    pub(crate) fn load(model: &Path) -> Result<Self> {
        let models: Models = [("target".to_owned(), Model::in_dir(model))].into_iter().collect();
        let llama = block_on(Llama::load(nsbridge_llama::Options::default(), models));
        Ok(Self(llama.map_err(|error| anyhow!("{error}"))?))
    }

    /// Returns the text of an undisturbed run, piece by piece.
    pub(crate) fn run(&self, order: &Order, seed: u64) -> Result<Vec<String>> {
        let (call, reader) = testing::call(&input(order), seed);
        block_on(nsbridge_handler::erased::AnyHandler::call(&self.0, call))
            .map_err(|error| anyhow!("{error}"))?;
        let pieces = testing::pieces::<TextPiece>(&reader).map_err(|error| anyhow!("{error}"))?;
        Ok(pieces.into_iter().map(|piece| piece.text).collect())
    }
}
