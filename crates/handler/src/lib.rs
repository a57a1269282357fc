//! Traits and types that an AI engineer implements to ship a model.
//!
//! A handler answers requests. It sees no queue, no key and no encrypted byte: the bridge loads the
//! handler, passes it requests, streams the pieces it emits and stops a call when the client is
//! gone. It may call the handler more than once for a request (see the contract of [`Handler`]). A
//! handler's crate depends on `nsbridge`, which re-exports what a handler needs beside `serve`;
//! `source`, `buffer` and `transcript` are for storage and the bridge.
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
//!         // The pieces that the client has from a lost worker. Without this call the reply starts
//!         // over.
//!         let known = job.accept_resume().len();
//!         for word in input.split_inclusive(' ').skip(known) {
//!             job.emit(word.to_owned())?;
//!         }
//!         Ok(Finish::STOP)
//!     }
//! }
//! ```
//!
//! | your code | trait |
//! |---|---|
//! | a loop over a model, which blocks its thread | [`Handler`], with a [`Job`] per request |
//! | one function over a batch of inputs | [`Batch`], which [`Batched`] makes a handler |
//! | an engine that interleaves many requests | [`AsyncHandler`], with an [`AsyncJob`] per request |
//!
//! | you need | you take |
//! |---|---|
//! | the files of a model | [`Models`], [`Model`] |
//! | the end of a reply | [`Finish`], [`Usage`] |
//! | an error with its consequence | [`Error`], [`Retryable`] |
//! | input and pieces of text models | [`TextInput`], [`TextPiece`] |
//! | to emit from another thread | [`Emitter`] |
//! | metrics of your own | [`Measure`] |
//! | a test that the handler keeps its contract | `testing`, with the feature of that name |

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

pub use batch::{Batch, BatchLimits, BatchOptions, Batched, Item};
pub use buffer::Buffer;
pub use emitter::{Emitter, Refused};
pub use error::{Cause, Error, Result, Retryable};
pub use handler::{AsyncHandler, Handler, Health};
pub use job::{AsyncJob, Job, JobInfo};
pub use measure::{Measure, MeasureKind};
pub use models::{Model, Models};
pub use nsbridge_protocol::{
    AttemptNo, ChatMessage, Content, ContentPart, Embedding, EmbeddingInput, EmbeddingPiece,
    EmbeddingText, EncodingFormat, Fingerprint, Finish, FinishReason, Image, JsonSchema,
    JudgeInput, JudgeLabel, JudgeScores, MultimodalInput, NO_ROOM, Pieces, ReplayKey, RequestId,
    ResponseFormat, Tenant, TextInput, TextPiece, TokenLogprob, TokenText, ToolCall,
    ToolCallFormat, TraceParent, Usage,
};
pub use quote::quote;
pub use transcript::Stop;
