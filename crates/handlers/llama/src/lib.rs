//! A handler for language models of the Llama family, as Hugging Face's transformers writes them.
//!
//! [`Llama`] reads `config.json`, `generation_config.json`, `tokenizer.json`, the chat template
//! and safetensors from the model named `target`, and answers
//! [`TextInput`](nsbridge_handler::TextInput)s token by token, many at once. The tokens of a reply
//! depend on the weights, the prompt, the parameters and the seed, and on nothing else: not on what
//! runs beside it, nor on the machine. A GPU is another matter: see `docs/gpu.md`.

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
