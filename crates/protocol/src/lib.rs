//! Wire types of the protocol: requests, replies, error codes, names and constants.
//!
//! This crate holds plain data that client and worker agree on. It does no I/O and reads neither
//! the clock nor randomness. `docs/protocol.md` specifies the same protocol for other languages, and
//! `nsbridge-crypto` seals these types into frames.
//!
//! | you read or write | types |
//! |---|---|
//! | the content of a request | [`Request`], [`TextInput`], [`ChatMessage`], [`ResponseFormat`] |
//! | the pieces of a reply | [`Pieces`], [`TextPiece`], [`ReplayKey`] |
//! | input and pieces of a model of embeddings | [`EmbeddingInput`], [`EmbeddingPiece`] |
//! | input and scores of a model that judges texts | [`JudgeInput`], [`JudgeScores`] |
//! | the first and the last frame of a reply | [`Open`], [`Summary`], [`Failure`], [`Finish`], [`Usage`] |
//! | control frames | [`ControlKind`], [`Resume`] |
//! | names, ids and numbers | [`ModelName`], [`Tenant`], [`KeyId`], [`Revision`], [`RequestId`], [`StreamId`], [`Fingerprint`], [`AttemptNo`] |
//! | errors | [`ErrorCode`] |
//! | queues, exchanges and headers | [`topology`] |
//! | trace context | [`TraceParent`] |
//!
//! A request for text, as the worker reads it after the frame was opened:
//!
//! ```
//! use nsbridge_protocol::{Request, TextInput};
//!
//! let input = TextInput { max_tokens: Some(64), ..TextInput::prompt("Once a bear") };
//! let request = Request::new(7, input);
//! let json = serde_json::to_string(&request)?;
//! assert_eq!(json, r#"{"seed":7,"input":{"prompt":"Once a bear","max_tokens":64}}"#);
//! let read: Request<TextInput> = serde_json::from_str(&json)?;
//! assert_eq!(read.input.prompt.as_deref(), Some("Once a bear"));
//! # Ok::<(), serde_json::Error>(())
//! ```

mod attempt;
mod code;
mod control;
mod embedding;
mod format;
mod id;
mod judge;
mod name;
mod open;
mod pieces;
mod priority;
mod replay_key;
mod reply;
mod request;
mod text;
pub mod topology;
mod trace;

pub use attempt::AttemptNo;
pub use code::ErrorCode;
pub use control::{ControlKind, Resume};
pub use embedding::{Embedding, EmbeddingInput, EmbeddingPiece, EmbeddingText, EncodingFormat};
pub use format::{JsonSchema, ResponseFormat, ToolCallFormat};
pub use id::{Fingerprint, RequestId, StreamId};
pub use judge::{JudgeInput, JudgeLabel, JudgeScores};
pub use name::{InvalidName, KeyId, ModelName, Revision, Tenant};
pub use open::Open;
pub use pieces::{MalformedPieces, Pieces};
pub use priority::Priority;
pub use replay_key::ReplayKey;
pub use reply::{Failure, Finish, FinishReason, Summary, Usage};
pub use request::Request;
pub use text::{
    ChatMessage, Content, ContentPart, FunctionCall, Image, MultimodalInput, TextInput, TextPiece,
    TokenLogprob, TokenText, ToolCall, ToolKind,
};
pub use trace::{InvalidTraceParent, SpanId, TraceId, TraceParent};
pub use uuid::Uuid;

/// Content type of every message body of version 1.
pub const CONTENT_TYPE: &str = "application/vnd.nsbridge.v1";

/// Maximum size of a request plaintext, in bytes. Larger inputs belong in object storage.
pub const MAX_REQUEST_BYTES: usize = 8 << 20;

/// Maximum size of one piece of a reply, in bytes.
///
/// A data frame holds one piece of this size, or several smaller ones.
pub const MAX_PIECE_BYTES: usize = 64 << 10;

/// Maximum total size of the pieces of a reply, in bytes.
///
/// A `resume` frame must be able to carry all of them back to a worker.
pub const MAX_TRANSCRIPT_BYTES: usize = 8 << 20;

/// Part of the message of a [`BadInput`](ErrorCode::BadInput) about a prompt that is too long for the
/// model's context. An API server recognizes the error by it.
pub const NO_ROOM: &str = "leaves no room in this model's context";
