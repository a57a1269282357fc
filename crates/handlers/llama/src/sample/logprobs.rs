//! Log-probabilities of the model's own distribution.

use super::Scratch;
use super::cut::likeliest;
use super::row::{Row, token};
use super::weight::Weights;

/// Log-probabilities at one position of a reply.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Logprobs {
    /// Log-probability of the chosen token.
    pub chosen: f32,
    /// Likeliest tokens with their log-probabilities, the likeliest first, equals by id.
    pub top: Vec<(u32, f32)>,
}

/// Returns the log-probabilities of `chosen` and of the `top` likeliest tokens.
///
/// They are computed from the raw logits, at temperature 1 and before any bias, penalty or cut.
/// Returns `None` if the logits contain no number or an infinite one, or if `chosen` is outside of
/// them.
pub fn logprobs(
    logits: &[f32],
    chosen: u32,
    top: usize,
    scratch: &mut Scratch,
) -> Option<Logprobs> {
    let Scratch { maxima, room, .. } = scratch;
    let chosen = *logits.get(chosen as usize)?;
    let row = Row::new(logits, maxima)?;
    let total = Weights::new(row.max(), 1.0).total(&row);
    room.ranked.clear();
    if top > 0 {
        likeliest(&row, top, room);
        room.ranked.sort_unstable();
    }
    let top = room.ranked.iter().map(|&rank| token(rank)).map(|id| (id, row.logit(id)));
    Logprobs::new((row.max(), total), chosen, top)
}

impl Logprobs {
    /// Creates the log-probabilities of logits. Returns `None` if the largest one is infinite.
    pub(super) fn new(
        (max, total): (f32, f64),
        chosen: f32,
        top: impl Iterator<Item = (u32, f32)>,
    ) -> Option<Self> {
        let all = f64::from(max) + libm::log(total);
        let logprob = |logit: f32| (f64::from(logit) - all) as f32;
        let top = || top.map(|(token, logit)| (token, logprob(logit))).collect();
        all.is_finite().then(|| Self { chosen: logprob(chosen), top: top() })
    }
}

/// Returns the rank of a token among all by its logit, from 1. Of equal logits, the smaller id
/// comes first. Returns `None` if the token has no number as its logit.
pub(crate) fn rank_of(logits: &[f32], token: u32) -> Option<u32> {
    let own = *logits.get(token as usize)?;
    let larger = logits.iter().filter(|logit| **logit > own).count();
    let equal = logits[..token as usize].iter().filter(|logit| **logit == own).count();
    (!own.is_nan()).then_some((larger + equal) as u32 + 1)
}

#[cfg(test)]
mod tests {
    use super::{Logprobs, Scratch, logprobs, rank_of};

    #[test]
    fn ranks_count_from_one_in_the_order_of_the_likeliest_tokens() {
        let logits: Vec<f32> = (0..300).map(|token| ((token * 7) % 13) as f32 - 6.0).collect();
        let top = logprobs(&logits, 0, 300, &mut Scratch::default()).unwrap().top;
        for ((token, _), rank) in top.into_iter().zip(1..) {
            assert_eq!(rank_of(&logits, token), Some(rank));
        }
        assert_eq!(rank_of(&[f32::NAN, -0.0, 0.0, f32::NEG_INFINITY], 2), Some(2));
        assert_eq!(rank_of(&[f32::NAN, -0.0, 0.0, f32::NEG_INFINITY], 3), Some(3));
        assert_eq!(rank_of(&[f32::NAN, 1.0], 0), None);
        assert_eq!(rank_of(&[1.0], 1), None);
    }

    #[test]
    fn log_probabilities_are_those_of_the_raw_softmax() {
        let shares = [0.5f64, 0.125, 0.25, 0.125];
        let logits = shares.map(|share| (share.ln() + 3.0) as f32);
        let Logprobs { chosen, top } = logprobs(&logits, 1, 3, &mut Scratch::default()).unwrap();
        assert!((f64::from(chosen) - 0.125f64.ln()).abs() < 1e-6);
        // Of the equal tokens 1 and 3, the smaller id comes first.
        assert_eq!(top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [0, 2, 1]);
        for (token, logprob) in top {
            assert!((f64::from(logprob) - shares[token as usize].ln()).abs() < 1e-6);
        }
    }

    #[test]
    fn there_are_no_more_than_there_are_tokens_and_none_unless_asked() {
        let top = |logits: &[f32], top| logprobs(logits, 0, top, &mut Scratch::default());
        assert_eq!(top(&[0.0, 0.0], 5).unwrap().top.len(), 2);
        assert_eq!(
            top(&[0.0, f32::NAN], 5).unwrap(),
            Logprobs { chosen: 0.0, top: vec![(0, 0.0)] }
        );
        assert_eq!(top(&[0.0; 300], 0).unwrap().top, []);
        assert_eq!(top(&[f32::NAN], 1), None);
        assert_eq!(top(&[f32::INFINITY, 0.0], 1), None);
        assert_eq!(top(&[], 1), None);
    }
}
