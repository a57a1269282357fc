//! The two traits of a handler: one that blocks its thread, one that is asynchronous.

use nsbridge_protocol::{Fingerprint, Finish};
use serde::Serialize;
use serde::de::DeserializeOwned;

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::job::{AsyncJob, Job};
use crate::measure::Measure;
use crate::models::Models;

/// Loaded model that answers one request per call, in a plain loop that may block its thread.
///
/// The worker calls [`load`](Self::load) once, before it consumes from the queue. It then calls
/// [`handle`](Self::handle) for each attempt at a request, on up to [`threads`](Self::threads)
/// threads. An engine that interleaves many requests implements [`AsyncHandler`].
///
/// ```
/// use nsbridge_handler::{Finish, Handler, Job, Models, Result};
///
/// struct Countdown;
///
/// impl Handler for Countdown {
///     type Options = ();
///     type Input = u32;
///     type Output = u32;
///
///     fn load((): (), _models: Models) -> Result<Self> {
///         Ok(Self)
///     }
///
///     fn handle(&self, from: u32, job: &mut Job<u32>) -> Result<Finish> {
///         let known = job.accept_resume().len();
///         for number in (0..from).rev().skip(known) {
///             job.emit(number)?;
///         }
///         Ok(Finish::STOP)
///     }
/// }
/// ```
///
/// # Contract
///
/// - The return value of `handle` ends the reply: the worker builds the last frame from it.
/// - A failed [`Job::emit`] ends the call: pass the error on with `?`. Code that runs for long
///   without emitting a piece, such as a prefill, must call [`Job::check`] regularly, so that it
///   notices a stop within two seconds.
/// - A call that ends early leaves the handler able to answer the next request.
/// - The pieces depend on the weights, the input and the seed alone. Another worker can then
///   continue a reply in the middle without a visible break.
/// - A request may be answered by more than one call: in a retry, and after the loss of a worker or
///   of a connection. Such calls may run at the same time, in two workers or in one. A side effect
///   of a call may therefore happen more than once, and the id of a request does not identify a
///   call.
///
/// [`testing::check`](crate::testing) tests a handler against this contract.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `Handler`: implement `load` and `handle`",
    note = "docs/handlers.md shows a handler in twenty lines",
    note = "an engine whose calls await implements `AsyncHandler`, and is served by `serve_async`; \
            a model that answers batches implements `Batch`, and is served by \
            `serve_async::<Batched<..>>`"
)]
pub trait Handler: Send + Sync + Sized + 'static {
    /// Type of the `[handler]` table of the worker's configuration.
    type Options: DeserializeOwned + Send;

    /// Type of a request's content, encoded as JSON.
    type Input: DeserializeOwned + Send;

    /// Type of one piece of the reply, encoded as JSON. For a language model a piece is a token.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// Loads the model. May take minutes.
    ///
    /// # Errors
    ///
    /// An error ends the worker with a non-zero exit code before it takes a request.
    fn load(options: Self::Options, models: Models) -> Result<Self>;

    /// Answers one request. May block. May be called more than once for a request (see the
    /// contract).
    ///
    /// # Errors
    ///
    /// The variant of the [`Error`] decides how the worker handles the request.
    fn handle(&self, input: Self::Input, job: &mut Job<Self::Output>) -> Result<Finish>;

    /// Returns the number of threads that answer requests, one request each, which is the worker's
    /// prefetch. Zero counts as one.
    fn threads(&self) -> usize {
        1
    }

    /// Runs one-time work that the first request would otherwise wait for. The worker calls
    /// [`health`](Self::health) in the meantime, as during normal operation.
    ///
    /// # Errors
    ///
    /// An error ends the worker, as one of [`load`](Self::load) does.
    fn warm_up(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the health of the model. The worker calls it periodically.
    fn health(&self) -> Health {
        Health::Ok
    }

    /// Drops cached data of ended requests, such as a prefix cache, because a key was withdrawn and
    /// data computed under that key must not serve another request. The worker calls it from time
    /// to time, so it must not block. A handler without such caches needs no implementation.
    fn forget(&self) {}

    /// Returns the handler's metrics for the worker's `/metrics` endpoint. The worker calls it at
    /// each scrape, so it must not block. The names must be the same in each call.
    fn measures(&self) -> Vec<Measure> {
        Vec::new()
    }

    /// Returns an id of everything besides the request that determines the pieces. Equal ids
    /// promise equal pieces. With `None`, all workers of the model count as equal.
    fn fingerprint(&self) -> Option<Fingerprint> {
        None
    }
}

