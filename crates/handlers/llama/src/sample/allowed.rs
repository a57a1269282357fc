//! Token mask of a grammar, one bit per token.

/// Token mask: token `t` is bit `t % 32` of word `t / 32`. Tokens beyond the words are not allowed.
#[derive(Clone, Copy, Debug)]
pub struct Allowed<'a>(&'a [u32]);

/// Number of tokens in a word.
const WORD: usize = u32::BITS as usize;

impl<'a> Allowed<'a> {
    /// Wraps the words of a mask.
    pub fn new(words: &'a [u32]) -> Self {
        Self(words)
    }

    /// Returns true if the token is allowed.
    pub fn has(self, token: u32) -> bool {
        let word = self.0.get(token as usize / WORD).copied().unwrap_or_default();
        word >> (token as usize % WORD) & 1 == 1
    }

    /// Returns the words of the mask.
    pub(super) fn words(self) -> &'a [u32] {
        self.0
    }

    /// Copies the logits of allowed tokens into `room`, and negative infinity for all others.
    pub(super) fn copy(self, logits: &[f32], room: &mut Vec<f32>) {
        room.clear();
        let words = self.0.iter().copied().chain(std::iter::repeat(0));
        for (logits, word) in logits.chunks(WORD).zip(words) {
            match word {
                // Most masks allow few tokens or nearly all.
                0 => room.resize(room.len() + logits.len(), f32::NEG_INFINITY),
                u32::MAX => room.extend_from_slice(logits),
                _ => {
                    let has = |at: usize| word >> at & 1 == 1;
                    let kept = |(at, &logit)| if has(at) { logit } else { f32::NEG_INFINITY };
                    room.extend(logits.iter().enumerate().map(kept));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Allowed;

    #[test]
    fn a_token_is_a_bit_and_beyond_the_words_there_is_none() {
        let allowed = Allowed::new(&[1 << 31 | 1, 0, 1 << 2]);
        let tokens: Vec<u32> = (0..200).filter(|&token| allowed.has(token)).collect();
        assert_eq!(tokens, [0, 31, 66]);
    }

    #[test]
    fn other_logits_are_negative_infinity_whatever_they_were() {
        let logits: Vec<f32> =
            (0..150).map(|i| if i % 7 == 0 { f32::NAN } else { i as f32 }).collect();
        let words = [u32::MAX, 0, 0b1010_0001, u32::MAX];
        let allowed = Allowed::new(&words);
        let mut room = vec![9.0; 500];
        allowed.copy(&logits, &mut room);
        assert_eq!(room.len(), logits.len());
        for (token, (&was, &is)) in (0..).zip(logits.iter().zip(&room)) {
            let kept = was.to_bits() == is.to_bits();
            assert!(if allowed.has(token) { kept } else { is == f32::NEG_INFINITY }, "{token}");
        }
    }
}
