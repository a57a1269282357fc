//! Distribution of the token emitted for a draft, in closed form.
//!
//! `p` is the target's distribution of the next token and `q` the draft's, both over the whole
//! vocabulary. The ratio test accepts a drafted token `x` with probability `min(1, p(x) / q(x))`
//! and otherwise draws from `norm((p - q)+)` (Leviathan et al., arXiv:2211.17192; Chen et al.,
//! arXiv:2302.01318).

/// Returns the softmax at a temperature above 0. It uses `libm`, so it is the same on every
/// machine.
pub(crate) fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: &f32| libm::exp(f64::from(logit - max) / temperature);
    normed(logits.iter().map(weight).collect())
}

/// Returns the probability that the ratio test accepts a drafted token.
pub(crate) fn kept(p: &[f64], q: &[f64], drafted: usize) -> f64 {
    if p[drafted] < q[drafted] { p[drafted] / q[drafted] } else { 1.0 }
}

/// Returns the distribution that replaces a rejected token; `p` if both are equal.
pub(crate) fn residual(p: &[f64], q: &[f64]) -> Vec<f64> {
    let over: Vec<f64> = p.iter().zip(q).map(|(p, q)| (p - q).max(0.0)).collect();
    if over.iter().any(|&over| over > 0.0) { normed(over) } else { p.to_vec() }
}

/// Returns the distribution that the ratio test emits for this drafted token.
pub(crate) fn emitted(p: &[f64], q: &[f64], drafted: usize) -> Vec<f64> {
    let kept = kept(p, q, drafted);
    let mut emitted: Vec<f64> = residual(p, q).iter().map(|of| (1.0 - kept) * of).collect();
    emitted[drafted] += kept;
    emitted
}

/// Returns the distribution that the ratio test emits for a token drawn from `q`: the mean of
/// [`emitted`] over `q`.
pub(crate) fn emitted_if_drawn(p: &[f64], q: &[f64]) -> Vec<f64> {
    let both: Vec<f64> = p.iter().zip(q).map(|(p, q)| p.min(*q)).collect();
    let lost = 1.0 - both.iter().sum::<f64>();
    both.iter().zip(residual(p, q)).map(|(both, of)| both + lost * of).collect()
}

/// Returns the probability that both draw the same token with the same Gumbel noise: the sum over
/// `x` of `1 / sum over y of max(p(y) / p(x), q(y) / q(x))`.
///
/// From Daliri, Musco, Suresh (arXiv:2408.07978). The tokens are sorted by descending `p / q`, so
/// the inner sum consists of two running sums: `p` of the tokens before `x`, and `q` of those after
/// it.
pub(crate) fn agree_by_noise(p: &[f64], q: &[f64]) -> f64 {
    let all = p.iter().zip(q).filter(|(p, q)| **p + **q > 0.0);
    let mut all: Vec<(f64, f64, f64)> = all.map(|(p, q)| (p / q, *p, *q)).collect();
    all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let (mut before, mut after) = (0.0, q.iter().sum::<f64>());
    let mut agree = 0.0;
    for (ratio, p, q) in all {
        before += p;
        after = (after - q).max(0.0);
        agree += p / (before + ratio * after);
    }
    agree
}

/// Returns the total variation distance.
pub(crate) fn distance(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0
}

/// Returns the entropy in nats.
pub(crate) fn entropy(p: &[f64]) -> f64 {
    -p.iter().filter(|p| **p > 0.0).map(|p| p * libm::log(*p)).sum::<f64>()
}

/// Returns the likeliest token, the first among equals.
pub(crate) fn likeliest(p: &[f64]) -> usize {
    (0..p.len()).fold(0, |best, token| if p[token] > p[best] { token } else { best })
}

/// Returns the token at which the cumulative probability reaches `height`, from 0 to 1.
pub(crate) fn at_height(p: &[f64], height: f64) -> usize {
    let mut left = height;
    let found = p.iter().position(|p| {
        left -= p;
        left < 0.0
    });
    // Rounding may leave a small remainder.
    found.unwrap_or_else(|| likeliest(p))
}

