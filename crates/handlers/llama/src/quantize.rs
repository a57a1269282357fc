//! Conversion of a model in transformers' format to a quantized GGUF file.

mod blocks;
mod head;
mod mix;
#[cfg(feature = "testing")]
pub(crate) mod nearest;
mod search;

use std::fs::File;
use std::io::{self, BufWriter, Write as _};

use nsbridge_checkpoint::{Dtype, GgufValue};
use nsbridge_handler::Model;
use nsbridge_kernels::matrix::Source;

pub use self::mix::Mix;

use self::head::{ALIGNMENT, Entry, head};
use self::search::Search;
use crate::config::{Config, Rope, RopeScaling, gguf_name, tensors};
use crate::error::LoadError;
use crate::formats::format_of;
use crate::weights::{self, Cut, Stored, Weights};
use nsbridge_kernels::{Format, Tier};

/// Number of weights that a thread converts at a time.
const PIECE: usize = 1 << 20;

const FACTORS: &str = "rope_freqs.weight";

/// Error of writing a model as GGUF.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// The model cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The model is already quantized: doing it again would add to the error.
    #[error("{name} is {dtype} already: quantize the model that it was made of")]
    Already {
        /// Name of the tensor.
        name: String,
        /// Format of the tensor.
        dtype: Dtype,
    },
    /// A weight does not fit the format.
    #[error("row {row} of {name} has a weight that is no number, or too large for {dtype}")]
    Unsound {
        /// Name of the tensor.
        name: String,
        /// Row of the weight.
        row: usize,
        /// Target format.
        dtype: Dtype,
    },
    /// The file cannot be written.
    #[error("could not write the file")]
    Write(#[source] io::Error),
    /// A mix asks for a format that is not written.
    #[error("could not quantize {name}: {dtype} is not a format that is written")]
    Unknown {
        /// Name of the tensor.
        name: String,
        /// Format of the mix.
        dtype: Dtype,
    },
}

/// Writes a model's tensors and shape to an empty file, as GGUF, and returns its size in bytes.
///
/// Blocks of Q4_K and Q5_K come from this crate's own search, the others are rounded as by
/// llama.cpp. The vocabulary stays in `tokenizer.json`; that of a GGUF file without one is copied. What
/// GGUF cannot express (windows of some layers, yarn without `truncate`, several tokens that end a reply)
/// stays in `config.json` and `generation_config.json`.
///
/// `told` is called with the progress in bytes. All cores are used. Memory holds one tensor in its
/// stored form and a few megabytes at a time.
///
/// # Errors
///
/// Returns an error if the model cannot be read or is already quantized, if a weight is not finite
/// or too large for its format, or if the file cannot be written.
pub fn quantize(
    model: &Model,
    mix: Mix,
    file: &File,
    told: impl FnMut(Writing),
) -> Result<u64, QuantizeError> {
    let dtype = |config: &Config, name: &str, shape: &[usize]| mix.dtype(config, name, shape);
    let kind = Kind { number: mix.number(), dtype: &dtype, convert: blocks::convert };
    write(model, kind, file, told)
}

/// Kind of a file.
#[derive(Clone, Copy)]
struct Kind<'a> {
    /// Number of the kind in GGUF: `llama_ftype` in llama.h.
    number: u32,
    /// Returns the type of a tensor of this name and shape.
    dtype: &'a dyn Fn(&Config, &str, &[usize]) -> Dtype,
    convert: Convert,
}

/// Appends weights in a format that needs no search. Returns false for a format that is not written.
type Convert = fn(&[f32], Dtype, &mut Vec<u8>) -> bool;

