//! A handler for language models of the Llama family, as Hugging Face's transformers writes them.
//!
//! [`Llama`] reads `config.json`, `generation_config.json`, `tokenizer.json`, the chat template
//! and safetensors from the model named `target`, and answers
//! [`TextInput`](nsbridge_handler::TextInput)s token by token. Everything is computed in f32 on
//! the CPU; other weights are widened when they are loaded.

mod config;
mod date;
mod detokenise;
mod error;
mod handler;
mod kernel;
mod kv;
mod matrix;
mod memory;
mod network;
mod pool;
mod request;
mod rope;
mod sample;
mod share;
mod template;
mod text;
mod weights;

pub use config::{Config, Memory, Rope, RopeScaling, parameters, tensors};
pub use error::LoadError;
pub use handler::{Llama, Options};
pub use kernel::Tier;
pub use kv::{KvCache, KvFormat, Table};
pub use matrix::Format;
pub use network::{Chunk, Engine, Logits, Model};
pub use rope::RopeTable;
pub use sample::{Noise, Sampling, sample};
pub use weights::Weights;
