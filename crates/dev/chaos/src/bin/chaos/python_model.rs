//! Model in Python as a worker's handler.

use std::path::PathBuf;

use nsbridge_handler::{
    AsyncHandler, AsyncJob, Error, Fingerprint, Finish, Health, Measure, Models, Result,
};
use nsbridge_python::Python;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use crate::calls::Runs;
use crate::order::{Does, Order};

/// `[handler]` table of the configuration.
#[derive(Deserialize)]
pub(crate) struct Options {
    /// Folder of the journal.
    dir: PathBuf,
    worker: String,
    python: nsbridge_python::Options,
}

/// Handler that passes each order to `model.py` and records each call in the journal.
#[derive(Debug)]
pub(crate) struct PythonModel {
    runs: Runs,
    python: Python,
}

impl AsyncHandler for PythonModel {
    type Options = Options;
    type Input = Order;
    type Output = Box<RawValue>;

    async fn load(options: Options, models: Models) -> Result<Self> {
        let runs = Runs::in_dir(&options.dir, options.worker)?;
        Ok(Self { runs, python: Python::load(options.python, models).await? })
    }

    async fn handle(&self, order: Order, job: &mut AsyncJob<Box<RawValue>>) -> Result<Finish> {
        let resumed = if order.deaf { 0 } else { job.accept_resume().len() };
        let mut call = self.runs.begin(order.n, job.info(), resumed);
        let input = input(&order, job.info().attempt.is_retry())?;
        let made = self.python.handle(input, job).await;
        call.how = made.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned());
        made
    }

    fn tasks(&self) -> usize {
        self.python.tasks()
    }

    async fn warm_up(&self) -> Result<()> {
        self.python.warm_up().await
    }

    fn health(&self) -> Health {
        self.python.health()
    }

    fn measures(&self) -> Vec<Measure> {
        self.python.measures()
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        self.python.fingerprint()
    }
}

/// Returns the input of `model.py`.
fn input(order: &Order, is_retry: bool) -> Result<Box<RawValue>> {
    let (misdeed, at) = match order.does {
        Does::Crash { how, at, always } if always || !is_retry => (json!(how), json!(at)),
        Does::Hang { how, at } => (json!(how), json!(at)),
        _ => (json!(null), json!(null)),
    };
    let input = json!({
        "pieces": order.pieces,
        "every_ms": order.every_ms,
        "deaf": order.deaf,
        "misdeed": misdeed,
        "at": at,
    });
    to_raw_value(&input).map_err(Error::fatal)
}
