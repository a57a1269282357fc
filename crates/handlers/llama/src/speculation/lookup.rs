//! Drafts without a model: how the text went on when it last was as it is now.
//!
//! Prompt lookup (Saxena, <https://github.com/apoorvumang/prompt-lookup-decoding>), also known as
//! n-gram speculation: the longest end of the text that occurred in it before says what comes next.
//! It is often right where a reply quotes its prompt or repeats itself, and it costs next to nothing.

use nsbridge_handler::Result;

use super::{Continuation, Drafter};

/// The shortest end that says anything.
const SHORTEST: usize = 2;

/// Looks up ends of up to so many tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup {
    longest: usize,
}

impl Lookup {
    /// Of up to so many tokens, and at least two.
    pub(crate) fn new(longest: usize) -> Self {
        Self { longest: longest.max(SHORTEST) }
    }
}

impl Drafter for Lookup {
    fn draft(&mut self, replies: &mut [Continuation<'_>]) -> Result<()> {
        for reply in replies {
            let Some(mut next) = follows(reply.tokens(), self.longest) else { continue };
            // Where it follows upon itself, the draft repeats itself too.
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

/// Where the tokens' longest end occurred before, the place behind it; of equals the last. An end of
/// `longest` tokens is as long as it gets.
fn follows(tokens: &[u32], longest: usize) -> Option<usize> {
    let last = tokens.len().checked_sub(1)?;
    let mut best = (SHORTEST - 1, None);
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
        // One token alone says nothing, nor does a text that does not repeat itself.
        assert_eq!(follows(&[1, 2, 3, 4, 3], 4), None);
        assert_eq!(follows(&[1, 2, 3], 4), None);
        assert_eq!(follows(&[], 4), None);
        // A period.
        assert_eq!(follows(&[8, 8, 8, 8], 3), Some(3));
    }
}
