//! Reference implementation without optimizations, which sampling must match exactly.

use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};

use super::super::noise::gumbel;
use super::super::weight::{STEPS, Weights};
use super::{Allowed, History, Noise, Sampling, Scratch, sample};

/// Returns the tokens that the cuts leave of processed logits, the likeliest first.
pub(super) fn left(logits: &[f32], sampling: &Sampling) -> Vec<u32> {
    let logit = |token: u32| logits[token as usize];
    let mut tokens: Vec<u32> = (0..logits.len() as u32).filter(|&t| logit(t) >= f32::MIN).collect();
    tokens.sort_by(|&a, &b| logit(b).partial_cmp(&logit(a)).unwrap().then(a.cmp(&b)));
    let Some(&first) = tokens.first() else { return tokens };
    if sampling.temperature == 0.0 {
        return vec![first];
    }
    let top_k = match sampling.top_k as usize {
        0 => logits.len(),
        k => k.min(logits.len()),
    };
    tokens.truncate(top_k);
    let weights = Weights::new(logit(first), sampling.temperature);
    if sampling.top_p < 1.0 {
        let held = match top_k < logits.len() {
            true => one_by_one(&tokens, |token| weights.of(logit(token)), sampling.top_p),
            false => step_by_step(&tokens, logits, weights, sampling.top_p),
        };
        tokens.truncate(held);
    }
    if sampling.min_p > 0.0 {
        let below = f64::from(sampling.temperature) * libm::log(f64::from(sampling.min_p));
        tokens.retain(|&token| f64::from(logit(token)) >= f64::from(logit(first)) + below);
    }
    tokens
}

/// Returns the number of tokens that hold `top_p`, adding one by one from the likeliest.
fn one_by_one(tokens: &[u32], weight: impl Fn(u32) -> f32, top_p: f32) -> usize {
    let weights = || tokens.iter().map(|&token| f64::from(weight(token)));
    let enough = f64::from(top_p) * weights().sum::<f64>();
    let mut above = 0.0;
    let kept = weights().take_while(|&weight| {
        let kept = above < enough && weight > 0.0;
        above += weight;
        kept
    });
    kept.count()
}

/// Returns the number of tokens that hold `top_p`: whole steps, added by id, and then one by one.
fn step_by_step(tokens: &[u32], logits: &[f32], weights: Weights, top_p: f32) -> usize {
    let of = |token: u32| f64::from(weights.of(logits[token as usize]));
    let step = |token: u32| weights.step(logits[token as usize]);
    let mut masses = vec![0.0; STEPS];
    (0..logits.len() as u32).for_each(|token| masses[step(token)] += of(token));
    let enough = f64::from(top_p) * masses.iter().sum::<f64>();
    let mut held = 0.0;
    for (at, mass) in masses.iter().enumerate() {
        if held + mass >= enough {
            let before = tokens.iter().filter(|&&token| step(token) < at).count();
            let within = tokens.iter().filter(|&&token| step(token) == at).take_while(|&&token| {
                let kept = held < enough && of(token) > 0.0;
                held += of(token);
                kept
            });
            return before + within.count();
        }
        held += mass;
    }
    tokens.iter().filter(|&&token| of(token) > 0.0).count()
}