/// Loaded model that answers many requests at once on one thread: an engine or a batcher.
///
/// The worker calls [`handle`](Self::handle) for each attempt at a request. It polls all calls on
/// one thread, up to [`tasks`](Self::tasks) of them at a time, so a call must await and must never
/// block. A plain loop over a model implements [`Handler`].
///
/// # Contract
///
/// - The return value of `handle` ends the reply: the worker builds the last frame from it.
/// - A failed [`AsyncJob::emit`] ends the call: pass the error on with `?`. Code that waits for
///   something else awaits [`AsyncJob::stopped`] beside it, so that it notices a stop within two
///   seconds.
/// - Dropping the future of `handle` leaves the handler able to answer the next request.
/// - The pieces depend on the weights, the input and the seed alone. Another worker can then
///   continue a reply in the middle without a visible break.
/// - A request may be answered by more than one call, as by a [`Handler`].
///
/// [`testing::check`](crate::testing) tests a handler against this contract.
///
/// ```
/// use nsbridge_handler::{AsyncHandler, AsyncJob, Finish, Models, Result};
///
/// struct Echo;
///
/// impl AsyncHandler for Echo {
///     type Options = ();
///     type Input = String;
///     type Output = String;
///
///     async fn load((): (), _models: Models) -> Result<Self> {
///         Ok(Self)
///     }
///
///     async fn handle(&self, input: String, job: &mut AsyncJob<String>) -> Result<Finish> {
///         job.emit(input).await?;
///         Ok(Finish::STOP)
///     }
///
///     fn tasks(&self) -> usize {
///         64
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an `AsyncHandler`: implement `load`, `handle` and `tasks`",
    note = "a plain loop over a model implements `Handler`, and is served by `serve`",
    note = "docs/handlers.md says which of the two traits to take"
)]
#[expect(
    async_fn_in_trait,
    reason = "futures stay on the thread that polls them: they are not Send, on purpose"
)]
pub trait AsyncHandler: Send + Sync + Sized + 'static {
    /// Type of the `[handler]` table of the worker's configuration.
    type Options: DeserializeOwned + Send;

    /// Type of a request's content, encoded as JSON.
    type Input: DeserializeOwned + Send;

    /// Type of one piece of the reply, encoded as JSON. For a language model a piece is a token.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// Loads the model. May take minutes and may block.
    ///
    /// # Errors
    ///
    /// An error ends the worker with a non-zero exit code before it takes a request.
    async fn load(options: Self::Options, models: Models) -> Result<Self>;

    /// Answers one request. Must not block. May be called more than once for a request (see the
    /// contract).
    ///
    /// # Errors
    ///
    /// The variant of the [`Error`] decides how the worker handles the request.
    async fn handle(&self, input: Self::Input, job: &mut AsyncJob<Self::Output>) -> Result<Finish>;

    /// Returns the maximum number of concurrent calls, which is the worker's prefetch. Zero counts as
    /// one.
    fn tasks(&self) -> usize;

    /// Runs one-time work that the first request would otherwise wait for. The worker calls
    /// [`health`](Self::health) in the meantime, as during normal operation.
    ///
    /// # Errors
    ///
    /// An error ends the worker, as one of [`load`](Self::load) does.
    async fn warm_up(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the health of the model. The worker calls it periodically.
    fn health(&self) -> Health {
        Health::Ok
    }

    /// Drops cached data of ended requests, such as a prefix cache, because a key was withdrawn and
    /// data computed under that key must not serve another request. The worker calls it from time
    /// to time, so it must not block. A handler without such caches needs no implementation.
    fn forget(&self) {}

    /// Returns the handler's metrics for the worker's `/metrics` endpoint. The worker calls it at
    /// each scrape, so it must not block. The names must be the same in each call.
    fn measures(&self) -> Vec<Measure> {
        Vec::new()
    }

    /// Returns an id of everything besides the request that determines the pieces. Equal ids
    /// promise equal pieces. With `None`, all workers of the model count as equal.
    fn fingerprint(&self) -> Option<Fingerprint> {
        None
    }
}

/// Health of a model.
///
/// ```
/// use nsbridge_handler::Health;
///
/// let health = Health::failed("the device does not answer");
/// assert_ne!(health, Health::Ok);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The model can answer requests.
    Ok,
    /// The model can no longer answer, for this reason. The worker returns its jobs to the queue
    /// and exits without waiting for calls that hang. The reason is logged on one line, so it must
    /// not contain any text of a request.
    Failed(String),
}

impl Health {
    /// Creates the health of a model that can no longer answer, for this reason.
    pub fn failed(why: impl Into<String>) -> Self {
        Self::Failed(why.into())
    }
}
