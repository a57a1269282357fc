//! The network: embedding, layers of attention and feed-forward, output.
//!
//! A step runs any mix of prompt chunks and single tokens of several sequences at once. All of them
//! are rows; only attention knows which sequence a row is of. Each row's numbers are the same
//! whatever runs beside it.

mod device;
mod load;
mod part;
mod plan;
mod rank;
mod ranks;
mod shard;
mod step;

use std::time::{Duration, Instant};

use nsbridge_handler::{Error, Result};

use crate::capacity::parameters;
use crate::kernel::Tier;
use crate::kernel::attention::PAGE;
use crate::kernel::reach::{REACHES, set_reach};
use crate::kv::{KvCache, KvFormat, Table};
use crate::matrix::Format;
use crate::{Config, LoadError, Weights};

pub use self::device::On;

use self::plan::Step;
use self::ranks::Ranks;
pub use self::ranks::Watch;
use self::step::WIDEST_HEAD;

/// A model of so many weights is brought from memory in each step, in whatever format.
const OUT_OF_CACHES: u64 = 100_000_000;

/// How long ways of bringing it are tried out.
const TRYING: Duration = Duration::from_millis(500);

/// How a model is held and run. None of it but the formats and the device changes a bit of what it
/// computes.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What computes.
    pub device: Processor,
    /// Ranks that each compute a part of every matrix: tensor parallelism as in Megatron-LM (Shoeybi
    /// et al., arXiv:1909.08053).
    pub ranks: usize,
    /// How long a rank waits for the others before the model is given up.
    pub patience: Duration,
    /// Threads that compute where the kernels are the engine's own, the caller's among them, and shared
    /// out to the ranks; by default as many as there are cores, or one a rank for a model that a core's
    /// caches hold.
    pub threads: Option<usize>,
    /// The instructions; by default the best of this machine.
    pub tier: Option<Tier>,
    /// How matrices are kept; by default as the checkpoint has them. Only the engine's own kernels
    /// have others.
    pub format: Option<Format>,
    /// How keys and values are kept.
    pub kv: KvFormat,
    /// Blocks of 32 positions for keys and values of all sequences together.
    pub blocks: usize,
}

/// What a model is computed by.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Processor {
    /// This engine's own kernels.
    #[default]
    Cpu,
    /// candle's, on any device that it knows: weights are floats or in the checkpoint's blocks, and the
    /// bits depend on the device and on the number of ranks.
    Candle(On),
}

impl Processor {
    /// The one of a name: `cpu`; `cuda` for GPUs, of which each rank has one; `cuda:N` for all ranks on
    /// that one.
    ///
    /// # Errors
    ///
    /// Another name, a GPU that is not there, or a worker that was built without what it takes.
    pub fn named(name: &str, ranks: usize) -> Result<Self, LoadError> {
        if name == "cpu" { Ok(Self::Cpu) } else { On::gpus(name, ranks).map(Self::Candle) }
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            device: Processor::Cpu,
            ranks: 1,
            patience: Duration::from_secs(60),
            threads: None,
            tier: None,
            format: None,
            kv: KvFormat::default(),
            blocks: 64,
        }
    }
}

/// A language model of the Llama family (Touvron et al., arXiv:2302.13971).
#[derive(Debug)]
pub struct Model {
    ranks: Ranks,
    cache: KvCache,
    context: usize,
    vocab_size: usize,
    arithmetic: String,
    patience: Duration,
}

/// Tokens of one sequence that a step runs.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// What went before; blocks for these tokens are reserved in it.
    pub table: &'a mut Table,
    /// At least one.
    pub tokens: &'a [u32],
    /// After how many of the last tokens the logits are wanted.
    pub logits: usize,
}

/// The logits of a step, a row for each that was wanted, in the order of the chunks.
#[derive(Debug)]
pub struct Logits<'a> {
    data: &'a [f32],
    stride: usize,
    vocab_size: usize,
}

impl<'a> Logits<'a> {
    /// The rows, each as long as the vocabulary.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &'a [f32]> + use<'a> {
        let vocab_size = self.vocab_size;
        self.data.chunks_exact(self.stride).map(move |row| &row[..vocab_size])
    }
}

impl Model {
    /// Builds the network, with room for `context` positions of a sequence.
    ///
    /// # Errors
    ///
    /// A tensor that is missing or has the wrong shape, ranks that cannot share the model, or too
    /// little memory.
    pub fn new(
        config: &Config,
        context: usize,
        weights: &Weights,
        setup: &Setup,
    ) -> Result<Self, LoadError> {
        if config.head_dim > WIDEST_HEAD {
            let (found, supported) =
                (config.head_dim.to_string(), format!("{WIDEST_HEAD} or less"));
            return Err(LoadError::unsupported("head_dim in config.json", found, supported));
        }
        let format = setup.format.unwrap_or_else(|| weights.coarsest());
        config.hold_degree("tensor_parallel_degree", setup.ranks, format)?;
        if let (Processor::Candle(_), Some(_)) = (&setup.device, setup.format) {
            return Err(LoadError::Worker(
                "the option quantize is for CPUs: for a GPU, write the file with `nsbridge model quantize`"
                    .to_owned(),
            ));
        }
        let cache = KvCache::new(setup.blocks)?;
        let ranks = Ranks::load(config, context, weights, setup)?;
        let arithmetic = ranks.arithmetic();
        let (vocab_size, patience) = (config.vocab_size, setup.patience);
        let mut model = Self { ranks, cache, context, vocab_size, arithmetic, patience };
        if matches!(setup.device, Processor::Cpu) && parameters(config) >= OUT_OF_CACHES {
            model.find_reach();
        }
        Ok(model)
    }

