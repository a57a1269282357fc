//! Handler for language models of the Llama family in the format of Hugging Face transformers.
//!
//! [`Llama`] reads `config.json`, `generation_config.json`, `tokenizer.json`, the chat template and
//! safetensors from the model named `target`. It answers
//! [`TextInput`](nsbridge_handler::TextInput)s token by token, with continuous batching. On a CPU,
//! the tokens of a reply depend only on the weights, the prompt, the parameters and the seed, and
//! not on concurrent requests or the machine. For GPUs, see `docs/gpu.md`.

mod budget;
mod capacity;
mod comm;
mod config;
mod date;
mod detokenise;
mod engine;
mod error;
mod grammar;
mod handler;
mod kernel;
mod kv;
mod limits;
mod loading;
mod matrix;
mod memory;
mod network;
mod options;
pub mod parity;
mod pool;
mod quantise;
mod reply;
mod request;
mod rope;
mod sample;
mod schedule;
mod share;
mod speculation;
mod template;
#[cfg(feature = "testing")]
pub mod testing;
mod text;
mod weights;
mod workers;

pub use capacity::{Memory, Need, parameters};
pub use config::{Config, Rope, RopeScaling, tensors};
pub use error::LoadError;
pub use grammar::{Grammar, Grammars, Rule};
pub use handler::Llama;
pub use kernel::Tier;
pub use kv::{KvCache, KvFormat, Table};
pub use matrix::Format;
pub use network::{Chunk, Logits, Model, On, Processor, Setup, Watch};
pub use options::{Options, Quantize};
pub use quantise::{Mix, QuantiseError, Writing, quantise};
pub use rope::RopeTable;
pub use sample::{
    Allowed, History, Logprobs, Noise, Sampling, Scratch, Sequences, TokenSet, logprobs, sample,
};
pub use speculation::{Continuation, Drafter};
pub use weights::Weights;