/// Applies biases, bans and penalties token by token over the whole vocabulary.
fn processed(
    logits: &[f32],
    history: (&[u32], &[u32]),
    at: usize,
    sampling: &Sampling,
) -> Vec<f32> {
    let each = |(token, &logit): (usize, &f32)| {
        let token = token as u32;
        let bias: f32 = sampling.logit_bias.iter().filter(|b| b.0 == token).map(|b| b.1).sum();
        let waits = at < sampling.min_tokens && sampling.ends.contains(token);
        let mut logit = logit + bias;
        let before = [history.0, history.1].concat();
        let completes = |sequence: &Vec<u32>| {
            let all = [&before[..], &[token]].concat();
            !sequence.is_empty() && all[all.len().saturating_sub(sequence.len())..] == **sequence
        };
        let bad = sampling.banned_sequences.list().iter().any(completes);
        if waits || bad || sampling.banned.contains(token) {
            return f32::NEG_INFINITY;
        }
        let count = history.1.iter().filter(|&&made| made == token).count();
        if count > 0 || history.0.contains(&token) {
            let penalty = sampling.repetition_penalty;
            logit = if logit > 0.0 { logit / penalty } else { logit * penalty };
        }
        if count > 0 {
            logit = logit - sampling.frequency_penalty * count as f32 - sampling.presence_penalty;
        }
        logit
    };
    logits.iter().enumerate().map(each).collect()
}

/// Returns the choice by definition, with a logarithm for every token.
fn defined(
    logits: &[f32],
    history: (&[u32], &[u32]),
    sampling: &Sampling,
    noise: Noise,
    index: usize,
) -> Option<u32> {
    let logits = processed(logits, history, index, sampling);
    let mut tokens = left(&logits, sampling);
    tokens.sort_unstable();
    let score = |token: u32| {
        let gumbel = gumbel(noise.at(index).bits(token));
        f64::from(logits[token as usize]) + f64::from(sampling.temperature) * gumbel
    };
    tokens.into_iter().reduce(|best, token| if score(token) > score(best) { token } else { best })
}

pub(super) fn logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        6 => -8.0f32..8.0,
        // Few distinct values, so that there are ties.
        4 => (-3i8..4).prop_map(f32::from),
        1 => prop_oneof![Just(f32::NAN), Just(f32::NEG_INFINITY), Just(f32::INFINITY), Just(-0.0)],
        1 => any::<f32>().prop_filter("finite", |x| x.is_finite()),
    ];
    let plain = prop::collection::vec(-8.0f32..8.0, 1..700);
    let tied = prop::collection::vec((0i8..3).prop_map(f32::from), 1..300);
    // The shape of most models' logits: a few far above the rest.
    let peaked = prop::collection::vec(prop_oneof![30 => -12.0f32..0.0, 1 => 5.0f32..12.0], 1..700);
    prop_oneof![plain, tied, peaked, prop::collection::vec(logit, 1..300)]
}

pub(super) fn samplings() -> impl Strategy<Value = Sampling> {
    let ids = || prop::collection::vec(0u32..80, 0..6);
    let adjusts = (
        prop::collection::btree_map(0u32..80, -9.0f32..9.0, 0..6),
        (ids(), ids(), 0usize..4),
        prop_oneof![Just(1.0f32), 0.5f32..2.0],
        prop_oneof![Just(0.0f32), -2.0f32..2.0],
        prop_oneof![Just(0.0f32), -2.0f32..2.0],
    );
    let cuts = (
        prop_oneof![Just(0.0f32), Just(1.0), 0.05f32..3.0, Just(1e-30), Just(1e30)],
        prop_oneof![Just(0u32), 1u32..9, 1u32..400],
        prop_oneof![Just(1.0f32), 0.01f32..1.0, Just(0.999_999_9)],
        prop_oneof![Just(0.0f32), 1e-6f32..1.0, Just(1.0)],
    );
    (adjusts, cuts).prop_map(|((bias, (banned, ends, min), r, f, p), (t, k, top_p, min_p))| {
        Sampling {
            logit_bias: bias.into_iter().collect(),
            banned: banned.into(),
            ends: ends.into(),
            min_tokens: min,
            repetition_penalty: r,
            frequency_penalty: f,
            presence_penalty: p,
            temperature: t,
            top_k: k,
            top_p,
            min_p,
            ..Sampling::default()
        }
    })
}

/// Generates a mask word of 32 tokens: all, none or some.
pub(super) fn words() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX), any::<u32>()]
}

