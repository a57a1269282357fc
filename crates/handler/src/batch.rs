//! Micro-batching, for models that answer many inputs at about the cost of one.
//!
//! A classifier or an embedder implements [`Batch`], one blocking function over a batch, and
//! [`Batched`] turns it into a handler:
//!
//! ```
//! use nsbridge_handler::{Batch, Batched, Error, Item, Models, Result};
//!
//! struct Length;
//!
//! impl Batch for Length {
//!     type Options = ();
//!     type Input = String;
//!     type Output = usize;
//!
//!     fn load((): (), _models: Models) -> Result<Self> {
//!         Ok(Self)
//!     }
//!
//!     fn run(&mut self, batch: &[Item<String>]) -> Result<Vec<Result<usize>>> {
//!         let length = |item: &Item<String>| match item.input.len() {
//!             0 => Err(Error::bad_input("the text is empty")),
//!             length => Ok(length),
//!         };
//!         Ok(batch.iter().map(length).collect())
//!     }
//! }
//!
//! type Handler = Batched<Length>; // nsbridge::serve_async::<Batched<Length>>()
//! ```

mod options;
mod queue;
mod thread;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use nsbridge_protocol::Fingerprint;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::handler::{AsyncHandler, Health};
use crate::job::{AsyncJob, JobInfo};
use crate::models::Models;
use nsbridge_protocol::Finish;
pub use options::BatchOptions;
use queue::Queue;

/// Model that answers a batch of inputs at once, with one output per input.
///
/// All methods run on one thread that belongs to the model, and may block. The model is created on
/// that thread and stays there, so it need not be `Send`.
///
/// # Contract
///
/// - An output depends on the weights, its own input and its own seed alone, **to the bit**. The
///   other inputs of the batch, their number and their order must not affect it. A model that pads
///   inputs to one length must mask the padding. A model that multiplies matrices must add up the
///   sums of a row in the same order for any number of rows.
///   [`testing::check_batch`](crate::testing) tests this.
/// - An error that one input causes is the `Err` of that input in the list, not the `Err` of the
///   whole list.
/// - An input may be run more than once: alone after the failure of its batch, and in another
///   attempt at its request, as by a [`Handler`](crate::Handler).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be batched: implement load and run of `Batch`",
    note = "docs/handlers.md has a section on batches"
)]
pub trait Batch: Sized + 'static {
    /// Type of the `[handler]` table of the worker's configuration, without the fields of
    /// [`BatchOptions`].
    type Options: DeserializeOwned + Send + 'static;

    /// Type of a request's content, encoded as JSON.
    type Input: DeserializeOwned + Send + 'static;

    /// Type of the whole reply, encoded as JSON. A reply has one piece.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// Loads the model. May take minutes.
    ///
    /// # Errors
    ///
    /// An error ends the worker with a non-zero exit code before it takes a request.
    fn load(options: Self::Options, models: Models) -> Result<Self>;

    /// Answers a batch of at least one input: one result per input, in the same order.
    ///
    /// # Errors
    ///
    /// An `Err` in the list fails one input. An `Err` in place of the list fails the whole batch:
    /// the worker then runs each input once more, alone, so that only the faulty one fails.
    /// [`Error::Fatal`] in either place takes effect at once, without another run: the worker
    /// exits. The worker also exits after a panic, and after a list whose length differs from that
    /// of the batch.
    fn run(&mut self, batch: &[Item<Self::Input>]) -> Result<Vec<Result<Self::Output>>>;

    /// Returns the default limits of a batch; the operator's options take precedence.
    fn limits(&self) -> BatchLimits {
        BatchLimits::default()
    }

    /// Runs one-time work that the first batch would otherwise wait for.
    ///
    /// # Errors
    ///
    /// An error ends the worker, as one of [`load`](Self::load) does.
    fn warm_up(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns an id of everything besides the request that determines the outputs. Equal ids
    /// promise equal outputs.
    fn fingerprint(&self) -> Option<Fingerprint> {
        None
    }
}

/// One input of a batch, with information about its request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Item<I> {
    /// Content of the request.
    pub input: I,
    /// Information about the request, such as its seed.
    pub info: JobInfo,
}

/// Limits of a batch. A batch starts when it is full or when its oldest request has waited long
/// enough.
///
/// A literal ends in `..BatchLimits::default()`: minor versions add fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Maximum number of inputs in a batch.
    pub batch_size: usize,
    /// Maximum time that a request waits for others while the model is idle. With zero, the
    /// requests that wait run at once. Requests that arrive during a run form the next batch, so
    /// batches still grow with the load.
    pub max_batch_delay: Duration,
}

impl Default for BatchLimits {
    /// Up to 8 inputs a batch, with no delay.
    fn default() -> Self {
        Self { batch_size: 8, max_batch_delay: Duration::ZERO }
    }
}

/// [`AsyncHandler`] of a [`Batch`]: gathers requests and passes them to the model's thread.
///
/// Accepts two batches of requests at once: one that runs and one that gathers.
pub struct Batched<B: Batch> {
    queue: Arc<Queue<B::Input, B::Output>>,
    limits: BatchLimits,
    fingerprint: Option<Fingerprint>,
    model: PhantomData<fn() -> B>,
}

impl<B: Batch> AsyncHandler for Batched<B> {
    type Options = BatchOptions<B::Options>;
    type Input = B::Input;
    type Output = B::Output;

    async fn load(options: Self::Options, models: Models) -> Result<Self> {
        options.check()?;
        let queue = Arc::new(Queue::default());
        let (loaded, ready) = oneshot::channel();
        thread::start::<B>(options, models, queue.clone(), loaded)?;
        let panicked = |_| Error::fatal("the model panicked while it was loaded");
        let thread::Loaded { limits, fingerprint } = ready.await.map_err(panicked)??;
        Ok(Self { queue, limits, fingerprint, model: PhantomData })
    }

    async fn handle(&self, input: B::Input, job: &mut AsyncJob<B::Output>) -> Result<Finish> {
        // A reply has one piece, so a client that has a piece has the whole reply.
        if !job.accept_resume().is_empty() {
            return Ok(Finish::STOP);
        }
        let (done, answer) = oneshot::channel();
        let item = Item { input, info: job.info().clone() };
        // Dropping the place removes the request from the queue, however this call ends.
        let _place = self.queue.join(item, job.emitter(), done)?;
        let answer = tokio::select! {
            biased;
            stop = job.stopped() => return Err(stop.into()),
            answer = answer => answer,
        };
        let Ok(output) = answer else {
            // The thread skipped the request: it noticed a stop before this call did, or the model
            // has failed.
            job.check()?;
            return Err(self.queue.broken());
        };
        job.emit(output?).await?;
        Ok(Finish::STOP)
    }

    fn tasks(&self) -> usize {
        2 * self.limits.batch_size
    }

    async fn warm_up(&self) -> Result<()> {
        let (done, ready) = oneshot::channel();
        self.queue.warm_up(done)?;
        ready.await.unwrap_or_else(|_| Err(self.queue.broken()))
    }

    fn health(&self) -> Health {
        self.queue.over().map_or(Health::Ok, Health::Failed)
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }
}

impl<B: Batch> Drop for Batched<B> {
    /// Ends the thread after the batch it is running, without waiting for it. A model that hangs
    /// must not keep the worker from exiting.
    fn drop(&mut self) {
        self.queue.end("the handler is gone");
    }
}

impl<B: Batch> fmt::Debug for Batched<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batched").field("limits", &self.limits).finish_non_exhaustive()
    }
}