fn normed(mut weights: Vec<f64>) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= total);
    weights
}

#[cfg(test)]
mod tests {
    use super::{
        agree_by_noise, at_height, distance, emitted, emitted_if_drawn, entropy, likeliest, softmax,
    };

    /// Returns pairs of distributions over a few tokens, alternately close to each other and far
    /// apart.
    fn pairs() -> Vec<(Vec<f64>, Vec<f64>)> {
        let one = |seed: usize| {
            let logits = |seed: usize, size: f64| -> Vec<f32> {
                let wave =
                    |token: usize| (size * libm::sin((seed * 7 + token * token) as f64)) as f32;
                (0..2 + seed % 9).map(wave).collect()
            };
            let p = logits(seed, 3.0);
            let other = logits(seed + 9, if seed.is_multiple_of(2) { 0.3 } else { 4.0 });
            let q: Vec<f32> = p.iter().zip(other).map(|(p, other)| p + other).collect();
            (softmax(&p, 1.0), softmax(&q, 1.0))
        };
        (0..400).map(one).collect()
    }

    #[test]
    fn the_ratio_test_emits_the_target_if_the_draft_was_drawn() {
        for (p, q) in pairs() {
            let mut by_enumeration = vec![0.0; p.len()];
            for drafted in 0..p.len() {
                let emitted = emitted(&p, &q, drafted);
                by_enumeration
                    .iter_mut()
                    .zip(emitted)
                    .for_each(|(sum, of)| *sum += q[drafted] * of);
            }
            assert!(distance(&p, &by_enumeration) < 1e-12);
            assert!(distance(&p, &emitted_if_drawn(&p, &q)) < 1e-12);
        }
        let p = [0.5, 0.5];
        assert_eq!(emitted_if_drawn(&p, &p), p);
    }

    #[test]
    fn the_ratio_test_emits_something_else_if_the_draft_was_its_likeliest_token() {
        let p = [0.5, 0.3, 0.2];
        assert_eq!(emitted(&p, &p, 0), [1.0, 0.0, 0.0]);
        // Accepted in 5 of 6 cases; the others go to tokens to which the target gives more.
        let found = emitted(&p, &[0.6, 0.2, 0.2], 0);
        assert!(distance(&found, &[5.0 / 6.0, 1.0 / 6.0, 0.0]) < 1e-12, "{found:?}");
        for (p, q) in pairs() {
            let drafted = likeliest(&q);
            let found = emitted(&p, &q, drafted);
            assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            assert!(found[drafted] >= p[drafted] - 1e-12);
        }
        let mean: f64 =
            pairs().iter().map(|(p, q)| distance(p, &emitted(p, q, likeliest(q)))).sum::<f64>();
        assert!(mean / pairs().len() as f64 > 0.05, "{mean}");
    }

    #[test]
    fn the_same_noise_agrees_as_often_as_the_formula_says() {
        for (p, q) in pairs() {
            let chance = |x: usize| {
                let of = |y: usize| (p[y] / p[x]).max(q[y] / q[x]);
                1.0 / (0..p.len()).map(of).sum::<f64>()
            };
            let (plain, found) = ((0..p.len()).map(chance).sum::<f64>(), agree_by_noise(&p, &q));
            assert!((plain - found).abs() < 1e-12, "{plain} {found}");
            // Between the bound for any shared noise and the best possible rule.
            let apart = distance(&p, &q);
            assert!(found <= 1.0 - apart + 1e-12 && found >= (1.0 - apart) / (1.0 + apart) - 1e-12);
            assert!((agree_by_noise(&p, &p) - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        let (p, mut counts) = ([0.1, 0.6, 0.0, 0.3], [0; 4]);
        (0..1000).for_each(|i| counts[at_height(&p, (f64::from(i) + 0.5) / 1000.0)] += 1);
        assert_eq!(counts, [100, 600, 0, 300]);
        assert_eq!(at_height(&p, 1.0), 1);
        assert!((entropy(&[0.5, 0.5]) - std::f64::consts::LN_2).abs() < 1e-12);
        assert_eq!(entropy(&[1.0, 0.0]), 0.0);
    }
}
