//! Row of logits with the maximum of each block, so that a search can skip most blocks.

/// Logits by token id; at least one is a number above negative infinity.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    logits: &'a [f32],
    /// Maximum logit of each block, negative infinity if it has no number.
    maxima: &'a [f32],
    max: f32,
}

/// Number of tokens in a block: one for each bit of a word.
pub(super) const BLOCK: usize = u64::BITS as usize;

/// Lower bound of the logits with which a token can be chosen.
pub(super) const ANY: f32 = f32::MIN;

impl<'a> Row<'a> {
    /// Computes the maxima. Returns `None` if no token can be chosen.
    pub(super) fn new(logits: &'a [f32], room: &'a mut Vec<f32>) -> Option<Self> {
        room.clear();
        room.extend(logits.chunks(BLOCK).map(largest));
        let max = largest(room);
        (max >= ANY).then_some(Self { logits, maxima: room, max })
    }

    /// Returns the largest logit.
    pub(super) fn max(&self) -> f32 {
        self.max
    }

    /// Returns the number of tokens.
    pub(super) fn len(&self) -> usize {
        self.logits.len()
    }

    /// Returns the maximum logit of each block.
    pub(super) fn maxima(&self) -> &'a [f32] {
        self.maxima
    }

    /// Returns the logits of a block. The last block may be shorter.
    pub(super) fn block(&self, block: usize) -> &'a [f32] {
        let from = block * BLOCK;
        &self.logits[from..self.logits.len().min(from + BLOCK)]
    }

    pub(super) fn logits(&self) -> &'a [f32] {
        self.logits
    }

    pub(super) fn logit(&self, token: u32) -> f32 {
        self.logits[token as usize]
    }

    /// Finds the [ranks](rank) of the tokens with logits from `low` to `high`, in order of id.
    pub(super) fn rank_between(&self, low: f32, high: f32, ranked: &mut Vec<u64>) {
        ranked.clear();
        for (block, logits) in self.logits.chunks(BLOCK).enumerate() {
            if self.maxima[block] >= low {
                let first = (block * BLOCK) as u32;
                let within = |logit: f32| logit >= low && logit <= high;
                let ids = (first..).zip(logits).filter(|(_, logit)| within(**logit));
                ranked.extend(ids.map(|(token, &logit)| rank(logit, token)));
            }
        }
    }
}

/// Returns the rank of a token: larger logits come first, and smaller ids among equals.
pub(super) fn rank(logit: f32, token: u32) -> u64 {
    // This turns negative zero into zero.
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(!ascending) << 32 | u64::from(token)
}

/// Returns the logit of a rank.
pub(super) fn logit(rank: u64) -> f32 {
    let ascending = !(rank >> 32) as u32;
    f32::from_bits(if ascending >> 31 == 1 { ascending & !(1 << 31) } else { !ascending })
}

/// Returns the token of a rank.
pub(super) fn token(rank: u64) -> u32 {
    rank as u32
}

/// Returns the largest number, or negative infinity if there is none.
fn largest(logits: &[f32]) -> f32 {
    // Lanes and a comparison instead of `f32::max` let the compiler vectorize this.
    const LANES: usize = 8;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (parts, rest) = logits.as_chunks::<LANES>();
    for part in parts {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], part[lane]);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, Row, largest, logit, rank, token};

    #[test]
    fn the_largest_passes_over_what_is_no_number() {
        for at in 0..20 {
            let mut logits = vec![f32::NAN; 20];
            assert_eq!(largest(&logits), f32::NEG_INFINITY);
            logits[at] = -3.0;
            assert_eq!(largest(&logits), -3.0);
        }
        assert!(Row::new(&[f32::NAN, f32::NEG_INFINITY], &mut Vec::new()).is_none());
        assert!(Row::new(&[], &mut Vec::new()).is_none());
        assert!(Row::new(&[f32::NAN, f32::MIN], &mut Vec::new()).is_some());
    }

    #[test]
    fn ranks_go_from_the_largest_logit_down_and_equals_by_id() {
        let falling = [f32::INFINITY, 3.0, 1e-40, 0.0, -1e-40, -2.0, f32::MIN, f32::NEG_INFINITY];
        for pair in falling.windows(2) {
            assert!(rank(pair[0], u32::MAX) < rank(pair[1], 0), "{pair:?}");
        }
        assert!(rank(-0.0, 1) < rank(0.0, 2) && rank(0.0, 1) < rank(-0.0, 2));
        assert_eq!(token(rank(-1.5, 77)), 77);
        assert_eq!(falling.map(|each| logit(rank(each, 77))), falling);
    }

    #[test]
    fn tokens_are_found_in_every_block() {
        let mut logits = vec![0.0; 3 * BLOCK + 5];
        let wanted = [0, BLOCK - 1, BLOCK, 2 * BLOCK + 7, 3 * BLOCK + 4];
        wanted.iter().for_each(|&token| logits[token] = 1.0);
        let mut maxima = Vec::new();
        let row = Row::new(&logits, &mut maxima).unwrap();
        let mut ranked = Vec::new();
        row.rank_between(1.0, 1.0, &mut ranked);
        assert_eq!(ranked.iter().map(|&rank| token(rank) as usize).collect::<Vec<_>>(), wanted);
    }
}
