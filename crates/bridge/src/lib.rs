//! Run a language model as a production worker on a message queue.
//!
//! An AI engineer implements [`Handler`]; [`serve`] makes a worker of it. An engine that
//! interleaves many requests implements [`AsyncHandler`], and [`serve_async`] makes a worker of
//! that. The worker loads the model from a folder or object storage, takes encrypted requests from
//! the model's queue, calls the handler and streams the encrypted reply back. A handler
//! needs no other crate of nsbridge.
//!
//! ```no_run
//! use nsbridge::{Finish, Handler, Job, Models, Result};
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
//!
//! fn main() -> std::process::ExitCode {
//!     nsbridge::serve::<Echo>()
//! }
//! ```
//!
//! | you need | you take |
//! |---|---|
//! | the trait and its types | this module: [`Handler`], [`AsyncHandler`], [`Job`], [`Models`], [`Error`], [`Batch`] |
//! | tensors of safetensors and GGUF | [`checkpoint`] |
//! | a test that a handler keeps its contract | `testing`, with the feature of that name |
//! | a worker within another program | [`worker`] |
//! | a worker with a configuration from code | [`run`], [`run_async`], [`worker::Config`] |
//! | a program beside the worker that holds keys | [`confine`](fn@confine) |
//! | untrusted text in a message | [`quote`] |
//!
//! `docs/handlers.md` is the guide for authors of handlers, `docs/operating.md` that for operators.
//! The promises of a worker are in `docs/protocol.md`. `docs/architecture.md` describes the modules
//! of this crate.

mod clock;
mod config;
mod confine;
mod drain;
mod error;
mod keys;
mod loading;
mod observability;
mod platform;
mod request;
mod serve;
mod service;
mod service_manager;
mod timing;
pub mod worker;

pub use confine::confine;
pub use nsbridge_checkpoint as checkpoint;
#[cfg(feature = "testing")]
#[doc(inline)]
pub use nsbridge_handler::testing;
#[doc(inline)]
pub use nsbridge_handler::{
    AsyncHandler, AsyncJob, AttemptNo, Batch, BatchLimits, BatchOptions, Batched, Cause,
    ChatMessage, Content, ContentPart, Embedding, EmbeddingInput, EmbeddingPiece, EmbeddingText,
    Emitter, EncodingFormat, Error, Fingerprint, Finish, FinishReason, Handler, Health, Image,
    Item, Job, JobInfo, JsonSchema, JudgeInput, JudgeLabel, JudgeScores, Measure, MeasureKind,
    Model, Models, MultimodalInput, Pieces, Refused, ReplayKey, RequestId, ResponseFormat, Result,
    Retryable, Stop, Tenant, TextInput, TextPiece, TokenLogprob, TokenText, ToolCall, TraceParent,
    Usage, quote,
};
pub use nsbridge_store as store;
#[doc(hidden)]
pub use nsbridge_telemetry::stderr_log;
pub use serve::{flush_log, log_to_stderr, run, run_async, serve, serve_async};
