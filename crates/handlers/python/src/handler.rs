//! The handler: passes each request to a free slot of a Python process.

use std::fmt;
use std::sync::Arc;

use nsbridge_handler::{
    AsyncHandler, AsyncJob, Error, Fingerprint, Finish, Health, Measure, Models, Result,
};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::call::{Call, Piece};
use crate::host::{Background, Host};
use crate::messages::Ready;
use crate::options::Options;
use crate::plan::Plan;
use crate::pool::Slot;
use crate::start::start;

/// Handler of a model in Python. Inputs and pieces are any JSON.
pub struct Python {
    host: Arc<Host>,
    background: Background,
    fingerprint: Fingerprint,
    schema: Option<Value>,
    /// Number of calls at a time in all processes.
    tasks: usize,
}

/// Returns the JSON schema of the inputs of a model, without its `load`. `None` if any JSON fits.
///
/// # Errors
///
/// Returns an error if the model's file cannot be imported, or if a type hint is not supported.
pub async fn schema(options: Options) -> Result<Option<Value>> {
    let mut plan = Plan::new(options, &Models::default())?;
    plan.load = false;
    let (_process, _slots, ready) = start(&plan).await.map_err(Error::fatal)?;
    Ok(ready.schema)
}

impl AsyncHandler for Python {
    type Options = Options;
    type Input = Piece;
    type Output = Piece;

    async fn load(options: Options, models: Models) -> Result<Self> {
        let host = Arc::new(Host::new(Plan::new(options, &models)?));
        let background = Background::start()?;
        let start = |_| {
            let (first, ready) = oneshot::channel();
            background.runtime().spawn(host.clone().keep(first));
            ready
        };
        let processes: Vec<_> = (0..host.plan().options.processes).map(start).collect();
        let mut loaded: Option<Ready> = None;
        for process in processes {
            let ended = |_| Error::fatal("the supervisor of the Python processes has ended");
            let ready = process.await.map_err(ended)?.map_err(Error::fatal)?;
            loaded.get_or_insert(ready);
        }
        let ready = loaded.ok_or_else(|| Error::fatal("no Python process was started"))?;
        let fingerprint = host.plan().fingerprint(&ready);
        let tasks = host.plan().options.tasks(ready.slots)?;
        let _ = host.plan().options.loaded_schema.set(ready.schema.clone());
        Ok(Self { host, background, fingerprint, schema: ready.schema, tasks })
    }

    async fn handle(&self, input: Piece, job: &mut AsyncJob<Piece>) -> Result<Finish> {
        loop {
            let slot = tokio::select! {
                biased;
                stop = job.stopped() => return Err(stop.into()),
                slot = self.host.pool.take() => slot.ok_or_else(|| self.gone())?,
            };
            if let Some(ended) = self.call(slot, &input, job).await {
                return ended;
            }
        }
    }

    fn tasks(&self) -> usize {
        self.tasks
    }

    fn health(&self) -> Health {
        self.host.broken().map_or(Health::Ok, Health::failed)
    }

    fn measures(&self) -> Vec<Measure> {
        self.host.measures()
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(self.fingerprint)
    }
}

impl Python {
    /// Returns the JSON schema of the inputs. `None` if any JSON fits.
    pub fn schema(&self) -> Option<&Value> {
        self.schema.as_ref()
    }

    /// Runs a call. Returns `None` if the slot's process had ended before it took the call.
    async fn call(
        &self,
        slot: Slot,
        input: &Piece,
        job: &mut AsyncJob<Piece>,
    ) -> Option<Result<Finish>> {
        match Call::new(slot, &self.host, self.background.runtime()) {
            Ok(call) => call.run(input, job).await,
            Err(error) => Some(Err(error)),
        }
    }

    fn gone(&self) -> Error {
        Error::fatal(self.host.broken().unwrap_or("the Python processes have ended").to_owned())
    }
}

impl fmt::Debug for Python {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Python").field("file", &self.host.plan().file).finish_non_exhaustive()
    }
}
