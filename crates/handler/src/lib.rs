//! Trait and types that an AI engineer implements to ship a model.
//!
//! A handler answers requests. It sees no queue, no key and no encrypted byte: the bridge loads the
//! handler, passes it requests, streams the pieces it emits and stops a call when the client is
//! gone.
//!
//! ```
//! use nsbridge_handler::{Finish, Handler, Job, Models, Result};
//!
//! struct Echo;
//!
//! impl Handler for Echo {
//!     type Options = ();
//!     type Input = String;
//!     type Output = String;
//!
//!     async fn load((): (), _models: Models) -> Result<Self> {
//!         Ok(Self)
//!     }
//!
//!     async fn handle(&self, input: String, job: &mut Job<String>) -> Result<Finish> {
//!         for word in input.split_inclusive(' ') {
//!             job.emit(word.to_owned()).await?;
//!         }
//!         Ok(Finish::STOP)
//!     }
//! }
//! ```

mod batch;
pub mod buffer;
mod emitter;
pub mod erased;
mod error;
mod job;
mod measure;
mod models;
mod quote;
pub mod source;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transcript;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use batch::{Batch, BatchOptions, Batched, Item, Limits};
pub use buffer::Buffer;
pub use emitter::{Emitter, Refused};
#[doc(hidden)]
pub use error::chain;
pub use error::{Cause, Error, Result, Retryable};
pub use job::{Job, JobInfo};
pub use measure::{Measure, MeasureKind};
pub use models::{Model, Models};
pub use nsbridge_protocol::{
    AttemptNo, ChatMessage, Fingerprint, Finish, FinishReason, JsonSchema, Pieces, RequestId,
    ResponseFormat, Seam, Tenant, TextInput, TextPiece, TokenLogprob, TraceParent, Usage,
};
pub use quote::quote;
pub use transcript::Stop;

/// Loaded model that answers requests.
///
/// The bridge calls [`load`](Self::load) once, before the worker consumes from the queue. It then
/// calls [`handle`](Self::handle) once per request, with up to [`slots`](Self::slots) calls at a
/// time.
///
/// # Contract
///
/// - The return value of `handle` ends the reply: the bridge builds the last frame from it.
/// - A failed [`Job::emit`] ends the call: pass the error on with `?`. Code that runs for long
///   without emitting a piece, such as a prefill, must call [`Job::check`] regularly, so that it
///   notices a stop within two seconds.
/// - Dropping the future of `handle` leaves the handler able to answer the next request.
/// - The pieces depend on the weights, the input and the seed alone. Another worker can then
///   continue a reply in the middle without a visible break.
/// - With [`Slots::Threads`] the code may block: each call has a thread of its own.
///
/// [`testing::check`](crate::testing) tests a handler against this contract.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler: implement load and handle",
    note = "docs/handlers.md shows one in twenty lines"
)]
#[expect(
    async_fn_in_trait,
    reason = "futures stay on the thread that polls them: they are not Send, on purpose"
)]
pub trait Handler: Send + Sync + Sized + 'static {
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

    /// The variant of the [`Error`] decides how the worker handles the request.
    async fn handle(&self, input: Self::Input, job: &mut Job<Self::Output>) -> Result<Finish>;

    /// Returns the maximum number of concurrent calls and the kind of thread they run on.
    fn slots(&self) -> Slots {
        Slots::Threads(1)
    }

    /// Runs one-time work that the first request would otherwise wait for. As long as the future is
    /// pending and does not block its thread, the worker calls [`health`](Self::health) as during
    /// normal operation.
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

    /// Returns an id of everything besides the request that determines the tokens. Equal ids
    /// promise equal tokens.
    fn fingerprint(&self) -> Option<[u8; 16]> {
        None
    }
}

/// Maximum number of concurrent calls of [`Handler::handle`], and the threads they run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// This many threads with one call each, for code that blocks, such as a plain model loop.
    Threads(usize),
    /// This many calls interleaved on one thread, for engines and batchers, where a call only
    /// awaits.
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

/// Health of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The model can answer requests.
    Ok,
    /// The model can no longer answer, for this reason. The worker returns its jobs to the queue
    /// and exits without waiting for calls that hang. The reason is logged on one line, so it must
    /// not contain any text of a request.
    Failed(String),
}