/// Writes a file of any kind; see [`quantize`].
fn write(
    model: &Model,
    kind: Kind<'_>,
    file: &File,
    mut told: impl FnMut(Writing),
) -> Result<u64, QuantizeError> {
    let config = Config::read(model)?;
    if matches!(config.rope.scaling, RopeScaling::Yarn { truncate: false, .. }) {
        tracing::warn!(
            "GGUF cannot express `truncate: false` of this model's yarn scaling: keep config.json \
             beside the file"
        );
    }
    let weights = Weights::read(model)?;
    let (origins, entries) = plan(&config, kind)?;
    let head = head(&config, kind.number, &entries, &vocabulary(model, &weights));
    let size = |entry: &Entry| entry.bytes().next_multiple_of(ALIGNMENT);
    let all = head.len() as u64 + entries.iter().map(size).sum::<u64>();
    told(Writing::Planned(all));
    let failed = QuantizeError::Write;
    let mut writer = BufWriter::with_capacity(1 << 20, file);
    writer.write_all(&head).map_err(failed)?;
    told(Writing::Written(head.len() as u64));
    for (origin, entry) in origins.iter().zip(&entries) {
        let mut put = |bytes: &[u8]| writer.write_all(bytes).map_err(failed);
        match origin {
            Origin::Tensor(name) => {
                let shape = &entry.shape;
                let weight = weights.take(name, shape, &Cut::Rows(0..shape[0]))?;
                let (order, convert) = (order(&config, &weights, name), kind.convert);
                let rows = Rows { name, weight: &weight, entry, order, convert };
                rows.make(&mut put)?;
            }
            Origin::Factors(factors) => {
                put(&factors.iter().flat_map(|factor| factor.to_le_bytes()).collect::<Vec<_>>())?;
            }
        }
        let (bytes, whole) = (entry.bytes(), size(entry));
        put(&[0; ALIGNMENT as usize][..(whole - bytes) as usize])?;
        told(Writing::Written(whole));
    }
    writer.flush().map_err(failed)?;
    drop(writer);
    file.sync_all().map_err(failed)?;
    Ok(all)
}

/// Returns the metadata of the vocabulary, if the model has it in a GGUF file alone.
fn vocabulary<'a>(model: &Model, weights: &'a Weights) -> Vec<(&'a str, &'a GgufValue)> {
    let metadata = weights.checkpoint().metadata();
    let alone = !model.files().any(|path| path == "tokenizer.json");
    if !alone || !metadata.contains_key("tokenizer.ggml.tokens") {
        return Vec::new();
    }
    let values = metadata.iter().map(|(key, value)| (key.as_str(), value));
    values.filter(|(key, _)| key.starts_with("tokenizer.")).collect()
}

/// Progress of writing a file.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Writing {
    /// Total size of the file in bytes, reported once at the start.
    Planned(u64),
    /// Number of bytes written since the last report.
    Written(u64),
}

/// Source of a tensor in the file.
enum Origin {
    /// Tensor of the model, by name.
    Tensor(String),
    /// Divisors of the rotary frequencies.
    Factors(Vec<f32>),
}

/// Lists the tensors of the file, in order, with their sources.
fn plan(config: &Config, kind: Kind<'_>) -> Result<(Vec<Origin>, Vec<Entry>), QuantizeError> {
    let mut plan = Vec::new();
    for (name, shape) in tensors(config) {
        let dtype = (kind.dtype)(config, &name, &shape);
        let theirs = gguf_name(&name)
            .ok_or_else(|| LoadError::Missing(format!("GGUF has no name for {name}")))?;
        plan.push((Origin::Tensor(name), Entry { name: theirs, shape, dtype }));
    }
    if let Some(factors) = factors(&config.rope, config.head_dim) {
        let (name, shape) = (FACTORS.to_owned(), vec![factors.len()]);
        plan.push((Origin::Factors(factors), Entry { name, shape, dtype: Dtype::F32 }));
    }
    Ok(plan.into_iter().unzip())
}

