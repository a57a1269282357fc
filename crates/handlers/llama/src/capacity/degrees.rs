//! Over how many ranks a model can be spread.

use crate::config::{Config, tensors};
use crate::kernel::LANES;
use crate::matrix::{Format, SEGMENTS, segments};
use crate::{KvFormat, LoadError};

/// The bytes that one of several ranks has, the first one, which never has less than others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its parts of all tensors.
    pub weights: u64,
    /// Keys and values of one position, of its heads.
    pub position: u64,
}

impl Config {
    /// What each of so many ranks needs, if a weight takes `width` bytes.
    ///
    /// # Errors
    ///
    /// The number cannot be: what it is, to be put behind it.
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

    /// The degrees of tensor parallelism that this model allows with matrices in this format.
    pub fn degrees(&self, format: Format) -> Vec<usize> {
        (1..=SEGMENTS).filter(|ranks| self.refuses(*ranks, format).is_none()).collect()
    }

    /// Makes sure that the model can be spread over as many ranks as an option says.
    ///
    /// # Errors
    ///
    /// It cannot: why, and the numbers that would do.
    pub(crate) fn hold_degree(
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

    /// Why a model cannot be spread over so many ranks, if so: what the number is.
    ///
    /// Query heads are shared out evenly, and those of keys and values so that each rank has the
    /// ones that its queries look at. Sums are cut into segments (see [`segments`]), of which each
    /// rank adds up as many.
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
                    "does not divide {segments}, into as many equal segments of whole blocks of \
                     {unit} the {columns} columns of the {what} output can be cut"
                ));
            }
        }
        None
    }
}
