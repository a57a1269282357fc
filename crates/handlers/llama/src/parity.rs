//! Parity check: a model's logits against those that another program or machine computed for the
//! same tokens.

mod required;

use std::path::Path;

use nsbridge_handler::{Error, Result};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

pub(crate) use self::required::Required;

use crate::config::Config;
use crate::error::LoadError;
use crate::kv::{BlockTable, KvFormat};
use crate::network::{Chunk, Model, Setup};
use crate::weights::Weights;
use nsbridge_kernels::Format;

/// Number of tokens run per step.
const CHUNK: usize = 64;

/// Tokens, and the logits after each of them.
///
/// The file format is safetensors with `tokens`, `[n]` of i64, and `logits`, `[n, vocabulary]` of
/// f32.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Reference {
    /// Tokens, from the beginning of a sequence.
    pub tokens: Vec<u32>,
    /// Logits, row by row.
    pub logits: Vec<f32>,
}

/// Differences between a model's logits and a reference.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Parity {
    /// Largest absolute difference of two logits; NaN if a logit is NaN.
    pub largest: f32,
    /// Number of tokens before the largest difference.
    pub after: usize,
    /// Number of positions at which another token is the likeliest.
    pub mismatches: usize,
    /// Mean Kullback-Leibler divergence from the reference's distributions, in nats.
    pub divergence: f64,
}

impl Reference {
    /// Creates a reference of tokens and the logits after each of them, row by row.
    pub const fn new(tokens: Vec<u32>, logits: Vec<f32>) -> Self {
        Self { tokens, logits }
    }

    /// Reads a reference from a file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or if a tensor is missing or has another shape
    /// or dtype; it names the tensor.
    pub fn read(path: &Path) -> std::result::Result<Self, LoadError> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path)
            .map_err(|error| LoadError::Read(format!("{name} cannot be read: {error}")))?;
        Self::parse(&name, &bytes)
    }

    fn parse(name: &str, bytes: &[u8]) -> std::result::Result<Self, LoadError> {
        let file = SafeTensors::deserialize(bytes)
            .map_err(|error| LoadError::Read(format!("{name} is no safetensors file: {error}")))?;
        let tensor = |field: &str, dtype: Dtype| {
            let found = file.tensor(field).ok().filter(|tensor| tensor.dtype() == dtype);
            let wanted = format!("{name} must have `{field}` of {dtype:?}");
            found.ok_or(LoadError::Missing(wanted))
        };
        let (tokens, logits) = (tensor("tokens", Dtype::I64)?, tensor("logits", Dtype::F32)?);
        if logits.shape().first() != tokens.shape().first() || logits.shape().len() != 2 {
            let found = format!("{:?} and {:?}", tokens.shape(), logits.shape());
            let field = format!("the shapes of `tokens` and `logits` in {name}");
            return Err(LoadError::unsupported(field, found, "[n] and [n, vocabulary]"));
        }
        let ids = tokens.data().as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
        let ids: Option<Vec<u32>> = ids.map(|id| u32::try_from(id).ok()).collect();
        let numbers = logits.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let tokens = ids.filter(|ids| !ids.is_empty()).ok_or_else(|| {
            LoadError::Missing(format!("`tokens` in {name} must be ids from 0 on, one or more"))
        })?;
        Ok(Self { tokens, logits: numbers.collect() })
    }

    /// Runs a model on tokens and records the logits.
    ///
    /// # Errors
    ///
    /// Returns an error if a token is not in the vocabulary, or if the tokens exceed the context or
    /// the cache.
    pub fn record(model: &mut Model, tokens: &[u32]) -> Result<Self> {
        let mut logits = Vec::new();
        run(model, tokens, |row| logits.extend_from_slice(row))?;
        Ok(Self { tokens: tokens.to_vec(), logits })
    }

    /// Writes the reference to a file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written.
    pub fn write(&self, path: &Path) -> std::result::Result<(), LoadError> {
        let tokens: Vec<u8> =
            self.tokens.iter().flat_map(|id| i64::from(*id).to_le_bytes()).collect();
        let logits: Vec<u8> = self.logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
        let (n, vocabulary) = (self.tokens.len(), self.logits.len() / self.tokens.len().max(1));
        let view = |dtype, shape, bytes| TensorView::new(dtype, shape, bytes);
        let failed = |error: safetensors::SafeTensorError| {
            LoadError::Read(format!("{} cannot be written: {error}", path.display()))
        };
        let tensors = [
            ("tokens", view(Dtype::I64, vec![n], &tokens[..]).map_err(failed)?),
            ("logits", view(Dtype::F32, vec![n, vocabulary], &logits[..]).map_err(failed)?),
        ];
        safetensors::serialize_to_file(tensors, None, path).map_err(failed)
    }

    /// Compares a model's logits with the reference, row by row.
    ///
    /// # Errors
    ///
    /// Returns an error if the model cannot run the tokens, or if its vocabulary has another size.
    pub fn check_against(&self, model: &mut Model) -> Result<Parity> {
        let vocabulary = self.logits.len() / self.tokens.len().max(1);
        if vocabulary != model.vocab_size() {
            return Err(Error::bad_input(format!(
                "the reference has {vocabulary} logits a token, the model {}",
                model.vocab_size()
            )));
        }
        let mut parity = Parity::default();
        let mut rows = (1..).zip(self.logits.chunks_exact(vocabulary));
        run(model, &self.tokens, |found| {
            if let Some((after, right)) = rows.next() {
                parity.add(after, right, found);
            }
        })?;
        parity.divergence /= self.tokens.len() as f64;
        Ok(parity)
    }
}

