//! Client that submits sealed requests to nsbridge workers and reads the sealed replies.
//!
//! A [`Client`] holds one connection for requests and one for replies, and serves many requests at
//! once. A [`Request`] names model, tenant and input; [`Client::submit`] seals it, publishes it and
//! returns a [`Reply`], a stream of [`Event`]s. This crate is the only one of nsbridge that a client
//! program needs.
//!
//! ```no_run
//! use nsbridge_client::{Client, Event, Request, TextInput, TextPiece};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client =
//!         Client::builder().amqp("amqp://localhost").keyring("keys.json").connect().await?;
//!     let request = Request::new("tale-7m".parse()?, "acme".parse()?)
//!         .input(TextInput::prompt("Once a bear"));
//!     let mut reply = client.submit::<TextPiece>(request).await?;
//!     while let Some(event) = reply.next().await {
//!         match event? {
//!             Event::Piece(piece) => print!("{}", piece.text),
//!             Event::Restarted { kept } => println!("\n[only the first {kept} pieces stand]"),
//!             _ => {}
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! | you need | you take |
//! |---|---|
//! | a connection | [`Client::builder`] with an address and a keyring's file, or with a [`Broker`] and a [`KeyProvider`] |
//! | one request | [`Request`]: its seed, time limit, revision and trace |
//! | pieces as they come | [`Reply::next`], or [`Reply`] as a `Stream` |
//! | the whole reply | [`Reply::collect`] |
//! | input and pieces of text models | [`TextInput`] and [`TextPiece`] |
//! | pieces of a type of your own | an implementation of [`ReplayKey`] |
//! | requests in steps, with one deadline and one seed | [`combine::Flow`] |
//! | to continue a request of another process | [`Client::reattach`] with a [`ResumePoint`] |
//! | data keys of AWS KMS in place of a keyring | `KmsProvider`, with the feature `kms` |
//! | tests without a server | [`MemoryBroker`] |
//! | shorter intervals and time limits, for tests | [`Timing`] |
//!
//! The client decides what the reply is. It merges the attempts of several workers into one text.
//! If another worker takes over a request, the client sends it the pieces that it has received so
//! far. The client cancels attempts that are no longer needed. Dropping a [`Reply`] cancels its
//! request.
//!
//! A request whose model has no queue fails at once, without waiting for a worker:
//!
//! ```
//! use std::sync::Arc;
//!
//! use nsbridge_client::{Client, Error, Key, Keyring, MemoryBroker, Request};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder()
//!     .broker(Arc::new(MemoryBroker::new()))
//!     .keys(Arc::new(Keyring::of_key("test".parse()?, Key::generate()?)))
//!     .connect()
//!     .await?;
//! let request = Request::new("tale-7m".parse()?, "acme".parse()?).input("Once a bear");
//! let refused = client.submit::<String>(request).await.unwrap_err();
//! assert!(matches!(refused, Error::NoSuchModel { .. }));
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `kms`, AWS KMS generates the keys, and the client holds no keyring. The region
//! and the credentials come from where AWS's own tools look, unless the builder sets them:
//!
//! ```no_run
//! # #[cfg(feature = "kms")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use nsbridge_client::{Client, KmsProvider};
//!
//! let keys = KmsProvider::builder(["alias/nsbridge".parse()?]).build().await?;
//! let client =
//!     Client::builder().amqp("amqp://localhost").keys(Arc::new(keys)).connect().await?;
//! # drop(client);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "kms"))]
//! # fn main() {}
//! ```
//!
//! # Features
//!
//! - `kms`: data keys from AWS KMS.

mod client;
pub mod combine;
mod envelope;
mod error;
mod inbox;
mod merge;
mod pending;
mod piece_log;
mod reply;
mod request;
mod resume;
mod router;
#[cfg(test)]
mod scripted;
mod timing;

pub use client::{Client, ClientBuilder};
pub use envelope::request_message;
pub use error::{Error, Result};
#[cfg(feature = "kms")]
#[doc(no_inline)]
pub use nsbridge_crypto::{AwsCredentials, KmsError, KmsProvider, KmsProviderBuilder};
#[doc(no_inline)]
pub use nsbridge_crypto::{ByProvider, Key, KeyError, KeyProvider, Keyring, KeyringError};
#[doc(no_inline)]
pub use nsbridge_protocol::{
    AttemptNo, ChatMessage, Content, ContentPart, Embedding, EmbeddingInput, EmbeddingPiece,
    EmbeddingText, EncodingFormat, ErrorCode, Fingerprint, FinishReason, Image, JsonSchema,
    JudgeInput, JudgeLabel, JudgeScores, KeyId, ModelName, MultimodalInput, Priority, ReplayKey,
    RequestId, ResponseFormat, Revision, Summary, Tenant, TextInput, TextPiece, TokenLogprob,
    TokenText, ToolCall, ToolCallFormat, TraceParent, Usage,
};
#[doc(no_inline)]
pub use nsbridge_queue::{AmqpBroker, Backoff, Broker, MemoryBroker, Timing as QueueTiming};
pub use reply::{Event, Reply};
pub use request::Request;
pub use resume::ResumePoint;
pub use timing::Timing;
