//! Sampling follows its parameters, and its frequencies follow the softmax.

use super::{Noise, Sampling, candidates, gumbel, gumbel_bound, mix, sample};

const PLAIN: Sampling =
    Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 };

fn draw(logits: &[f32], sampling: &Sampling, index: usize) -> u32 {
    sample(logits, &[], sampling, Noise::new(1, &[]), index).unwrap()
}

/// Holds drawn frequencies against probabilities, within five standard deviations.
#[track_caller]
fn check_frequencies(logits: &[f32], sampling: &Sampling, expected: &[f64]) {
    const DRAWS: usize = 20_000;
    let mut counts = vec![0usize; logits.len()];
    for index in 0..DRAWS {
        counts[draw(logits, sampling, index) as usize] += 1;
    }
    for (token, (&count, &p)) in counts.iter().zip(expected).enumerate() {
        let share = count as f64 / DRAWS as f64;
        let deviation = (p * (1.0 - p) / DRAWS as f64).sqrt();
        assert!((share - p).abs() <= 5.0 * deviation, "token {token}: {share} instead of {p}");
    }
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|l| (f64::from(*l) / temperature).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

#[test]
fn frequencies_are_those_of_the_softmax_at_the_temperature() {
    let logits = [1.0, 0.0, -1.0, 2.0, 0.5];
    check_frequencies(&logits, &PLAIN, &softmax(&logits, 1.0));
    let warm = Sampling { temperature: 2.5, ..PLAIN };
    check_frequencies(&logits, &warm, &softmax(&logits, 2.5));
}

#[test]
fn top_k_and_top_p_cut_the_tail_and_keep_the_proportions() {
    let logits = [1.0, 0.0, -1.0, 2.0, 0.5];
    let two = softmax(&[1.0, 2.0], 1.0);
    let expected = [two[0], 0.0, 0.0, two[1], 0.0];
    check_frequencies(&logits, &Sampling { top_k: 2, ..PLAIN }, &expected);
    // The two likeliest hold 0.77 of the probability, the likeliest alone 0.56.
    check_frequencies(&logits, &Sampling { top_p: 0.7, ..PLAIN }, &expected);
}

#[test]
fn the_token_that_reaches_top_p_is_still_a_candidate() {
    let logits = [0.0, 0.0, 0.0, 0.0];
    let kept = |top_p| candidates(&logits, &Sampling { top_p, ..PLAIN });
    assert_eq!(kept(0.2), [0]);
    assert_eq!(kept(0.5), [0, 1]);
    assert_eq!(kept(0.51), [0, 1, 2]);
    assert_eq!(kept(1.0), [0, 1, 2, 3]);
}

#[test]
fn temperature_zero_takes_the_likeliest_and_of_equals_the_first() {
    let greedy = Sampling { temperature: 0.0, top_p: 0.9, ..PLAIN };
    for index in 0..100 {
        assert_eq!(draw(&[0.0, 3.0, 3.0, -1.0], &greedy, index), 1);
    }
}

#[test]
fn the_penalty_lowers_what_occurred_whatever_its_sign_and_only_once() {
    let sampling = Sampling { temperature: 0.0, repetition_penalty: 2.0, ..PLAIN };
    let next = |logits: &[f32], history: &[u32]| {
        sample(logits, history, &sampling, Noise::new(1, &[]), 0).unwrap()
    };
    assert_eq!(next(&[3.0, 2.0], &[]), 0);
    assert_eq!(next(&[3.0, 2.0], &[0]), 1);
    assert_eq!(next(&[-1.0, -1.5], &[0]), 1);
    assert_eq!(next(&[3.0, 1.0], &[0, 0, 0]), 0);
}

#[test]
fn logits_that_are_no_numbers_are_passed_over() {
    assert_eq!(draw(&[f32::NAN, f32::NEG_INFINITY, 0.0], &PLAIN, 0), 2);
    assert_eq!(sample(&[f32::NAN; 3], &[], &PLAIN, Noise::new(1, &[]), 0), None);
}

#[test]
fn the_bound_is_never_below_the_noise() {
    let edges = [0, 1, u64::MAX, u64::MAX - 1, u64::MAX << 12, 1 << 63, u64::MAX << 1, 0xfff];
    for bits in edges.into_iter().chain((0..100_000).map(mix)) {
        assert!(gumbel(bits).is_finite());
        assert!(gumbel(bits) <= gumbel_bound(bits), "{bits:x}");
    }
}

#[test]
fn the_noise_is_what_was_published_for_this_version() {
    // SplitMix64 seeded with 0 begins with this, as in its authors' code.
    assert_eq!(mix(super::GOLDEN), 0xe220_a839_7b1d_cdaf);
    let bits = |seed, prompt: &[u32], index, token| Noise::new(seed, prompt).at(index)(token);
    let base = bits(1, &[2, 3], 4, 5);
    assert_eq!(base, bits(1, &[2, 3], 4, 5));
    for other in [bits(2, &[2, 3], 4, 5), bits(1, &[3, 2], 4, 5), bits(1, &[2], 4, 5)] {
        assert_ne!(base, other);
    }
    assert_ne!(base, bits(1, &[2, 3], 5, 5));
    assert_ne!(base, bits(1, &[2, 3], 4, 6));
}
