//! Engine and handler for language models of the Llama family: Llama, Mistral and Qwen.
//!
//! [`Llama`] is a handler. It reads `config.json`, `generation_config.json`, `tokenizer.json`, the
//! chat template and the weights (safetensors or GGUF) from the model named `target`; a GGUF file
//! can stand for all of them. It answers
//! [`TextInput`](nsbridge_handler::TextInput)s token by token, with continuous batching, prefix
//! caching, speculative decoding and grammars. On a CPU, the tokens of a reply depend only on the
//! weights, the prompt, the parameters and the seed, and not on concurrent requests or the machine.
//! For GPUs, see `docs/gpu.md`. [`Embedder`] is a handler for models of embeddings, on the same
//! engine.
//!
//! ```
//! use nsbridge_handler::testing::answer;
//! use nsbridge_handler::{FinishReason, Model, Models};
//! use nsbridge_llama::{Llama, Options};
//! use serde_json::json;
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/models/tale-1m");
//! let models = [("target".to_owned(), Model::in_dir(folder))].into_iter().collect::<Models>();
//! let llama = nsbridge_handler::testing::load::<Llama, _>(Options::default(), models)?;
//! let input = json!({ "prompt": "Once a bear", "max_tokens": 8, "temperature": 0.0 });
//! let (pieces, finish) = answer(&llama, &input, 7, &[])?;
//! assert_eq!((pieces.len(), finish.reason), (8, FinishReason::Length));
//! # Ok::<(), nsbridge_handler::Error>(())
//! ```
//!
//! # Parts of the engine
//!
//! The parts can be used alone. [`Config`] and [`Weights`] read a checkpoint, [`Model`] runs it in
//! steps, and [`sample`] chooses a token from a row of logits:
//!
//! ```
//! use nsbridge_handler::Error;
//! use nsbridge_llama::{
//!     Allowed, BlockTable, Chunk, Config, History, Model, Noise, Sampling, Scratch, Setup, Weights,
//!     sample,
//! };
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/models/tale-1m");
//! let files = nsbridge_handler::Model::in_dir(folder);
//! let config = Config::read(&files).map_err(Error::fatal)?;
//! let weights = Weights::read(&files).map_err(Error::fatal)?;
//! let mut model = Model::new(&config, 64, &weights, &Setup::default()).map_err(Error::fatal)?;
//!
//! let prompt = [5, 7, 9];
//! let (mut table, mut history) = (BlockTable::default(), History::new(&prompt));
//! let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
//! let (noise, mut scratch) = (Noise::new(7, &prompt), Scratch::default());
//! let mut next = prompt.to_vec();
//! for index in 0..4 {
//!     assert!(model.cache().reserve(&mut table, next.len()));
//!     let chunk = Chunk { table: &mut table, tokens: &next, logits: 1 };
//!     let logits = model.forward(&mut [chunk])?;
//!     let row = logits.rows().next().unwrap();
//!     let token = sample(row, &history, &sampling, None, noise, index, &mut scratch).unwrap();
//!     history.push(token);
//!     next = vec![token];
//! }
//! assert_eq!(history.reply().len(), 4);
//! model.cache().release(table);
//! # Ok::<(), Error>(())
//! ```
//!
//! The arithmetic is in the crate `nsbridge-kernels`.

mod budget;
mod capacity;
mod config;
mod date;
mod detokenize;
mod embedder;
mod engine;
mod error;
mod formats;
mod grammar;
mod handler;
mod kv;
mod limits;
mod metadata;
mod network;
mod options;
mod panics;
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
pub use embedder::Embedder;
pub use error::LoadError;
pub use formats::{coarsest_format, mean_width};
pub use grammar::{Grammar, Grammars, Rule};
pub use handler::Llama;
pub use kv::{BlockTable, KvCacheManager, KvFormat};
pub use network::{
    Arithmetic, Backend, CandleDevices, Chunk, GpuDevices, Logits, Model, NativeSpeed, Setup, Watch,
};
pub use nsbridge_kernels::simd::Bf16Order;
pub use nsbridge_kernels::{Format, Tier};
pub use options::{Options, Pooling, Quantize, Task};
pub use quantize::{Mix, QuantizeError, Writing, quantize};
pub use rope::RopeTable;
pub use sample::{
    Allowed, History, Logprobs, Noise, Sampling, Scratch, Sequences, TokenSet, logprobs, sample,
};
pub use speculation::{Continuation, Drafter};
pub use template::{CallFormat, ChatFormats, ReasoningFormat};
pub use weights::Weights;
