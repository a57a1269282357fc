//! Readers of a model's text files, for tests with arbitrary bytes; files in formats that `nsbridge
//! model quantize` does not write; and the means of benchmarks.

use std::time::{SystemTime, UNIX_EPOCH};

use nsbridge_handler::{Error, Model, Result, TextInput};

use crate::config;
use crate::error::LoadError;
use crate::kv::{BlockTable, KvCacheManager};
use crate::limits::FEW_BYTES;
use crate::network::{Backend, Chunk};
use crate::sample::{History, Noise, Sampling, Scratch, Wanted};
use crate::template::ChatTemplate;
use crate::tokenizer::{self, ChatTokenizer};

pub use crate::quantize::nearest::write_in;

/// Reserves blocks for `tokens` more tokens, and marks the tokens as computed. Their keys and values
/// are whatever the cache has there. Returns false if there are not enough blocks.
pub fn assume(cache: &mut KvCacheManager, table: &mut BlockTable, tokens: usize) -> bool {
    let there = cache.reserve(table, tokens);
    if there {
        table.grow(tokens);
    }
    there
}

/// Runs the tokens of the chunks, and samples a token for each requested row, on the device if it
/// can.
///
/// # Errors
///
/// Returns the errors of [`Model::forward`](crate::network::Model::forward).
pub fn run_sampled(
    model: &mut crate::network::Model,
    chunks: &mut [Chunk<'_>],
    history: &History,
) -> Result<Vec<Option<u32>>> {
    let (sampling, noise) = (Sampling::default(), Noise::new(7, &[]));
    let wanted = Wanted { history, sampling: &sampling, allowed: None, noise, index: 0 };
    let rows = chunks.iter().map(|chunk| chunk.logits as u32).sum();
    let mut draws = model.draws();
    if let Some(draws) = &mut draws {
        (0..rows).for_each(|row| draws.add(wanted, row, None));
    }
    let results = model.forward_drawn(chunks, draws)?;
    let mut scratch = Scratch::default();
    Ok(results.rows().map(|row| row.sample(wanted, &mut scratch)).collect())
}

/// Selects whether the launches of a step on GPUs are recorded, and enqueued as one.
pub fn record_launches(backend: &Backend, recorded: bool) {
    if let Backend::Gpu(on) = backend {
        on.set_recorded(recorded);
    }
}

/// Returns the name in GGUF files of a tensor named as in transformers.
pub fn gguf_name(tensor: &str) -> Option<String> {
    config::gguf_name(tensor)
}

/// A model's tokenizer with its chat template.
#[derive(Debug)]
pub struct Tokens(ChatTokenizer);

impl Tokens {
    /// Reads `tokenizer.json` and the files beside it, or else the metadata of a GGUF file, for an
    /// embedding of `rows` rows.
    ///
    /// # Errors
    ///
    /// Returns the fatal error with which a worker exits.
    pub fn read(model: &Model, rows: usize) -> Result<Self> {
        ChatTokenizer::read(model, rows, false).map(Self).map_err(LoadError::fatal)
    }

    /// Tokenizes a request for a context of `context` tokens.
    ///
    /// # Errors
    ///
    /// Returns the error that the client receives.
    pub fn of(&self, input: &TextInput, context: usize) -> Result<Vec<u32>> {
        self.0.prompt(input, UNIX_EPOCH, context)
    }

    /// Returns the lower bound of a text's tokens by which it is refused before it is tokenized.
    pub fn least(&self, text: &str) -> usize {
        self.0.least(text)
    }

    /// Returns the bytes that a token stands for; none for special tokens.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.0.bytes(token)
    }
}

/// Chat template of a model.
#[derive(Debug)]
pub struct Template(ChatTemplate);

impl Template {
    /// Reads the template from a model's files.
    ///
    /// # Errors
    ///
    /// Returns the fatal error with which a worker exits, or an error that there is no template.
    pub fn read(model: &Model) -> Result<Self> {
        let template = tokenizer::template(model).map_err(LoadError::fatal)?;
        template.map(Self).ok_or_else(|| Error::fatal("the model has no chat template"))
    }

    /// Renders the chat of a request.
    ///
    /// # Errors
    ///
    /// Returns the error that the client receives.
    pub fn render(&self, input: &TextInput, submitted_at: SystemTime) -> Result<String> {
        self.0.render(&self.0.chat(input)?, submitted_at, FEW_BYTES)
    }
}