/// Returns the RoPE scaling that GGUF stores as a tensor, if there is one.
fn factors(rope: &Rope, head_dim: usize) -> Option<Vec<f32>> {
    match &rope.scaling {
        RopeScaling::Factors { factors } => Some(factors.clone()),
        RopeScaling::Llama3 { .. } => {
            let plain = Rope { theta: rope.theta, scaling: RopeScaling::None };
            let pairs = plain.frequencies(head_dim).into_iter().zip(rope.frequencies(head_dim));
            Some(pairs.map(|(plain, scaled)| plain / scaled).collect())
        }
        _ => None,
    }
}

/// Returns the head width of a tensor whose rows must be interleaved, else `None`.
fn order(config: &Config, weights: &Weights, name: &str) -> Option<usize> {
    let turned = name.contains("self_attn.q_proj.") || name.contains("self_attn.k_proj.");
    let wanted = turned && config.gguf_architecture() == "llama";
    (wanted && !weights.are_interleaved()).then_some(config.head_dim)
}

/// Conversion of one tensor.
struct Rows<'a> {
    name: &'a str,
    weight: &'a Stored,
    entry: &'a Entry,
    order: Option<usize>,
    convert: Convert,
}

impl Rows<'_> {
    /// Converts the rows on all cores, and writes them in order.
    fn make(
        &self,
        put: &mut impl FnMut(&[u8]) -> Result<(), QuantizeError>,
    ) -> Result<(), QuantizeError> {
        let dtype = self.weight.dtype();
        if dtype.block().0 > 1 {
            return Err(QuantizeError::Already { name: self.name.to_owned(), dtype });
        }
        let bytes = self.weight.bytes();
        let source = self.weight.source(&bytes);
        let (rows, columns) = (self.entry.rows(), self.entry.columns());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let each = (PIECE / columns).max(1);
        let starts: Vec<_> = (0..rows).step_by(each).collect();
        for starts in starts.chunks(threads) {
            let made: Vec<_> = std::thread::scope(|scope| {
                let piece = |start: &usize| {
                    let rows = *start..rows.min(start + each);
                    scope.spawn(|| self.piece(&source, rows))
                };
                let working: Vec<_> = starts.iter().map(piece).collect();
                let done = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                working.into_iter().map(done).collect()
            });
            for piece in made {
                put(&piece?)?;
            }
        }
        Ok(())
    }

    /// Converts some rows to the file's format.
    fn piece(
        &self,
        source: &Source<'_>,
        rows: std::ops::Range<usize>,
    ) -> Result<Vec<u8>, QuantizeError> {
        let (columns, dtype) = (self.entry.columns(), self.entry.dtype);
        let mut numbers = vec![0.0; rows.len() * columns];
        for (row, out) in rows.zip(numbers.chunks_exact_mut(columns)) {
            let from = self.order.map_or(row, |head| weights::parted(row, head));
            source.read(from, out);
            if !holds(dtype, out) {
                return Err(QuantizeError::Unsound {
                    name: self.name.to_owned(),
                    row: from,
                    dtype,
                });
            }
        }
        if let Some(format @ (Format::Q4K | Format::Q5K)) = format_of(dtype) {
            let mut out = Vec::with_capacity(numbers.len() / dtype.block().0 * dtype.block().1);
            Tier::best().run(Search { weights: &numbers, format, out: &mut out });
            return Ok(out);
        }
        let mut out = Vec::with_capacity(numbers.len() * 4);
        if !(self.convert)(&numbers, dtype, &mut out) {
            return Err(QuantizeError::Unknown { name: self.name.to_owned(), dtype });
        }
        Ok(out)
    }
}

/// Returns true if the format can hold the numbers: all formats but f32 and bf16 are limited by
/// f16, that of their scales.
fn holds(dtype: Dtype, numbers: &[f32]) -> bool {
    let most = match dtype {
        Dtype::F32 | Dtype::BF16 => f32::INFINITY,
        _ => 65_504.0,
    };
    numbers.iter().all(|number| number.is_finite() && number.abs() <= most)
}
