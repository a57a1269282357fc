//! Micro-batches: for models that answer many inputs at about the price of one.
//!
//! A classifier or an embedder implements [`Batch`], one blocking function over a batch, and
//! [`Batched`] makes a handler of it:
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
//! type Handler = Batched<Length>; // nsbridge::serve::<Batched<Length>>()
//! ```

mod options;
mod queue;
mod thread;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::{Error, Finish, Handler, Health, Job, JobInfo, Models, Result, Slots};
pub use options::BatchOptions;
use queue::Queue;

/// A model that answers a batch of inputs at once, with one output for each.
///
/// All of it runs on one thread of the model's own and may block. The model is made there and stays
/// there, so it need not be `Send`.
///
/// # Contract
///
/// - An output depends on the weights, its own input and its own seed alone, **to the bit**. Who else
///   is in the batch, how many and in which order must not matter. Who pads inputs to one length
///   must mask what was padded, and who multiplies matrices must see to it that a row's sums are
///   taken in the same order however many rows there are.
///   [`testing::check_batch`](crate::testing) tries it.
/// - One input's fault is that input's `Err` in the list, and not the list's.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be batched: implement load and run of `Batch`",
    note = "docs/handlers.md has a section on batches"
)]
pub trait Batch: Sized + 'static {
    /// The `[handler]` table of the worker's configuration, without what [`BatchOptions`] reads.
    type Options: DeserializeOwned + Send + 'static;

    /// What a request carries, as JSON.
    type Input: DeserializeOwned + Send + 'static;

    /// The whole reply, as JSON: it is its only piece.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// Loads the model. May take minutes.
    ///
    /// # Errors
    ///
    /// Any error ends the worker with a non-zero exit before it takes a request.
    fn load(options: Self::Options, models: Models) -> Result<Self>;

    /// Answers a batch of at least one input: one result for each, in their order.
    ///
    /// # Errors
    ///
    /// In the list, each speaks for one input. In place of the list, an error speaks for the whole
    /// batch: then each of its inputs is run once more, alone, so that one which cannot be run does
    /// not take its neighbours along. [`Error::Fatal`] is believed at once, in either place: the
    /// worker leaves. So it does after a panic and after a list of another length.
    fn run(&mut self, batch: &[Item<Self::Input>]) -> Result<Vec<Result<Self::Output>>>;

    /// How large batches are, and what that may cost in time, if the operator does not say.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Does what the first batch would otherwise wait for.
    ///
    /// # Errors
    ///
    /// Any error ends the worker, as one of [`load`](Self::load) does.
    fn warm_up(&mut self) -> Result<()> {
        Ok(())
    }

    /// What the outputs depend on beside the request; equal values promise equal outputs.
    fn fingerprint(&self) -> Option<[u8; 16]> {
        None
    }
}

/// One input of a batch, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<I> {
    /// What the request carries.
    pub input: I,
    /// What is known about the request: the seed, for one.
    pub info: JobInfo,
}

/// When a batch is begun: as soon as it is full, or its oldest request has waited long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most inputs of a batch.
    pub batch_size: usize,
    /// How long a request waits for others at most, while the model is idle. With zero whatever is
    /// there is run at once; what comes meanwhile is the next batch, so that batches grow with the
    /// load all the same.
    pub max_batch_delay: Duration,
}

impl Default for Limits {
    /// Batches of up to 8 inputs, for which nobody waits.
    fn default() -> Self {
        Self { batch_size: 8, max_batch_delay: Duration::ZERO }
    }
}

/// The handler of a [`Batch`]: it gathers requests, and hands them to the model's thread.
///
/// It answers two batches of requests at once: one that runs and one that gathers.
pub struct Batched<B: Batch> {
    queue: Arc<Queue<B::Input, B::Output>>,
    limits: Limits,
    fingerprint: Option<[u8; 16]>,
    model: PhantomData<fn() -> B>,
}

impl<B: Batch> Handler for Batched<B> {
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

    async fn handle(&self, input: B::Input, job: &mut Job<B::Output>) -> Result<Finish> {
        // A reply is one piece: a client that has it has all.
        if !job.resumed().is_empty() {
            return Ok(Finish::STOP);
        }
        let (done, answer) = oneshot::channel();
        let item = Item { input, info: job.info().clone() };
        // Whatever ends this call, its place in the queue is free then.
        let _place = self.queue.join(item, job.emitter(), done)?;
        let answer = tokio::select! {
            biased;
            stop = job.stopped() => return Err(stop.into()),
            answer = answer => answer,
        };
        let Ok(output) = answer else {
            // The thread left it out: it may see a stop before this call does, or all is over.
            job.check()?;
            return Err(self.queue.broken());
        };
        job.emit(output?).await?;
        Ok(Finish::STOP)
    }

    fn slots(&self) -> Slots {
        Slots::Tasks(2 * self.limits.batch_size)
    }

    async fn warm_up(&self) -> Result<()> {
        let (done, ready) = oneshot::channel();
        self.queue.warm_up(done)?;
        ready.await.unwrap_or_else(|_| Err(self.queue.broken()))
    }

    fn health(&self) -> Health {
        self.queue.over().map_or(Health::Ok, Health::Failed)
    }

    fn fingerprint(&self) -> Option<[u8; 16]> {
        self.fingerprint
    }
}

impl<B: Batch> Drop for Batched<B> {
    /// The thread ends after the batch that it runs, if it runs one. Nobody waits for that: a model
    /// that does not come back must not keep the worker.
    fn drop(&mut self) {
        self.queue.end("the handler is gone");
    }
}

impl<B: Batch> fmt::Debug for Batched<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batched").field("limits", &self.limits).finish_non_exhaustive()
    }
}