    /// Finds out how far ahead weights are best asked for here, in steps of one token.
    fn find_reach(&mut self) {
        let mut least = REACHES.map(|_| Duration::MAX);
        let begun = Instant::now();
        while begun.elapsed() < TRYING {
            for (reach, least) in REACHES.into_iter().zip(&mut least) {
                set_reach(reach);
                // Who asks next is told why there is none.
                let Some(took) = self.lone_step() else { return };
                *least = took.min(*least);
            }
        }
        let best = REACHES.into_iter().zip(least).min_by_key(|(_, least)| *least);
        best.into_iter().for_each(|(reach, _)| set_reach(reach));
    }

    /// What a step of one token takes that nothing comes before; `None` if there is no such step.
    fn lone_step(&mut self) -> Option<Duration> {
        let mut table = Table::default();
        if !self.cache.reserve(&mut table, 1) {
            return None;
        }
        let begun = Instant::now();
        let chunk = Chunk { table: &mut table, tokens: &[0], logits: 1 };
        let took = self.forward(&mut [chunk]).ok().map(|_| begun.elapsed());
        self.cache.release(table);
        took
    }

    /// The most tokens a sequence can have, reply included.
    pub fn context(&self) -> usize {
        self.context
    }

    /// One more than the largest token.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Whose the keys and values of all sequences are.
    pub fn cache(&mut self) -> &mut KvCache {
        &mut self.cache
    }

    /// What decides the bits beside the files: formats, and the rules of this version.
    pub fn arithmetic(&self) -> &str {
        &self.arithmetic
    }

    /// How long a rank waits for the others.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Who sees from another thread how far it is.
    pub fn watch(&self) -> Watch {
        self.ranks.watch()
    }

    /// Runs the chunks' tokens, and gives the logits that they want.
    ///
    /// # Errors
    ///
    /// If a chunk has no token, no blocks reserved, or a token that is not in the vocabulary or
    /// beyond the context; nothing has changed then. If a rank is lost, and then every time.
    pub fn forward(&mut self, chunks: &mut [Chunk<'_>]) -> Result<Logits<'_>> {
        for chunk in &*chunks {
            self.check(chunk)?;
        }
        let data = self.ranks.run(Step::new(chunks, self.cache.take_copies()))?;
        for chunk in chunks {
            chunk.table.grow(chunk.tokens.len());
        }
        Ok(Logits { data: data.numbers, stride: data.stride, vocab_size: self.vocab_size })
    }

    fn check(&self, chunk: &Chunk<'_>) -> Result<()> {
        let end = chunk.table.len() + chunk.tokens.len();
        let reserved = chunk.table.blocks().len() * PAGE;
        let known = |token: &u32| (*token as usize) < self.vocab_size;
        let wrong = if chunk.tokens.is_empty() || chunk.logits > chunk.tokens.len() {
            "a chunk has fewer tokens than it wants logits of, or none"
        } else if end > self.context {
            "a sequence goes beyond the context"
        } else if end > reserved || !self.cache.may_write(chunk.table) {
            "a chunk has no room in the cache"
        } else if !chunk.tokens.iter().all(known) {
            "a token is not in the vocabulary"
        } else {
            return Ok(());
        };
        Err(Error::bad_input(wrong))
    }
}

#[cfg(test)]
mod tests {
    use super::{Chunk, Model, REACHES, Setup};
    use crate::kernel::reach::reach;
    use crate::{Config, Format, Table, Weights};

    #[test]
    fn finding_out_how_far_ahead_to_ask_changes_nothing() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/models/tale-7m");
        let files = nsbridge_handler::Model::in_dir(dir);
        let (config, weights) = (Config::read(&files).unwrap(), Weights::read(&files).unwrap());
        let setup = Setup { ranks: 2, blocks: 2, format: Some(Format::Q8_0), ..Setup::default() };
        let mut model = Model::new(&config, 32, &weights, &setup).unwrap();
        let mut table = Table::default();
        assert!(model.cache().reserve(&mut table, 4));
        let mut said = |model: &mut Model| {
            let chunk = Chunk { table: &mut table, tokens: &[5, 7], logits: 1 };
            let bits = model.forward(&mut [chunk]).unwrap().rows().next().unwrap().to_vec();
            model.cache().truncate(&mut table, 0);
            assert!(model.cache().reserve(&mut table, 4));
            (bits, model.cache().free())
        };
        let before = said(&mut model);
        model.find_reach();
        assert!(REACHES.contains(&reach()));
        assert_eq!(said(&mut model), before);
    }
}