proptest! {
    #[test]
    fn the_fast_way_chooses_as_it_is_defined(
        logits in logits(),
        prompt in prop::collection::vec(0u32..80, 0..10),
        reply in prop::collection::vec(0u32..80, 0..10),
        sampling in samplings(),
        // Last token of a sequence, number of history tokens before it, and whether one of those is
        // replaced by another.
        sequences in prop::collection::vec((0u32..80, 0usize..25, any::<bool>()), 0..30),
        words in prop::option::of(prop::collection::vec(words(), 0..25)),
        seed in any::<u64>(),
        index in 0usize..8,
    ) {
        let before = [&prompt[..], &reply[..]].concat();
        let sequence = |(last, length, other): (u32, usize, bool)| {
            let mut sequence = before[before.len().saturating_sub(length)..].to_vec();
            if let Some(token) = sequence.first_mut().filter(|_| other) {
                *token += 1;
            }
            sequence.push(last);
            sequence
        };
        let sequences: Vec<Vec<u32>> = sequences.into_iter().map(sequence).collect();
        let banned_sequences = sequences.into();
        let sampling = Sampling { banned_sequences, ..sampling };
        // A mask has the effect of negative infinity for all other logits.
        let allowed = words.as_deref().map(Allowed::new);
        let may = |token: usize| allowed.is_none_or(|allowed| allowed.has(token as u32));
        let masked = |(token, &logit)| if may(token) { logit } else { f32::NEG_INFINITY };
        let masked: Vec<f32> = logits.iter().enumerate().map(masked).collect();
        let mut history = History::new(&prompt);
        reply.iter().for_each(|&token| history.push(token));
        let (noise, mut scratch) = (Noise::new(seed, &prompt), Scratch::default());
        for index in [index, index + 1, index + 2] {
            assert_eq!(
                sample(&logits, &history, &sampling, allowed, noise, index, &mut scratch),
                defined(&masked, (&prompt, &reply), &sampling, noise, index),
            );
        }
    }

    /// Noise without other parameters, where the fast implementation skips most.
    #[test]
    fn the_fast_way_draws_as_it_is_defined(
        logits in logits(),
        temperature in prop_oneof![Just(1.0f32), 0.01f32..4.0],
        seed in any::<u64>(),
    ) {
        let sampling = Sampling { temperature, ..Sampling::default() };
        let (noise, mut scratch) = (Noise::new(seed, &[]), Scratch::default());
        for index in 0..20 {
            assert_eq!(
                sample(&logits, &History::default(), &sampling, None, noise, index, &mut scratch),
                defined(&logits, (&[], &[]), &sampling, noise, index),
            );
        }
    }
}

#[test]
fn a_whole_vocabulary_is_drawn_from_as_it_is_defined() {
    let logits: Vec<f32> = (0..128_256u32)
        .map(|token| {
            let bits = Noise::new(5, &[]).at(0).bits(token);
            // Approximately normal: the sum of eight bytes.
            bits.to_le_bytes().iter().map(|&byte| f32::from(byte) - 127.5).sum::<f32>() / 70.0
        })
        .collect();
    let mut scratch = Scratch::default();
    let plain = Sampling::default;
    for sampling in [
        plain(),
        Sampling { temperature: 0.3, ..plain() },
        Sampling { temperature: 0.0, ..plain() },
        Sampling { top_k: 50, ..plain() },
        Sampling { top_k: 5000, min_p: 0.02, ..plain() },
        Sampling { top_p: 0.9, ..plain() },
        Sampling { top_k: 1000, top_p: 0.9, ..plain() },
        Sampling { min_p: 0.05, ..plain() },
    ] {
        for index in 0..4 {
            let noise = Noise::new(7, &[]);
            assert_eq!(
                sample(&logits, &History::default(), &sampling, None, noise, index, &mut scratch),
                defined(&logits, (&[], &[]), &sampling, noise, index),
                "{sampling:?}"
            );
        }
    }
}
