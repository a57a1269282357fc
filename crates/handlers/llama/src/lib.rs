//! Handler for language models of the Llama family in the format of Hugging Face transformers.
//!
//! [`Llama`] reads `config.json`, `generation_config.json`, `tokenizer.json`, the chat template and
//! safetensors from the model named `target`. It answers
//! [`TextInput`](nsbridge_handler::TextInput)s token by token, with continuous batching. On a CPU,
//! the tokens of a reply depend only on the weights, the prompt, the parameters and the seed, and
//! not on concurrent requests or the machine. For GPUs, see `docs/gpu.md`.

mod capacity;
mod config;
mod date;
mod detokenize;
mod engine;
mod error;
mod formats;
mod grammar;
mod handler;
mod kv;
mod limits;
mod network;
mod options;
pub mod parity;
mod quantize;
mod reply;
mod request;
mod rope;
mod sample;
mod schedule;
mod speculation;
mod template;
#[cfg(feature = "testing")]
pub mod testing;
mod timeout;
mod tokenizer;
mod weights;
mod workers;

pub use capacity::{Memory, Need, parameters};
pub use config::{Config, Rope, RopeScaling, tensors};
pub use error::LoadError;
pub use formats::{coarsest_format, mean_width};
pub use grammar::{Grammar, Grammars, Rule};
pub use handler::Llama;
pub use kv::{BlockTable, KvCacheManager, KvFormat};
pub use network::{Backend, CandleDevices, Chunk, Logits, Model, Setup, Watch};
pub use nsbridge_kernels::{Format, Tier};
pub use options::{Options, Quantize};
pub use quantize::{Mix, QuantizeError, Writing, quantize};
pub use rope::RopeTable;
pub use sample::{
    Allowed, History, Logprobs, Noise, Sampling, Scratch, Sequences, TokenSet, logprobs, sample,
};
pub use speculation::{Continuation, Drafter};
pub use weights::Weights;