/// Runs tokens from the beginning of a sequence, and calls `each` with the logits after each token.
fn run(model: &mut Model, tokens: &[u32], mut each: impl FnMut(&[f32])) -> Result<()> {
    let mut table = BlockTable::default();
    let mut some = |tokens: &[u32]| {
        if !model.cache().reserve(&mut table, tokens.len()) {
            return Err(Error::bad_input("there are more tokens than the cache has room for"));
        }
        let mut chunk = [Chunk { table: &mut table, tokens, logits: tokens.len() }];
        model.forward(&mut chunk)?.rows().for_each(&mut each);
        Ok(())
    };
    let done = tokens.chunks(CHUNK).try_for_each(&mut some);
    model.cache().release(table);
    done
}

impl Parity {
    /// Adds the row after `after` tokens. Divergences are summed here and averaged by the caller.
    fn add(&mut self, after: usize, right: &[f32], found: &[f32]) {
        for (right, found) in right.iter().zip(found) {
            let difference = (right - found).abs();
            // Minus infinity on both sides is no difference; a NaN counts as the largest.
            let worse = difference > self.largest || difference.is_nan() && right != found;
            if worse && !self.largest.is_nan() {
                (self.largest, self.after) = (difference, after);
            }
        }
        self.mismatches += usize::from(likeliest(right) != likeliest(found));
        self.divergence += divergence(right, found);
    }
}

fn likeliest(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a)))
}

/// Computes KL(p || q) of the distributions of two rows of logits.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let normaliser = |row: &[f32]| {
        let most = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        most + libm::log(row.iter().map(|x| libm::exp(f64::from(*x) - most)).sum())
    };
    let (of_p, of_q) = (normaliser(p), normaliser(q));
    let term = |(p, q): (&f32, &f32)| {
        let (p, q) = (f64::from(*p) - of_p, f64::from(*q) - of_q);
        if p == f64::NEG_INFINITY { 0.0 } else { libm::exp(p) * (p - q) }
    };
    p.iter().zip(q).map(term).sum()
}

/// Opens a model outside of a worker, with a cache for `tokens` positions.
///
/// # Errors
///
/// Returns an error if a file of the model is missing or malformed, or if the model cannot be
/// served.
pub fn open(
    files: &nsbridge_handler::Model,
    tokens: usize,
    format: Option<Format>,
    kv: KvFormat,
) -> std::result::Result<Model, LoadError> {
    let config = Config::read(files)?;
    let weights = Weights::read(files)?;
    let context = config.context.min(tokens.max(1));
    let blocks = context.div_ceil(32);
    Model::new(&config, context, &weights, &Setup { format, kv, blocks, ..Setup::default() })
}

#[cfg(test)]
mod tests {
    use super::{Parity, Reference};

    #[test]
    fn differences_are_measured_where_they_are() {
        let compare = |right: &[f32], found: &[f32]| {
            let mut parity = Parity::default();
            let rows = right.chunks_exact(3).zip(found.chunks_exact(3));
            (1..).zip(rows).for_each(|(after, (right, found))| parity.add(after, right, found));
            parity
        };
        let right = [1.0, 2.0, 0.5, 0.0, 1.0, f32::NEG_INFINITY];
        assert_eq!(compare(&right, &right).largest, 0.0);
        let mut found = right;
        found[3] = 1.5;
        let parity = compare(&right, &found);
        assert_eq!((parity.largest, parity.after, parity.mismatches), (1.5, 2, 1));
        assert!(parity.divergence > 0.1);
        found[0] = f32::NAN;
        assert!(compare(&right, &found).largest.is_nan());
    }

    #[test]
    fn a_reference_is_read_as_it_was_written_and_a_wrong_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reference.safetensors");
        let reference = Reference { tokens: vec![3, 1], logits: vec![0.5, 1.0, -2.0, 4.0] };
        reference.write(&path).unwrap();
        assert_eq!(Reference::read(&path).unwrap(), reference);
        let wrong = Reference { tokens: vec![], logits: vec![] };
        wrong.write(&path).unwrap();
        assert!(Reference::read(&path).unwrap_err().to_string().contains("tokens"));
        std::fs::write(&path, "no").unwrap();
        assert!(Reference::read(&path).unwrap_err().to_string().contains("reference.safetensors"));
    }
}
