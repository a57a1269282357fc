//! Engines of text as a worker's handler, and their reference replies from an undisturbed run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use nsbridge_handler::{
    AsyncHandler, AsyncJob, Error, Fingerprint, Finish, Health, Measure, Model, Models, TextPiece,
    testing,
};
use nsbridge_llama::Llama;
use serde::Deserialize;

use crate::calls::Runs;
use crate::order::{Order, Piece};

/// Handler of an engine of text.
pub(crate) trait OfText: AsyncHandler<Output = TextPiece> {}

impl<H: AsyncHandler<Output = TextPiece>> OfText for H {}

/// `[handler]` table of the configuration.
#[derive(Deserialize)]
pub(crate) struct Options<E> {
    /// Folder of the journal.
    dir: PathBuf,
    worker: String,
    engine: E,
}

/// Handler that answers the input in its order by an engine and records each call in the journal.
#[derive(Debug)]
pub(crate) struct Recorded<H> {
    runs: Runs,
    engine: H,
}

impl<H: OfText> AsyncHandler for Recorded<H> {
    type Options = Options<H::Options>;
    type Input = Order;
    type Output = TextPiece;

    async fn load(options: Self::Options, models: Models) -> nsbridge_handler::Result<Self> {
        let runs = Runs::in_dir(&options.dir, options.worker)?;
        Ok(Self { runs, engine: H::load(options.engine, models).await? })
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
        let made = self.engine.handle(input, job).await;
        call.how = made.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned());
        made
    }

    fn tasks(&self) -> usize {
        self.engine.tasks()
    }

    async fn warm_up(&self) -> nsbridge_handler::Result<()> {
        self.engine.warm_up().await
    }

    fn health(&self) -> Health {
        self.engine.health()
    }

    fn measures(&self) -> Vec<Measure> {
        self.engine.measures()
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        self.engine.fingerprint()
    }
}

/// Engine in the driver's own process, which no fault hits.
#[derive(Debug)]
pub(crate) struct Lone<H = Llama>(Arc<H>);

impl Lone {
    /// Loads the own engine with default options: one rank, no draft.
    pub(crate) fn load(model: &Path) -> Result<Self> {
        Self::of(nsbridge_llama::Options::default(), model)
    }
}

impl<H: OfText> Lone<H> {
    /// Loads the model in a folder.
    pub(crate) fn of(options: H::Options, model: &Path) -> Result<Self> {
        let models: Models = [("target".to_owned(), Model::in_dir(model))].into_iter().collect();
        let engine = testing::load(options, models);
        engine.map(Self).map_err(|error| anyhow!("{error}"))
    }

    /// Returns the pieces of an undisturbed run.
    pub(crate) fn run(&self, order: &Order, seed: u64) -> Result<Vec<Piece>> {
        let input = order.input.clone().unwrap_or_default();
        let answer = testing::answer(&self.0, &input, seed, &[]);
        let (pieces, _) = answer.map_err(|error| anyhow!("{error}"))?;
        Ok(pieces.into_iter().map(Piece::from).collect())
    }
}
