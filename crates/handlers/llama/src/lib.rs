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
mod model;
mod request;
mod rope;
mod sample;
mod template;
mod text;
mod weights;

pub use config::{Config, Rope, RopeScaling};
pub use error::LoadError;
pub use handler::{Llama, Options};
pub use model::{KvCache, Model};
pub use rope::RopeTable;
pub use sample::{History, Logprobs, Noise, Sampling, Scratch, logprobs, sample};
pub use weights::Weights;
