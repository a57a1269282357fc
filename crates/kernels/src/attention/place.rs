//! Places of the results of tiles.

use super::Attention;

/// Destination of the results of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// Rows of the result: `[rows, heads, group, dim]`.
    Rows,
    /// Partial results: for each token, query head and split the sum of the values, the largest
    /// score and the sum of the weights.
    Partials {
        /// First split.
        first: usize,
        /// Number of splits.
        splits: usize,
    },
}

impl Place {
    /// Returns the start of the result of a query head of a token, by its index, in a split.
    #[inline(always)]
    pub(super) fn start<E>(
        self,
        attention: &Attention<'_, E>,
        (token, head): (usize, usize),
        split: usize,
    ) -> usize {
        let Attention { heads, group, dim, tokens, .. } = *attention;
        match self {
            Self::Rows => (tokens[token].row * heads * group + head) * dim,
            Self::Partials { first, splits } => {
                ((token * heads * group + head) * splits + split - first) * (dim + 2)
            }
        }
    }
}
