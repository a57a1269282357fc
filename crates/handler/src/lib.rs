//! The trait an AI engineer implements to ship a model.
//!
//! A handler answers requests, and knows nothing else: not the queue, not a key, not a sealed
//! byte. The bridge loads it, feeds it, streams what it emits and stops it when nobody listens.
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
pub use error::{Cause, Error, Result};
pub use job::{Job, JobInfo};
pub use measure::{Measure, MeasureKind};
pub use models::{Model, Models};
pub use nsbridge_protocol::{
    AttemptNo, ChatMessage, Fingerprint, Finish, FinishReason, JsonSchema, Pieces, RequestId,
    ResponseFormat, Seam, Tenant, TextInput, TextPiece, TokenLogprob, TraceParent, Usage,
};
pub use quote::quote;
pub use transcript::Stop;

/// A loaded model that answers requests.
///
/// The bridge calls [`load`](Self::load) once, before it takes anything from the queue, then
/// [`handle`](Self::handle) once per request, as many at a time as [`slots`](Self::slots) says.
///
/// # Contract
///
/// - `handle` ends with what it returns: the reply's last frame is made from that value.
/// - A failed [`Job::emit`] ends the call: pass it on with `?`. In a long stretch without a piece,
///   such as a prefill, call [`Job::check`] now and then; a stop must be seen within two seconds.
/// - Dropping the future of `handle` leaves the handler able to answer the next request.
/// - The pieces depend on the weights, the input and the seed alone, so that another worker can
///   take over in the middle of a reply and nobody sees a seam.
/// - With [`Slots::Threads`] the code may block: each call has a thread of its own.
///
/// [`testing::check`](crate::testing) holds a handler to this.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler: implement load and handle",
    note = "docs/handlers.md shows one in twenty lines"
)]
#[expect(
    async_fn_in_trait,
    reason = "futures stay on the thread that polls them: they are not Send, on purpose"
)]
pub trait Handler: Send + Sync + Sized + 'static {
    /// The `[handler]` table of the worker's configuration.
    type Options: DeserializeOwned + Send;

    /// What a request carries, as JSON.
    type Input: DeserializeOwned + Send;

    /// One piece of the reply, as JSON: a token for a language model.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// Loads the model. May take minutes and may block.
    ///
    /// # Errors
    ///
    /// Any error ends the worker with a non-zero exit before it takes a request.
    async fn load(options: Self::Options, models: Models) -> Result<Self>;

    /// Answers one request, emitting each piece as soon as it is made.
    ///
    /// # Errors
    ///
    /// The [`Error`]'s kind says what becomes of the request.
    async fn handle(&self, input: Self::Input, job: &mut Job<Self::Output>) -> Result<Finish>;

    /// How many requests are answered at once, and on what.
    fn slots(&self) -> Slots {
        Slots::Threads(1)
    }

    /// Does what the first request would otherwise wait for. While it does not return, and lets others
    /// run, [`health`](Self::health) is asked as later on.
    ///
    /// # Errors
    ///
    /// Any error ends the worker, as one of [`load`](Self::load) does.
    async fn warm_up(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the model can still answer; asked now and then.
    fn health(&self) -> Health {
        Health::Ok
    }

    /// Drops what it keeps of requests that have ended, such as a cache of prompts: a key was withdrawn,
    /// and what was made under it is to serve nobody any more. Called now and then, so it must not
    /// wait. A handler that keeps nothing has nothing to do.
    fn forget(&self) {}

    /// What the handler counts, for the worker's metrics; asked whenever they are read, so it must
    /// not wait. The names are the same each time.
    fn measures(&self) -> Vec<Measure> {
        Vec::new()
    }

    /// What the tokens depend on beside the request; equal values promise equal tokens.
    fn fingerprint(&self) -> Option<[u8; 16]> {
        None
    }
}

/// How many calls of [`Handler::handle`] run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// This many threads with one call each: for code that blocks, such as a plain model loop.
    Threads(usize),
    /// This many calls interleaved on one thread: for engines and batchers, which only wait here.
    Tasks(usize),
}

impl Slots {
    /// How many calls run at once; at least one.
    pub fn count(self) -> usize {
        match self {
            Self::Threads(n) | Self::Tasks(n) => n.max(1),
        }
    }
}

/// Whether a model can still answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It can.
    Ok,
    /// It cannot any more, for this reason; the worker gives its jobs back and leaves, without
    /// waiting for those that hang. The reason is logged, in one line: it must quote nothing of a
    /// request.
    Failed(String),
}
