//! Integration tests of the handler: its arithmetic against references, its replies against its
//! contract.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod bits;
mod bounds;
mod bundled;
#[cfg(feature = "candle")]
mod devices;
mod embeddings;
mod families;
mod formats;
mod gguf;
mod limits;
mod llama_cpp;
mod network;
mod oracle;
mod parity;
mod references;
mod replies;
mod required;
mod sampling;
mod schedules;
mod schemas;
mod scoring;
mod speculation;
mod tiny;
