//! The words on the wire: requests, replies, error codes, names and numbers.
//!
//! Everything here is plain data that both ends agree on. There is no I/O, no clock and no
//! randomness in this crate; `docs/protocol.md` tells the same for other languages.

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

/// The content type of every message body of version 1.
pub const CONTENT_TYPE: &str = "application/vnd.nsbridge.v1";

/// The largest request plaintext in bytes; larger inputs belong into object storage.
pub const MAX_REQUEST_BYTES: usize = 8 << 20;

/// The largest piece of a reply in bytes. A frame holds one of this size, or more smaller ones.
pub const MAX_FRAME_BYTES: usize = 64 << 10;

/// The most piece bytes a reply may hold; what a `resume` can carry back.
pub const MAX_TRANSCRIPT_BYTES: usize = 8 << 20;
