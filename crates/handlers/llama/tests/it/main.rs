//! Integration tests of the handler: its arithmetic against references, its replies against its
//! contract.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod bits;
#[cfg(feature = "testing")]
mod blocks;
mod bounds;
mod bundled;
#[cfg(feature = "candle")]
mod devices;
mod embeddings;
mod families;
mod files;
mod floats8;
mod formats;
mod gguf;
mod gpu;
mod limits;
mod llama_cpp;
#[cfg(feature = "testing")]
mod metadata;
mod network;
mod oracle;
mod parity;
mod prompts;
mod references;
mod replies;
mod required;
mod sampling;
mod schedules;
mod schemas;
mod scoring;
mod shapes;
mod speculation;
mod tiny;
#[cfg(feature = "testing")]
mod vocabularies;
