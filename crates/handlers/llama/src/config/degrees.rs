//! Over how many ranks a model can be spread.

use super::Config;
use crate::matrix::{Format, SEGMENTS, segments};

impl Config {
    /// The degrees of tensor parallelism that this model allows with matrices in this format.
    pub(crate) fn degrees(&self, format: Format) -> Vec<usize> {
        (1..=SEGMENTS).filter(|ranks| self.refuses(*ranks, format).is_none()).collect()
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
