//! Client that submits sealed requests to nsbridge workers and reads the sealed replies.
//!
//! ```no_run
//! # async fn ask(
//! #     broker: std::sync::Arc<dyn nsbridge_queue::Broker>,
//! #     keys: std::sync::Arc<dyn nsbridge_crypto::KeyProvider>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! use nsbridge_client::{Ask, Client, Event};
//! use nsbridge_protocol::{TextInput, TextPiece};
//!
//! let client = Client::connect(broker, keys, "api-1").await?;
//! let input = TextInput { prompt: Some("Once a bear".into()), ..TextInput::default() };
//! let mut reply = client
//!     .submit::<_, TextPiece>(Ask::new("tale-7m".parse()?, "acme".parse()?, input))
//!     .await?;
//! while let Some(event) = reply.next().await {
//!     if let Event::Piece(piece) = event? {
//!         print!("{}", piece.text);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The client is the arbiter of a reply: it merges the attempts of several workers into one text,
//! sends a worker that takes over the pieces it already has, and cancels attempts that are no
//! longer needed. Dropping a [`Reply`] cancels its request.

mod ask;
mod client;
mod entry;
mod error;
mod merge;
mod reply;
mod request;
mod router;
#[cfg(test)]
mod scripted;

pub use ask::Ask;
pub use client::Client;
pub use error::{Error, Result};
pub use reply::{Event, Reply};
