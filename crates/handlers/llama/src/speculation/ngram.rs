//! N-gram proposer: drafts without a model what followed an earlier occurrence of the last tokens.
//!
//! This is prompt lookup (Saxena, <https://github.com/apoorvumang/prompt-lookup-decoding>), also
//! known as n-gram speculation. The longest suffix of the tokens that occurred before predicts the
//! next tokens. It is often right if a reply quotes its prompt or repeats itself, and it costs
//! almost nothing.

use nsbridge_handler::Result;

use super::{Continuation, Drafter};

/// Minimum length of a suffix, in tokens.
const MIN_SUFFIX_TOKENS: usize = 2;

/// N-gram proposer with suffixes of up to `longest` tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NgramProposer {
    longest: usize,
}

impl NgramProposer {
    /// Creates a proposer with suffixes of up to `longest` tokens, at least two.
    pub(crate) fn new(longest: usize) -> Self {
        Self { longest: longest.max(MIN_SUFFIX_TOKENS) }
    }
}

impl Drafter for NgramProposer {
    fn draft(&mut self, replies: &mut [Continuation<'_>]) -> Result<()> {
        for reply in replies {
            let Some(mut next) = follows(reply.tokens(), self.longest) else { continue };
            // If the match overlaps the suffix, the draft continues the repetition.
            while let Some(&token) = reply.tokens().get(next) {
                if !reply.guess(token) {
                    break;
                }
                next += 1;
            }
        }
        Ok(())
    }
}

/// Returns the position after the last of the longest matches of a suffix of `tokens`. Suffixes
/// have at most `longest` tokens.
fn follows(tokens: &[u32], longest: usize) -> Option<usize> {
    let last = tokens.len().checked_sub(1)?;
    let mut best = (MIN_SUFFIX_TOKENS - 1, None);
    for end in (0..last).rev().filter(|end| tokens[*end] == tokens[last]) {
        let alike = tokens[..=end].iter().rev().zip(tokens.iter().rev());
        let count = alike.take(longest).take_while(|(a, b)| a == b).count();
        if count > best.0 {
            best = (count, Some(end + 1));
            if count == longest {
                break;
            }
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::follows;

    #[test]
    fn the_longest_end_that_occurred_before_says_what_follows() {
        assert_eq!(follows(&[1, 2, 3, 9, 2, 3, 7, 2, 3], 4), Some(6));
        assert_eq!(follows(&[1, 2, 3, 9, 5, 2, 3, 7, 1, 2, 3], 4), Some(3));
        assert_eq!(follows(&[1, 2, 3, 9, 5, 2, 3, 7, 1, 2, 3], 2), Some(7));
        // One matching token is too few, and a text without repetition has no match.
        assert_eq!(follows(&[1, 2, 3, 4, 3], 4), None);
        assert_eq!(follows(&[1, 2, 3], 4), None);
        assert_eq!(follows(&[], 4), None);
        // The text is periodic.
        assert_eq!(follows(&[8, 8, 8, 8], 3), Some(3));
    }
}
