//! Wire types of the protocol: requests, replies, error codes, names and constants.
//!
//! This crate holds plain data that client and worker agree on. It does no I/O and reads neither
//! the clock nor randomness. `docs/protocol.md` specifies the same protocol for other languages.

mod attempt;
mod code;
mod control;
mod format;
mod id;
mod name;
mod open;
mod pieces;
mod reply;
mod request;
mod seam;
mod text;
pub mod topology;
mod trace;

pub use attempt::AttemptNo;
pub use code::ErrorCode;
pub use control::{ControlKind, Resume};
pub use format::{JsonSchema, ResponseFormat};
pub use id::{Fingerprint, RequestId, StreamId};
pub use name::{InvalidName, KeyId, ModelName, Revision, Tenant};
pub use open::Open;
pub use pieces::{MalformedPieces, Pieces};
pub use reply::{Failure, Finish, FinishReason, Summary, Usage};
pub use request::Request;
pub use seam::Seam;
pub use text::{ChatMessage, TextInput, TextPiece, TokenLogprob};
pub use trace::{InvalidTraceParent, SpanId, TraceId, TraceParent};
pub use uuid::Uuid;

/// Content type of every message body of version 1.
pub const CONTENT_TYPE: &str = "application/vnd.nsbridge.v1";

/// Maximum size of a request plaintext, in bytes. Larger inputs belong in object storage.
pub const MAX_REQUEST_BYTES: usize = 8 << 20;

/// Maximum size of one piece of a reply, in bytes.
///
/// A data frame holds one piece of this size, or several smaller ones.
pub const MAX_FRAME_BYTES: usize = 64 << 10;

/// Maximum total size of the pieces of a reply, in bytes.
///
/// A `resume` frame must be able to carry all of them back to a worker.
pub const MAX_TRANSCRIPT_BYTES: usize = 8 << 20;
