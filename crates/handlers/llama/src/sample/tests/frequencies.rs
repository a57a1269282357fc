//! Test that a million draws follow the softmax, by a statistic that detects plausible faults.
//!
//! The statistic is G = 2 sum(n ln(n / e)) over tokens (Wilks, 1938). Its distribution is
//! chi-square with one degree of freedom less than there are tokens.

use super::super::noise::{Stream, gumbel, mix};
use super::{History, Noise, Sampling, Scratch, sample};

const TOKENS: usize = 64;
const DRAWS: usize = 1_000_000;

/// Normal deviate that a chi-square exceeds with probability 1e-4.
const CRITICAL: f64 = 3.719;

/// Returns logits from 0 down to -4, not in order.
fn logits() -> Vec<f32> {
    (0..TOKENS).map(|token| -((token * 37 % TOKENS) as f32) / 16.0).collect()
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> =
        logits.iter().map(|logit| libm::exp(f64::from(*logit) / temperature)).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// Returns the distance of counts from probabilities as a normal deviate (Wilson and Hilferty,
/// 1931).
fn deviate(counts: &[u64], probabilities: &[f64]) -> f64 {
    let draws: u64 = counts.iter().sum();
    let mut g = 0.0;
    let mut cells = 0;
    for (&count, &p) in counts.iter().zip(probabilities) {
        if p == 0.0 {
            assert_eq!(count, 0, "a token was drawn that cannot be");
            continue;
        }
        cells += 1;
        let expected = p * draws as f64;
        assert!(expected > 20.0, "too few draws for the statistic");
        if count > 0 {
            g += 2.0 * count as f64 * libm::log(count as f64 / expected);
        }
    }
    let freedom = f64::from(cells - 1);
    let spread = 2.0 / (9.0 * freedom);
    (libm::cbrt(g / freedom) - (1.0 - spread)) / spread.sqrt()
}

fn counts(draws: usize, mut choose: impl FnMut(usize) -> u32) -> Vec<u64> {
    let mut counts = vec![0; TOKENS];
    (0..draws).for_each(|index| counts[choose(index) as usize] += 1);
    counts
}

#[track_caller]
fn check(sampling: &Sampling, probabilities: &[f64]) {
    let (logits, history) = (logits(), History::default());
    let (noise, mut scratch) = (Noise::new(20, &[1, 2, 3]), Scratch::default());
    let counts = counts(DRAWS, |index| {
        sample(&logits, &history, sampling, None, noise, index, &mut scratch).unwrap()
    });
    let deviate = deviate(&counts, probabilities);
    assert!(deviate < CRITICAL, "{deviate} standard deviations");
}

#[test]
fn a_million_draws_are_those_of_the_softmax() {
    for temperature in [0.7, 1.0, 2.5] {
        let sampling = Sampling { temperature, ..Sampling::default() };
        check(&sampling, &softmax(&logits(), f64::from(temperature)));
    }
}

#[test]
fn a_million_draws_from_the_likeliest_keep_their_proportions() {
    let (top_k, temperature) = (20, 0.8);
    let mut falling = logits();
    falling.sort_by(|a, b| b.total_cmp(a));
    let cut: Vec<f32> = logits()
        .into_iter()
        .map(|logit| if logit >= falling[top_k - 1] { logit } else { f32::NEG_INFINITY })
        .collect();
    let sampling = Sampling { temperature, top_k: top_k as u32, ..Sampling::default() };
    check(&sampling, &softmax(&cut, f64::from(temperature)));
}

#[test]
fn neighbouring_draws_know_nothing_of_each_other() {
    const FEW: usize = 8;
    let logits = &logits()[..FEW];
    let shares = softmax(logits, 1.0);
    let pairs: Vec<f64> = shares.iter().flat_map(|a| shares.iter().map(move |b| a * b)).collect();
    let (sampling, history) = (Sampling::default(), History::default());
    let (noise, mut scratch) = (Noise::new(21, &[]), Scratch::default());
    let mut one =
        |index| sample(logits, &history, &sampling, None, noise, index, &mut scratch).unwrap();
    let counts = counts(DRAWS / 2, |pair| one(2 * pair) * FEW as u32 + one(2 * pair + 1));
    let deviate = deviate(&counts, &pairs);
    assert!(deviate < CRITICAL, "{deviate} standard deviations");
}

/// Returns the deviate of draws by the largest score, at temperature 1.
fn deviate_by(score: impl Fn(Stream, u32, f64) -> f64, place: impl Fn(usize) -> usize) -> f64 {
    let logits = logits();
    let noise = Noise::new(20, &[1, 2, 3]);
    let counts = counts(DRAWS / 4, |index| {
        let stream = noise.at(place(index));
        let scored = (0..TOKENS as u32).map(|t| (score(stream, t, logits[t as usize].into()), t));
        scored.reduce(|best, next| if next.0 > best.0 { next } else { best }).unwrap().1
    });
    deviate(&counts, &softmax(&logits, 1.0))
}

fn right(stream: Stream, token: u32, logit: f64) -> f64 {
    logit + gumbel(stream.bits(token))
}

#[test]
fn the_statistic_passes_the_definition_and_sees_what_is_wrong() {
    assert!(deviate_by(right, |index| index) < CRITICAL);
    // A uniform variate with few bits, as from a carelessly drawn random f32.
    let coarse = |stream: Stream, token, logit: f64| {
        let uniform = ((stream.bits(token) >> 56) as f64 + 0.5) / 256.0;
        logit - libm::log(-libm::log(uniform))
    };
    assert!(deviate_by(coarse, |index| index) > CRITICAL);
    // The same noise at two positions.
    assert!(deviate_by(right, |index| index / 2) > CRITICAL);
    // The likeliest token, whatever the noise.
    let argmax = |_: Stream, _, logit| logit;
    assert!(deviate_by(argmax, |index| index) > CRITICAL);
    // Noise of another shape: a normal variate of the same mean and variance.
    let normal = |stream: Stream, token, logit: f64| {
        let sum: u32 = mix(stream.bits(token)).to_le_bytes().iter().map(|&b| u32::from(b)).sum();
        logit + 0.577 + (f64::from(sum) - 1020.0) / 209.0 * 1.2825
    };
    assert!(deviate_by(normal, |index| index) > CRITICAL);
}

/// A bound that is half a bit too low, so that the first of two close scores wins too often.
#[test]
fn the_statistic_sees_a_bound_that_skips_wrongly() {
    let logits = logits();
    let noise = Noise::new(20, &[1, 2, 3]);
    let counts = counts(DRAWS / 4, |index| {
        let stream = noise.at(index);
        let mut best = (f64::NEG_INFINITY, 0);
        for token in 0..TOKENS as u32 {
            let (bits, logit) = (stream.bits(token), f64::from(logits[token as usize]));
            let bound = (f64::from(bits.leading_ones()) + 0.5) * std::f64::consts::LN_2;
            if logit + bound >= best.0 && logit + gumbel(bits) > best.0 {
                best = (logit + gumbel(bits), token);
            }
        }
        best.1
    });
    assert!(deviate(&counts, &softmax(&logits, 1.0)) > CRITICAL);
}
