//! Transformer network: embedding, layers of attention and feed-forward, output.
//!
//! A step runs any mix of prompt chunks and single tokens of several sequences. Every token is a
//! row; only attention depends on the row's sequence. The numbers of a row are the same whatever
//! else is in the batch.

mod arithmetic;
mod backend;
#[cfg(feature = "candle")]
mod device;
mod gpu;
mod load;
mod part;
mod plan;
mod rank;
mod ranks;
mod shard;
mod step;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nsbridge_handler::{Error, Result};

use crate::capacity::parameters;
use crate::config::Config;
use crate::error::LoadError;
use crate::kv::{BlockTable, KvCacheManager, KvFormat};
use crate::sample::{Draws, Holder, LogitsRow};
use crate::weights::Weights;
use nsbridge_kernels::attention::PAGE;
use nsbridge_kernels::prefetch::{DISTANCES, set_distance};
use nsbridge_kernels::simd::Bf16Order;
use nsbridge_kernels::{Format, Tier};

pub use self::arithmetic::{Arithmetic, NativeSpeed};
pub use self::backend::{Backend, CandleDevices};
pub use self::gpu::GpuDevices;
pub(crate) use self::gpu::GpuRoom;

use self::plan::Step;
use self::rank::{Rank, Rows};
use self::ranks::Ranks;
pub use self::ranks::Watch;
use self::step::WIDEST_HEAD;

/// Number of weights above which a model does not fit in CPU caches, so each step streams it from
/// memory.
const OUT_OF_CACHES: u64 = 100_000_000;

/// Time limit of the search for a prefetch distance.
const TRYING: Duration = Duration::from_millis(500);

/// Placement and execution options of a model. Only the formats, the arithmetic and the device affect
/// the bits of the results.
///
/// A literal ends in `..Setup::default()`: minor versions add fields.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Backend that computes the model.
    pub device: Backend,
    /// Number of ranks that each compute a part of every matrix: tensor parallelism as in
    /// Megatron-LM (Shoeybi et al., arXiv:1909.08053).
    pub ranks: usize,
    /// Time limit for waiting on another rank, after which the model fails.
    pub patience: Duration,
    /// Number of CPU compute threads, the caller's included, divided among the ranks. The default
    /// is one for each core, or one for each rank if the model fits in a core's caches.
    pub threads: Option<usize>,
    /// Arithmetic on a CPU; a GPU's is that of its [`Backend`].
    pub arithmetic: Arithmetic,
    /// Order of the additions with [`Arithmetic::Native`] on a CPU; by default that of this machine's
    /// best tier. Other tiers give the same bits, and are slow.
    pub bf16_order: Option<Bf16Order>,
    /// Instruction-set tier; by default the best one of this machine.
    pub tier: Option<Tier>,
    /// Storage format of the matrices; by default that of the checkpoint. Only the engine's own
    /// kernels can convert.
    pub format: Option<Format>,
    /// Storage format of keys and values.
    pub kv: KvFormat,
    /// True if a step returns hidden states after the last norm in place of logits. The output
    /// matrix is then not loaded.
    pub hidden: bool,
    /// Number of KV-cache blocks, of 32 positions each, for all sequences together.
    pub blocks: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            device: Backend::Cpu,
            ranks: 1,
            patience: Duration::from_secs(60),
            threads: None,
            arithmetic: Arithmetic::Portable,
            bf16_order: None,
            tier: None,
            format: None,
            kv: KvFormat::default(),
            hidden: false,
            blocks: 64,
        }
    }
}

/// Language model of the Llama family (Touvron et al., arXiv:2302.13971).
#[derive(Debug)]
pub struct Model {
    ranks: Ranks,
    cache: KvCacheManager,
    context: usize,
    vocab_size: usize,
    /// Length of a row that a step returns.
    width: usize,
    arithmetic: String,
    patience: Duration,
    /// True if a device can sample.
    samples: bool,
}

/// Tokens of one sequence in a step.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// Block table of the sequence, with blocks reserved for these tokens.
    pub table: &'a mut BlockTable,
    /// At least one token.
    pub tokens: &'a [u32],
    /// Number of last tokens that need logits.
    pub logits: usize,
}

/// Logits of a step: one row for each requested token, in the order of the chunks. With
/// [`Setup::hidden`], the rows are hidden states.
#[derive(Debug)]
pub struct Logits<'a> {
    data: &'a [f32],
    stride: usize,
    width: usize,
}

impl<'a> Logits<'a> {
    /// Returns the rows, each as long as the vocabulary or as a hidden state.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &'a [f32]> + use<'a> {
        let width = self.width;
        self.data.chunks_exact(self.stride).map(move |row| &row[..width])
    }
}

/// Requested rows of a step, in the order of the chunks.
pub(crate) struct Results<'a> {
    step: Arc<Step>,
    rank: &'a dyn Rank,
    width: usize,
}

