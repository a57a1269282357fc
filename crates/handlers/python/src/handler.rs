//! Handler of a model in Python whose inputs and pieces are any JSON.

use std::fmt;

use nsbridge_handler::{
    AsyncHandler, AsyncJob, Error, Fingerprint, Finish, Health, Measure, Models, Result,
};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::model::Model;
use crate::options::Options;
use crate::plan::Plan;
use crate::start::{Started, start};

type Piece = Box<RawValue>;

/// Handler of a model in Python. Inputs and pieces are any JSON.
pub struct Python(Model);

/// Returns the JSON schema of the inputs of a model, without its `load`. `None` if any JSON fits.
///
/// # Errors
///
/// Returns an error if the model's file cannot be imported, or if a type hint is not supported.
pub async fn schema(options: Options) -> Result<Option<Value>> {
    let mut plan = Plan::new(options, &Models::default())?;
    plan.load = false;
    let Started { ready, .. } = start(&plan).await.map_err(Error::fatal)?;
    Ok(ready.schema)
}

impl AsyncHandler for Python {
    type Options = Options;
    type Input = Piece;
    type Output = Piece;

    async fn load(options: Options, models: Models) -> Result<Self> {
        Model::load(Plan::new(options, &models)?).await.map(Self)
    }

    async fn handle(&self, input: Piece, job: &mut AsyncJob<Piece>) -> Result<Finish> {
        self.0.handle(&input, job).await
    }

    fn tasks(&self) -> usize {
        self.0.tasks
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn measures(&self) -> Vec<Measure> {
        self.0.host.measures()
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(self.0.fingerprint)
    }
}

impl Python {
    /// Returns the JSON schema of the inputs. `None` if any JSON fits.
    pub fn schema(&self) -> Option<&Value> {
        self.0.schema.as_ref()
    }
}

impl fmt::Debug for Python {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Python").field("file", &self.0.host.plan().file).finish_non_exhaustive()
    }
}
