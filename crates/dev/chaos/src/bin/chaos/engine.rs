//! LLM engine as a worker's handler, and its reference reply from an undisturbed run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use nsbridge_handler::{
    AsyncHandler, AsyncJob, Error, Fingerprint, Finish, Health, Model, Models, TextPiece, testing,
};
use nsbridge_llama::Llama;
use serde::Deserialize;

use crate::calls::Runs;
use crate::order::{Order, Piece};

/// `[handler]` table of the configuration.
#[derive(Deserialize)]
pub(crate) struct Options {
    /// Folder of the journal.
    dir: PathBuf,
    worker: String,
    engine: nsbridge_llama::Options,
}

/// Handler that answers the input in its order and records each call in the journal.
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
        let input = serde_json::from_value(order.input.unwrap_or_default());
        let input = input.map_err(Error::fatal)?;
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

/// Engine with default options: one rank, no draft.
#[derive(Debug)]
pub(crate) struct Lone(Arc<Llama>);

impl Lone {
    pub(crate) fn load(model: &Path) -> Result<Self> {
        let models: Models = [("target".to_owned(), Model::in_dir(model))].into_iter().collect();
        let llama = testing::load(nsbridge_llama::Options::default(), models);
        llama.map(Self).map_err(|error| anyhow!("{error}"))
    }

    /// Returns the pieces of an undisturbed run.
    pub(crate) fn run(&self, order: &Order, seed: u64) -> Result<Vec<Piece>> {
        let input = order.input.clone().unwrap_or_default();
        let answer = testing::answer(&self.0, &input, seed, &[]);
        let (pieces, _) = answer.map_err(|error| anyhow!("{error}"))?;
        Ok(pieces.into_iter().map(Piece::from).collect())
    }
}
