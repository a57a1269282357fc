//! Tensor-parallel degrees that a model allows, and the memory of each rank.

use crate::config::{Config, tensors};
use nsbridge_kernels::Format;
use nsbridge_kernels::matrix::{SEGMENTS, segments};
use nsbridge_kernels::simd::LANES;

use crate::error::LoadError;
use crate::kv::KvFormat;

/// Bytes that rank 0 needs. No other rank needs more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Need {
    /// Bytes of the rank's parts of all tensors.
    pub weights: u64,
    /// Bytes of keys and values of one position, for the rank's heads.
    pub position: u64,
}

impl Config {
    /// Returns what each of `ranks` ranks needs, if a weight takes `width` bytes.
    ///
    /// # Errors
    ///
    /// Returns the reason as a predicate, to follow the number, if the model does not allow this
    /// degree.
    pub fn need(
        &self,
        ranks: usize,
        format: Format,
        width: f64,
        kv: KvFormat,
    ) -> Result<Need, String> {
        if let Some(why) = self.refuses(ranks, format) {
            return Err(why);
        }
        let kv_heads = (self.kv_heads / ranks).max(1);
        let count = |(name, shape): (String, Vec<usize>)| -> f64 {
            let size: f64 = shape.iter().map(|n| *n as f64).product();
            let is_bias = name.ends_with(".bias");
            match name.rsplit('.').nth(1).unwrap_or_default() {
                "k_proj" | "v_proj" => size * kv_heads as f64 / self.kv_heads as f64,
                "q_proj" | "gate_proj" | "up_proj" => size / ranks as f64,
                "o_proj" | "down_proj" if !is_bias => size / ranks as f64,
                "embed_tokens" | "lm_head" => {
                    let own = shape[0].div_ceil(ranks).next_multiple_of(LANES).min(shape[0]);
                    size / shape[0] as f64 * own as f64
                }
                _ => size,
            }
        };
        let weights = tensors(self).map(count).sum::<f64>() * width;
        Ok(Need { weights: weights.ceil() as u64, position: self.position(ranks, kv) })
    }

    /// Returns the tensor-parallel degrees that this model allows with matrices in this format.
    pub fn degrees(&self, format: Format) -> Vec<usize> {
        (1..=SEGMENTS).filter(|ranks| self.refuses(*ranks, format).is_none()).collect()
    }

    /// Checks that the model allows the tensor-parallel degree of an option.
    ///
    /// # Errors
    ///
    /// Returns an error with the reason and the allowed degrees if it does not.
    pub(crate) fn check_degree(
        &self,
        option: &str,
        ranks: usize,
        format: Format,
    ) -> Result<(), LoadError> {
        let Some(why) = self.refuses(ranks, format) else { return Ok(()) };
        let (field, found) = (format!("the option {option}"), format!("{ranks}, which {why}"));
        let supported = format!("one of {:?}", self.degrees(format));
        Err(LoadError::unsupported(field, found, supported))
    }

    /// Returns the reason why the model does not allow this degree, as a predicate, or `None` if it
    /// does.
    ///
    /// Query heads are divided evenly. Each rank has the key/value heads that its queries use. Sums
    /// are cut into segments (see [`segments`]), and each rank must have equally many.
    pub(crate) fn refuses(&self, ranks: usize, format: Format) -> Option<String> {
        if ranks == 0 || ranks > SEGMENTS || !ranks.is_power_of_two() {
            return Some(format!("is no power of two up to {SEGMENTS}"));
        }
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        if !heads.is_multiple_of(ranks) {
            return Some(format!("does not divide the {heads} attention heads"));
        }
        if !kv_heads.is_multiple_of(ranks) && !ranks.is_multiple_of(kv_heads) {
            return Some(format!(
                "is neither a divisor nor a multiple of the {kv_heads} key-value heads"
            ));
        }
        let queries = heads * self.head_dim;
        for (columns, what) in [(queries, "attention"), (self.intermediate_size, "feed-forward")] {
            let segments = segments(format, columns);
            if !segments.is_multiple_of(ranks) {
                let unit = format.unit();
                return Some(format!(
                    "does not divide {segments}, the number of equal segments of whole \
                     {unit}-column blocks in the {columns} columns of the {what} output"
                ));
            }
        }
        None
    }
}
