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
//!     fn load((): (), _models: Models) -> Result<Self> {
//!         Ok(Self)
//!     }
//!
//!     fn handle(&self, input: String, job: &mut Job<String>) -> Result<Finish> {
//!         for word in input.split_inclusive(' ') {
//!             job.emit(word.to_owned())?;
//!         }
//!         Ok(Finish::STOP)
//!     }
//! }
//! ```

mod batch;
pub mod buffer;
mod emitter;
#[doc(hidden)]
pub mod erased;
mod error;
mod handler;
mod job;
mod measure;
mod models;
mod quote;
pub mod source;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transcript;

pub use batch::{Batch, BatchOptions, Batched, Item, Limits};
pub use buffer::Buffer;
pub use emitter::{Emitter, Refused};
#[doc(hidden)]
pub use error::chain;
pub use error::{Cause, Error, Result, Retryable};
pub use handler::{AsyncHandler, Handler, Health};
pub use job::{AsyncJob, Job, JobInfo};
pub use measure::{Measure, MeasureKind};
pub use models::{Model, Models};
pub use nsbridge_protocol::{
    AttemptNo, ChatMessage, Fingerprint, Finish, FinishReason, JsonSchema, Pieces, ReplayKey,
    RequestId, ResponseFormat, Tenant, TextInput, TextPiece, TokenLogprob, TraceParent, Usage,
};
pub use quote::quote;
pub use transcript::Stop;
