//! Object-safe form of both handler traits, which the bridge uses for every handler.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use nsbridge_protocol::{Fingerprint, Finish, Pieces};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::handler::{AsyncHandler, Handler, Health};
use crate::job::{AsyncJob, Job, JobInfo};
use crate::measure::Measure;
use crate::models::Models;
use crate::transcript::Writer;

/// Arguments of one call.
#[derive(Debug)]
pub struct Call {
    /// Input of the request as JSON.
    pub input: Vec<u8>,
    /// Information about the request for the handler.
    pub info: JobInfo,
    /// Pieces that the client already has.
    pub resume: Option<Pieces>,
    /// Destination of the pieces.
    pub writer: Writer,
}

/// Creates the job of a call of an inner handler, for a layer around it.
pub fn job<O: Serialize + DeserializeOwned>(
    info: JobInfo,
    writer: Writer,
    resume: Option<Pieces>,
) -> Job<O> {
    Job::new(info, writer, resume)
}

/// Creates the job of a call of an inner asynchronous handler, for a layer around it.
pub fn async_job<O: Serialize + DeserializeOwned>(
    info: JobInfo,
    writer: Writer,
    resume: Option<Pieces>,
) -> AsyncJob<O> {
    AsyncJob::new(info, writer, resume)
}

/// Maximum number of concurrent calls, and the threads they run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// This many threads with one call each, for a [`Handler`]. The futures of [`AnyHandler`] block
    /// the thread that polls them, and are ready at the first poll.
    Threads(usize),
    /// This many calls interleaved on one thread, for an [`AsyncHandler`].
    Tasks(usize),
}

impl Slots {
    /// Returns the maximum number of concurrent calls, at least one.
    pub fn count(self) -> usize {
        match self {
            Self::Threads(n) | Self::Tasks(n) => n.max(1),
        }
    }
}

/// Handler with its types erased, so that the bridge is compiled once.
pub trait AnyHandler: Send + Sync {
    /// Decodes the input and runs `handle`.
    fn call(&self, call: Call) -> LocalBoxFuture<'_, Result<Finish>>;

    /// Runs `warm_up`.
    fn warm_up(&self) -> LocalBoxFuture<'_, Result<()>>;

    /// Returns the number of concurrent calls and the kind of thread they run on.
    fn slots(&self) -> Slots;

    /// Returns the health of the model.
    fn health(&self) -> Health;

    /// Drops cached data of ended requests.
    fn forget(&self);

    /// Returns the handler's metrics.
    fn measures(&self) -> Vec<Measure>;

    /// Returns the id of everything besides the request that determines the tokens.
    fn fingerprint(&self) -> Option<Fingerprint>;
}

impl<H: AsyncHandler> AnyHandler for H {
    fn call(&self, call: Call) -> LocalBoxFuture<'_, Result<Finish>> {
        async move {
            let Call { input, info, resume, writer } = call;
            self.handle(decode(&input)?, &mut AsyncJob::new(info, writer, resume)).await
        }
        .boxed_local()
    }

    fn warm_up(&self) -> LocalBoxFuture<'_, Result<()>> {
        AsyncHandler::warm_up(self).boxed_local()
    }

    fn slots(&self) -> Slots {
        Slots::Tasks(self.tasks())
    }

    fn health(&self) -> Health {
        AsyncHandler::health(self)
    }

    fn forget(&self) {
        AsyncHandler::forget(self);
    }

    fn measures(&self) -> Vec<Measure> {
        AsyncHandler::measures(self)
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        AsyncHandler::fingerprint(self)
    }
}

/// [`Handler`] as an [`AnyHandler`].
#[derive(Debug)]
pub struct Blocking<H>(pub Arc<H>);

impl<H: Handler> AnyHandler for Blocking<H> {
    fn call(&self, call: Call) -> LocalBoxFuture<'_, Result<Finish>> {
        async move {
            let Call { input, info, resume, writer } = call;
            self.0.handle(decode(&input)?, &mut Job::new(info, writer, resume))
        }
        .boxed_local()
    }

    fn warm_up(&self) -> LocalBoxFuture<'_, Result<()>> {
        async { self.0.warm_up() }.boxed_local()
    }

    fn slots(&self) -> Slots {
        Slots::Threads(self.0.threads())
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn forget(&self) {
        self.0.forget();
    }

    fn measures(&self) -> Vec<Measure> {
        self.0.measures()
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        self.0.fingerprint()
    }
}

fn decode<I: DeserializeOwned>(input: &[u8]) -> Result<I> {
    serde_json::from_slice(input)
        .map_err(|error| Error::bad_input(format!("the input does not fit: {error}")))
}

/// Marker of a [`Handler`] in [`Servable`].
#[derive(Debug)]
pub enum OnThreads {}

/// Marker of an [`AsyncHandler`] in [`Servable`].
#[derive(Debug)]
pub enum AsTasks {}

/// Handler of either trait. The marker `K` keeps the two implementations apart, and the compiler
/// infers it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a `Handler` nor an `AsyncHandler`",
    note = "docs/handlers.md says which of the two traits to take"
)]
pub trait Servable<K>: Send + Sync + Sized + 'static {
    /// Type of the `[handler]` table of the worker's configuration.
    type Options: DeserializeOwned + Send + 'static;

    /// Type of one piece of the reply.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// True if the futures of [`load`](Self::load) and of the [`AnyHandler`] block the thread that
    /// polls them. They need no runtime then.
    const BLOCKS: bool;

    /// Loads the handler.
    fn load(options: Self::Options, models: Models) -> LocalBoxFuture<'static, Result<Self>>;

    /// Erases the types of a loaded handler.
    fn erase(handler: Arc<Self>) -> Arc<dyn AnyHandler>;
}

impl<H: Handler> Servable<OnThreads> for H {
    type Options = H::Options;
    type Output = H::Output;

    const BLOCKS: bool = true;

    fn load(options: Self::Options, models: Models) -> LocalBoxFuture<'static, Result<Self>> {
        std::future::ready(<H as Handler>::load(options, models)).boxed_local()
    }

    fn erase(handler: Arc<Self>) -> Arc<dyn AnyHandler> {
        Arc::new(Blocking(handler))
    }
}

impl<H: AsyncHandler> Servable<AsTasks> for H {
    type Options = H::Options;
    type Output = H::Output;

    const BLOCKS: bool = false;

    fn load(options: Self::Options, models: Models) -> LocalBoxFuture<'static, Result<Self>> {
        Box::pin(<H as AsyncHandler>::load(options, models))
    }

    fn erase(handler: Arc<Self>) -> Arc<dyn AnyHandler> {
        handler
    }
}