impl<'a> Results<'a> {
    /// Returns the rows.
    pub(crate) fn rows(&'a self) -> impl Iterator<Item = LogitsRow<'a>> {
        let chosen = self.rank.chosen();
        let rows = chosen.is_none().then(|| self.rank.logits(&self.step));
        (0..self.step.wanted.len()).map(move |at| match (&rows, chosen) {
            (Some(rows), _) => LogitsRow::Here(&rows.numbers[at * rows.stride..][..self.width]),
            (None, Some(chosen)) => LogitsRow::There { holder: self, row: at as u32, chosen },
            (None, None) => LogitsRow::Here(&[]),
        })
    }
}

impl Holder for Results<'_> {
    fn copy(&self, row: u32) -> Vec<f32> {
        let mut numbers = self.rank.copy(row);
        numbers.truncate(self.width);
        numbers
    }
}

impl Model {
    /// Builds the network, for sequences of up to `context` positions.
    ///
    /// # Errors
    ///
    /// Returns an error if a tensor is missing or has the wrong shape, if the model cannot be
    /// divided among the ranks, or if memory is short.
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
        // An output matrix that is not needed counts as tied to the embedding, and is not loaded.
        let hidden = setup.hidden.then(|| Config { tied: true, ..config.clone() });
        let config = hidden.as_ref().unwrap_or(config);
        let format = setup.format.unwrap_or_else(|| weights.coarsest());
        config.check_degree("tensor_parallel_degree", setup.ranks, format)?;
        if let (Backend::Candle(_), Some(_)) = (&setup.device, setup.format) {
            return Err(LoadError::Worker(
                "the option quantize is for CPUs: for a GPU, write the file with `nsbridge model quantize`"
                    .to_owned(),
            ));
        }
        let cache = KvCacheManager::new(setup.blocks)?;
        let ranks = Ranks::load(config, context, weights, setup)?;
        let arithmetic = ranks.arithmetic();
        let (vocab_size, patience) = (config.vocab_size, setup.patience);
        let width = if setup.hidden { config.hidden_size } else { vocab_size };
        let samples = matches!(setup.device, Backend::Gpu(_));
        let mut model =
            Self { ranks, cache, context, vocab_size, width, arithmetic, patience, samples };
        if matches!(setup.device, Backend::Cpu) && parameters(config) >= OUT_OF_CACHES {
            model.find_prefetch_distance();
        }
        Ok(model)
    }

    /// Finds the fastest prefetch distance for weights on this machine, by timing steps of one
    /// token.
    fn find_prefetch_distance(&mut self) {
        let mut least = DISTANCES.map(|_| Duration::MAX);
        let begun = Instant::now();
        while begun.elapsed() < TRYING {
            for (distance, least) in DISTANCES.into_iter().zip(&mut least) {
                set_distance(distance);
                // The next step returns the error.
                let Some(took) = self.lone_step() else { return };
                *least = took.min(*least);
            }
        }
        let best = DISTANCES.into_iter().zip(least).min_by_key(|(_, least)| *least);
        best.into_iter().for_each(|(distance, _)| set_distance(distance));
    }

    /// Measures a step of one token without a prefix. Returns `None` if the step fails.
    fn lone_step(&mut self) -> Option<Duration> {
        let mut table = BlockTable::default();
        if !self.cache.reserve(&mut table, 1) {
            return None;
        }
        let begun = Instant::now();
        let chunk = Chunk { table: &mut table, tokens: &[0], logits: 1 };
        let took = self.forward(&mut [chunk]).ok().map(|_| begun.elapsed());
        self.cache.release(table);
        took
    }

    /// Returns the largest number of tokens in a sequence, reply included.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Returns the vocabulary size: one more than the largest token id.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Returns the block allocator for the keys and values of all sequences.
    pub fn cache(&mut self) -> &mut KvCacheManager {
        &mut self.cache
    }

    /// Returns a description of what determines the bits besides the model files: formats, and the
    /// arithmetic of this version.
    pub fn arithmetic(&self) -> &str {
        &self.arithmetic
    }

    /// Returns the time limit for waiting on another rank.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Returns a handle that other threads use to watch the model's progress.
    pub fn watch(&self) -> Watch {
        self.ranks.watch()
    }

    /// Runs the tokens of the chunks and returns the requested logits.
    ///
    /// # Errors
    ///
    /// Returns an error, with nothing changed, if a chunk has no token, fewer tokens than requested
    /// logits, too few reserved blocks, or a token that is outside the vocabulary or beyond the
    /// context. Returns an error if a rank is lost, in this call and in all later ones.
    pub fn forward(&mut self, chunks: &mut [Chunk<'_>]) -> Result<Logits<'_>> {
        let Results { step, rank, width } = self.forward_drawn(chunks, None)?;
        let Rows { numbers, stride } = rank.logits(&step);
        Ok(Logits { data: numbers, stride, width })
    }

    /// Runs the tokens of the chunks. Of the requested logits, the device samples these tokens, if it
    /// [can](Self::draws).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`forward`](Self::forward).
    pub(crate) fn forward_drawn(
        &mut self,
        chunks: &mut [Chunk<'_>],
        draws: Option<Draws>,
    ) -> Result<Results<'_>> {
        for chunk in &*chunks {
            self.check(chunk)?;
        }
        let step = Step { draws, ..Step::new(chunks, self.cache.take_copies()) };
        // No other rank can compute a lost rank's part, so the model is at its end.
        let (step, rank) = self.ranks.run(step).map_err(|lost| Error::fatal(lost.to_string()))?;
        for chunk in chunks {
            chunk.table.grow(chunk.tokens.len());
        }
        Ok(Results { step, rank, width: self.width })
    }

    /// Returns a list for the tokens that a device samples, or `None` if the CPU samples.
    pub(crate) fn draws(&self) -> Option<Draws> {
        (self.samples && self.width == self.vocab_size).then(|| Draws::new(self.vocab_size))
    }

    /// Checks a chunk before a step.
    ///
    /// # Errors
    ///
    /// Returns the error of [`forward`](Self::forward) for a step with this chunk.
    pub(crate) fn check(&self, chunk: &Chunk<'_>) -> Result<()> {
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
    use std::sync::Arc;

    use nsbridge_gpu::emulator::Emulator;
    use nsbridge_kernels::prefetch::distance;

    use super::{Backend, Chunk, DISTANCES, GpuDevices, Model, Setup};
    use crate::config::Config;
    use crate::kv::BlockTable;
    use crate::network::Arithmetic;
    use crate::sample;
    use crate::sample::{History, Noise, Sampling, Scratch, Wanted, logprobs};
    use crate::weights::Weights;
    use nsbridge_kernels::Format;

    #[test]
    fn finding_out_how_far_ahead_to_ask_changes_nothing() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/models/tale-7m");
        let files = nsbridge_handler::Model::in_dir(dir);
        let (config, weights) = (Config::read(&files).unwrap(), Weights::read(&files).unwrap());
        let setup = Setup { ranks: 2, blocks: 2, format: Some(Format::Q8_0), ..Setup::default() };
        let mut model = Model::new(&config, 32, &weights, &setup).unwrap();
        let mut table = BlockTable::default();
        assert!(model.cache().reserve(&mut table, 4));
        let mut said = |model: &mut Model| {
            let chunk = Chunk { table: &mut table, tokens: &[5, 7], logits: 1 };
            let bits = model.forward(&mut [chunk]).unwrap().rows().next().unwrap().to_vec();
            model.cache().truncate(&mut table, 0);
            assert!(model.cache().reserve(&mut table, 4));
            (bits, model.cache().free())
        };
        let before = said(&mut model);
        model.find_prefetch_distance();
        assert!(DISTANCES.contains(&distance()));
        assert_eq!(said(&mut model), before);
    }

    #[test]
    fn a_gpu_samples_where_the_logits_are() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/models/tale-1m");
        let files = nsbridge_handler::Model::in_dir(dir);
        let (config, weights) = (Config::read(&files).unwrap(), Weights::read(&files).unwrap());
        let emulator = Arc::new(Emulator::new());
        let devices = GpuDevices::new(vec![emulator.clone()], Arithmetic::Portable).unwrap();
        let setup = Setup { device: Backend::Gpu(devices), blocks: 2, ..Setup::default() };
        let mut model = Model::new(&config, 32, &weights, &setup).unwrap();
        let mut table = BlockTable::default();
        assert!(model.cache().reserve(&mut table, 2));
        let (history, sampling) = (History::new(&[5, 7]), Sampling::default());
        let noise = Noise::new(3, &[5, 7]);
        let wanted =
            Wanted { history: &history, sampling: &sampling, allowed: None, noise, index: 0 };
        let mut draws = model.draws().unwrap();
        draws.add(wanted, 0, Some(3));
        let before = emulator.downloaded();
        let chunk = Chunk { table: &mut table, tokens: &[5, 7], logits: 1 };
        let results = model.forward_drawn(&mut [chunk], Some(draws)).unwrap();
        let row = results.rows().next().unwrap();
        let mut scratch = Scratch::default();
        let token = row.sample(wanted, &mut scratch).unwrap();
        let told = row.logprobs((token, wanted), 3, &mut scratch).unwrap();
        let left = emulator.downloaded() - before;
        assert!(left < 200, "{left} bytes left the device");
        let logits = row.numbers();
        assert_eq!(sample(&logits, &history, &sampling, None, noise, 0, &mut scratch), Some(token));
        assert_eq!(logprobs(&logits, token, 3, &mut scratch), Some(told));
    }
}
