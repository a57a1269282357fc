//! Loaded model: passes each request to a free slot of a Python process.

use std::sync::Arc;

use nsbridge_handler::{AsyncJob, Error, Fingerprint, Finish, Health, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::call::Call;
use crate::host::{Background, Host};
use crate::messages::Ready;
use crate::plan::Plan;
use crate::pool::Slot;

/// Model that is loaded in Python processes, whatever the types of its inputs and pieces.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) host: Arc<Host>,
    background: Background,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) schema: Option<Value>,
    /// Number of calls at a time in all processes.
    pub(crate) tasks: usize,
}

impl Model {
    /// Starts the processes and waits until each has loaded the model.
    ///
    /// # Errors
    ///
    /// Returns an error if a process cannot be started, or if it cannot load the model.
    pub(crate) async fn load(plan: Plan) -> Result<Self> {
        let host = Arc::new(Host::new(plan));
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

    /// Answers a request.
    pub(crate) async fn handle<O>(&self, input: &RawValue, job: &mut AsyncJob<O>) -> Result<Finish>
    where
        O: Serialize + DeserializeOwned,
    {
        loop {
            let slot = tokio::select! {
                biased;
                stop = job.stopped() => return Err(stop.into()),
                slot = self.host.pool.take() => slot.ok_or_else(|| self.gone())?,
            };
            if let Some(ended) = self.call(slot, input, job).await {
                return ended;
            }
        }
    }

    pub(crate) fn health(&self) -> Health {
        self.host.broken().map_or(Health::Ok, Health::failed)
    }

    /// Runs a call. Returns `None` if the slot's process had ended before it took the call.
    async fn call<O>(
        &self,
        slot: Slot,
        input: &RawValue,
        job: &mut AsyncJob<O>,
    ) -> Option<Result<Finish>>
    where
        O: Serialize + DeserializeOwned,
    {
        match Call::new(slot, &self.host, self.background.runtime()) {
            Ok(call) => call.run(input, job).await,
            Err(error) => Some(Err(error)),
        }
    }

    fn gone(&self) -> Error {
        Error::fatal(self.host.broken().unwrap_or("the Python processes have ended").to_owned())
    }
}
