//! Tests that a device samples the tokens of the CPU, on the emulator.

use std::convert::Infallible;
use std::sync::Arc;

use nsbridge_gpu::device::{Buffer, Device};
use nsbridge_gpu::emulator::Emulator;
use nsbridge_gpu::sample::{Batch, Choice, Likeliest, Sampler, noise as noise_on};
use proptest::prelude::{Just, any, prop, prop_oneof, proptest};

use super::super::adjust::adjusted;
use super::super::device::{Wanted, describe, logprobs_of, token};
use super::super::noise::{Noise, gumbel, mix};
use super::super::row::Row;
use super::super::weight::Weights;
use super::naive::{logits, samplings, words};
use super::processors;
use super::{Allowed, History, Sampling, Scratch, sample};
use crate::sample::logprobs;

/// Orders in which the threads of a block run.
const ORDERS: [u32; 4] = [0, 1, 2, 77];

fn device(order: u32) -> Arc<dyn Device> {
    let emulator = Emulator::new();
    emulator.set_order(order);
    Arc::new(emulator)
}

/// Numbers that are approximately normal.
fn normal(seed: u64, len: usize, width: f32) -> Vec<f32> {
    let stream = Noise::new(seed, &[]).at(0);
    let sum =
        |bits: u64| bits.to_le_bytes().iter().map(|&byte| f32::from(byte) - 127.5).sum::<f32>();
    (0..len as u32).map(|token| sum(stream.bits(token)) / 209.0 * width).collect()
}

/// Samples from the row of each token, and asserts that the tokens are the CPU's. Returns how many
/// rows the device did not sample.
#[track_caller]
fn check(device: &Arc<dyn Device>, rows: &[Vec<f32>], all: &[(u32, Wanted<'_>)]) -> usize {
    let (vocab, mut scratch) = (rows[0].len(), Scratch::default());
    // Of other numbers between the rows, none may be read.
    let stride = vocab + 3;
    let mut numbers: Vec<f32> =
        rows.iter().flat_map(|row| row.iter().copied().chain([f32::INFINITY; 3])).collect();
    numbers.truncate(rows.len() * stride - 3);
    let logits = Buffer::of(device, &numbers).unwrap();
    let mut sampler = Sampler::new(device, vocab, all.len()).unwrap();
    let mut batch = Batch::new(vocab);
    let described: Vec<bool> =
        all.iter().map(|(row, wanted)| describe(*wanted, *row, &mut batch)).collect();
    // What a batch leaves in the buffers does not change the next one.
    sampler.sample((&logits, stride), &batch).unwrap();
    sampler.sample((&logits, stride), &batch).unwrap();
    let mut choices = sampler.choices(batch.len()).unwrap().into_iter();
    let mut elsewhere = 0;
    for ((row, wanted), described) in all.iter().zip(described) {
        let row = &rows[*row as usize];
        let choice = if described { choices.next().unwrap() } else { Choice::Elsewhere };
        elsewhere += usize::from(choice == Choice::Elsewhere);
        if let Choice::Token(token, logit) = choice {
            assert_eq!(logit.to_bits(), row[token as usize].to_bits());
        }
        let copied = || Ok::<_, Infallible>(row.clone());
        let Ok(ours) = token(choice, *wanted, &mut scratch, copied);
        let Wanted { history, sampling, allowed, noise, index } = *wanted;
        let theirs = sample(row, history, sampling, allowed, noise, index, &mut scratch);
        assert_eq!(ours, theirs, "{sampling:?}");
    }
    elsewhere
}

/// Returns a token for each parameter and index, from the row of its number.
fn tokens<'a>(
    history: &'a History,
    samplings: &'a [Sampling],
    allowed: Option<Allowed<'a>>,
    indices: usize,
) -> Vec<(u32, Wanted<'a>)> {
    let noise = Noise::new(7, &[]);
    let each = |index| {
        samplings.iter().map(move |sampling| Wanted { history, sampling, allowed, noise, index })
    };
    (0..indices).flat_map(each).map(|wanted| (0, wanted)).collect()
}

#[test]
fn the_noise_has_the_bits_of_the_cpu() {
    let edges = [0, 1, u64::MAX, u64::MAX - 1, u64::MAX << 12, 1 << 63, u64::MAX << 1, 0xfff];
    let shifted = (0..64).flat_map(|zeros| [u64::MAX << zeros, u64::MAX >> zeros, 1 << zeros]);
    // Near 1/e and the square root of 2, where the logarithm is 1 or changes its branch.
    let near =
        [-1f64, -0.5, -std::f64::consts::LN_2].map(|x| (libm::exp(x) * 2f64.powi(52)) as u64);
    let near = near.into_iter().flat_map(|bits| (bits - 2000..bits + 2000).map(|bits| bits << 12));
    let numbers: Vec<u64> =
        edges.into_iter().chain(shifted).chain(near).chain((0..2_000_000).map(mix)).collect();
    let buffer = Buffer::of(&device(0), &numbers).unwrap();
    noise_on(&buffer).unwrap();
    let mut ours = vec![0u64; numbers.len()];
    buffer.read(0, &mut ours).unwrap();
    for (bits, ours) in numbers.into_iter().zip(ours) {
        assert_eq!(ours, gumbel(bits).to_bits(), "{bits:x}");
    }
}

proptest! {
    #[test]
    fn a_device_chooses_as_the_cpu(
        logits in logits(),
        other in -8.0f32..8.0,
        prompt in prop::collection::vec(0u32..80, 0..10),
        reply in prop::collection::vec(0u32..80, 0..10),
        (first, second) in (samplings(), samplings()),
        sequences in prop::collection::vec((0u32..80, 0usize..5), 0..10),
        words in prop::option::of(prop::collection::vec(words(), 0..25)),
        seed in any::<u64>(),
        index in 0usize..8,
        order in prop_oneof![Just(0u32), Just(1), any::<u32>()],
    ) {
        let before = [&prompt[..], &reply[..]].concat();
        let sequence = |(last, length): (u32, usize)| {
            [&before[before.len().saturating_sub(length)..], &[last]].concat()
        };
        let banned_sequences: Vec<Vec<u32>> = sequences.into_iter().map(sequence).collect();
        let samplings = [first, Sampling { banned_sequences: banned_sequences.into(), ..second }];
        let mut history = History::new(&prompt);
        reply.iter().for_each(|&token| history.push(token));
        let allowed = words.as_deref().map(Allowed::new);
        let noise = Noise::new(seed, &prompt);
        let rows = [logits.iter().map(|logit| logit * other).collect(), logits];
        let all: Vec<(u32, Wanted<'_>)> = (0..6)
            .map(|at| {
                let (sampling, index) = (&samplings[at % 2], index + at / 2);
                let allowed = allowed.filter(|_| at != 1);
                let wanted = Wanted { history: &history, sampling, allowed, noise, index };
                ((at % 3).min(1) as u32, wanted)
            })
            .collect();
        assert_eq!(check(&device(order), &rows, &all), 0);
    }

    #[test]
    fn a_device_has_the_log_probabilities_of_the_cpu(
        logits in logits(),
        tops in prop::collection::vec((0u32..25, 0u32..2), 1..4),
        chosen in any::<prop::sample::Index>(),
        order in any::<u32>(),
    ) {
        let device = device(order);
        let vocab = logits.len();
        let other: Vec<f32> = logits.iter().rev().map(|logit| logit * 0.1).collect();
        let buffer = Buffer::of(&device, &[&logits[..], &other[..]].concat()).unwrap();
        let sampler = Sampler::new(&device, vocab, 1).unwrap();
        let wanted: Vec<(u32, u32)> = tops.iter().map(|(top, row)| (*row, *top)).collect();
        let found = sampler.likeliest((&buffer, vocab), &wanted).unwrap();
        let (chosen, mut scratch) = (chosen.index(vocab) as u32, Scratch::default());
        for (found, (row, top)) in found.iter().zip(wanted) {
            let (row, top) = (if row == 0 { &logits } else { &other }, top as usize);
            let logit = row[chosen as usize];
            let mut room = Vec::new();
            if let Some(row) = Row::new(row, &mut room) {
                let total = Weights::new(row.max(), 1.0).total(&row);
                assert_eq!((found.max, found.total.to_bits()), (row.max(), total.to_bits()));
            }
            let ours = logprobs_of(found, (chosen, logit), top, &mut scratch, || Err(()));
            // As text, so that what is no number equals itself.
            assert_eq!(
                format!("{:?}", ours.unwrap()),
                format!("{:?}", logprobs(row, chosen, top, &mut scratch)),
            );
        }
    }
}

proptest! {
    /// The likeliest of two tokens, one of which has the logit that the other's changes make: of
    /// equals the first is chosen, so that a difference of one bit shows in one of both orders.
    #[test]
    fn changed_logits_have_the_bits_of_the_cpu(
        logit in -30.0f32..30.0,
        bias in prop::option::of(-9.0f32..9.0),
        (in_prompt, in_reply) in (any::<bool>(), 0usize..5),
        repetition_penalty in prop_oneof![Just(1.0f32), 0.5f32..2.0],
        frequency_penalty in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        presence_penalty in prop_oneof![Just(0.0f32), -2.0f32..2.0],
    ) {
        let sampling = |token| Sampling {
            logit_bias: bias.into_iter().map(|bias| (token, bias)).collect(),
            temperature: 0.0,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            ..Sampling::default()
        };
        for token in [0, 1] {
            let prompt = [token].repeat(usize::from(in_prompt));
            let mut history = History::new(&prompt);
            (0..in_reply).for_each(|_| history.push(token));
            let (mut row, sampling) = (vec![logit; 2], [sampling(token)]);
            let mut room = Vec::new();
            let changed = adjusted(&row, &history, &sampling[0], None, 0, &mut room)[token as usize];
            row[1 - token as usize] = changed;
            assert_eq!(check(&device(0), &[row], &tokens(&history, &sampling, None, 1)), 0);
        }
    }
}

#[test]
fn cuts_at_equality_are_those_of_the_cpu() {
    let (history, plain) = (History::default(), Sampling::default);
    // The nucleus ends with a token, with and without a step between.
    let half = -std::f32::consts::LN_2;
    assert_eq!(Weights::new(0.0, 1.0).of(half), 0.5);
    for row in [vec![1.0; 4], vec![half, 0.0, half], vec![half, half, 0.0, half, half, half]] {
        let samplings = [0.25, 0.5, 0.75].map(|top_p| Sampling { top_p, ..plain() });
        let all = tokens(&history, &samplings, None, 40);
        assert_eq!(check(&device(0), std::slice::from_ref(&row), &all), 0);
        let samplings = samplings.map(|sampling| Sampling { top_k: 2, ..sampling });
        let all = tokens(&history, &samplings, None, 40);
        assert_eq!(check(&device(0), &[row], &all), 0);
    }
    // Logits around the threshold of min-p.
    for (max, temperature, min_p) in
        (0..30).map(|at| at as f32).map(|at| (at * 0.37 - 5.0, 0.5 + at * 0.1, 0.5 + at * 0.016))
    {
        let floor = f64::from(max) + f64::from(temperature) * libm::log(f64::from(min_p));
        let near = floor as f32;
        let row = vec![max, near.next_down(), near, near.next_up()];
        let samplings = [Sampling { temperature, min_p, ..plain() }];
        assert_eq!(check(&device(0), &[row], &tokens(&history, &samplings, None, 40)), 0);
    }
}

#[test]
fn a_nucleus_that_nearly_ends_with_a_token_is_that_of_the_cpu() {
    let history = History::default();
    for seed in 0..10 {
        let row = normal(seed, 9, 1.5);
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut weights: Vec<f32> =
            row.iter().map(|logit| Weights::new(max, 1.0).of(*logit)).collect();
        weights.sort_by(|a, b| b.total_cmp(a));
        let sum = |weights: &[f32]| weights.iter().map(|weight| f64::from(*weight)).sum::<f64>();
        // Of all tokens, and of the eight likeliest.
        let of = |top_k: u32| {
            let all = sum(&weights[..top_k as usize]);
            let held = (1..8).map(|held| (sum(&weights[..held]) / all) as f32);
            held.map(|top_p| Sampling { top_k, top_p, ..Sampling::default() }).collect::<Vec<_>>()
        };
        let samplings = [of(8), of(9)].concat();
        let all = tokens(&history, &samplings, None, 20);
        assert_eq!(check(&device(seed as u32), &[row], &all), 0);
    }
}

#[test]
fn a_device_chooses_from_what_the_processors_of_transformers_leave() {
    for (order, (case, sampling)) in (0..).zip(processors::cases()) {
        let mut history = History::new(&case.prompt);
        case.reply.iter().for_each(|&token| history.push(token));
        let samplings = [sampling];
        let all = tokens(&history, &samplings, None, 20);
        assert_eq!(check(&device(order), &[case.logits], &all), 0);
    }
}

/// Parameters of most requests, and others.
fn usual() -> Vec<Sampling> {
    let plain = Sampling::default;
    vec![
        plain(),
        Sampling { temperature: 0.0, ..plain() },
        Sampling { temperature: 0.7, top_p: 0.9, ..plain() },
        Sampling { temperature: 0.6, top_k: 20, top_p: 0.95, ..plain() },
        Sampling { top_p: 0.999_999_9, min_p: 0.05, ..plain() },
        Sampling { top_k: 200, repetition_penalty: 1.2, ..plain() },
        Sampling { temperature: 1.5, min_p: 0.1, presence_penalty: 0.5, ..plain() },
        Sampling { temperature: 0.0, repetition_penalty: 1.1, frequency_penalty: 0.2, ..plain() },
        Sampling {
            banned: [3, 40, 900].into_iter().collect(),
            logit_bias: vec![(5, 4.0)],
            ..plain()
        },
    ]
}

#[test]
fn vocabularies_of_every_size_have_the_same_tokens() {
    let samplings = usual();
    for (order, vocab) in (0..).zip([1, 2, 31, 32, 64, 1000, 4095, 4096, 4097, 32_000]) {
        let prompt: Vec<u32> = (0..vocab as u32).step_by(7).collect();
        let mut history = History::new(&prompt);
        (0..50).for_each(|at: u32| history.push(at * at % 400));
        let mask: Vec<u32> = (0..vocab as u64 / 40).map(|word| mix(word) as u32).collect();
        let rows = [normal(vocab as u64, vocab, 4.0), normal(1, vocab, 2.0)];
        let mut all = tokens(&history, &samplings, None, 2);
        all.extend(tokens(&history, &samplings, Some(Allowed::new(&mask)), 1));
        all.iter_mut().step_by(3).for_each(|(row, _)| *row = 1);
        assert_eq!(check(&device(order), &rows, &all), 0);
    }
}

#[test]
fn every_token_can_be_chosen() {
    let (history, plain) = (History::default(), Sampling::default);
    let samplings = [
        plain(),
        Sampling { temperature: 0.0, ..plain() },
        Sampling { top_k: 1, ..plain() },
        Sampling { top_p: 0.5, ..plain() },
    ];
    let peak = |token: usize| {
        let mut row = vec![0.0; 8200];
        row[token] = 30.0;
        row
    };
    // The edges of chunks.
    let rows = [0, 31, 32, 4095, 4096, 8191, 8192, 8199].map(peak);
    let of = |row| tokens(&history, &samplings, None, 1).into_iter().map(move |(_, of)| (row, of));
    let all: Vec<(u32, Wanted<'_>)> = (0..8).flat_map(of).collect();
    assert_eq!(check(&device(0), &rows, &all), 0);
}

#[test]
fn of_equal_scores_the_choice_is_that_of_the_cpu() {
    let samplings = [0.0, 1.0].map(|temperature| Sampling { temperature, ..Sampling::default() });
    let history = History::default();
    // A number so large that a noise does not change it.
    const HIGH: f32 = 1e30;
    // In one lane, in two lanes, in two warps, in two chunks, and everywhere.
    let pairs = [(5, 1029), (5, 6), (3, 90), (4095, 4096), (17, 8199)];
    let peaks = pairs.map(|(first, second)| {
        let mut row = vec![0.0; 8200];
        (row[first], row[second]) = (HIGH, HIGH);
        row
    });
    let rows: Vec<_> = peaks.into_iter().chain([vec![HIGH; 8200]]).collect();
    for order in ORDERS {
        let of =
            |row| tokens(&history, &samplings, None, 1).into_iter().map(move |(_, of)| (row, of));
        let all: Vec<(u32, Wanted<'_>)> = (0..rows.len() as u32).flat_map(of).collect();
        assert_eq!(check(&device(order), &rows, &all), 0);
    }
}

#[test]
fn the_likeliest_tokens_are_no_more_than_asked_for() {
    // All of them are chosen about as often.
    let plain = Sampling { temperature: 30.0, ..Sampling::default() };
    let samplings = [1, 5, 40, 100, 256].map(|top_k| Sampling { top_k, ..plain.clone() });
    let (rows, history) = ([normal(4, 6000, 3.0)], History::default());
    for order in ORDERS {
        assert_eq!(check(&device(order), &rows, &tokens(&history, &samplings, None, 20)), 0);
    }
}

#[test]
fn a_whole_vocabulary_has_the_same_tokens_in_every_order() {
    let rows = [normal(5, 128_256, 3.0)];
    let (history, samplings) = (History::new(&[1, 128_000]), usual());
    let all = tokens(&history, &samplings, None, 1);
    for order in ORDERS {
        assert_eq!(check(&device(order), &rows, &all), 0);
    }
}

#[test]
fn the_sum_of_weights_is_that_of_the_cpu_for_a_whole_vocabulary() {
    for (order, width) in ORDERS.into_iter().zip([0.5, 3.0, 9.0, 30.0]) {
        let (device, logits) = (device(order), normal(8, 128_256, width));
        let buffer = Buffer::of(&device, &logits).unwrap();
        let sampler = Sampler::new(&device, logits.len(), 1).unwrap();
        let found = sampler.likeliest((&buffer, logits.len()), &[(0, 20)]).unwrap();
        let mut scratch = Scratch::default();
        let ours = logprobs_of(&found[0], (9, logits[9]), 20, &mut scratch, || Err(()));
        assert_eq!(ours.unwrap(), logprobs(&logits, 9, 20, &mut scratch));
    }
}

#[test]
fn what_a_device_does_not_sample_has_the_same_tokens() {
    let (history, plain) = (History::new(&[1]), Sampling::default);
    let nucleus = [Sampling { top_p: 0.9, ..plain() }];
    let few = [Sampling { top_k: 600, ..plain() }, Sampling { top_k: 512, ..plain() }];
    let odd = [
        Sampling { temperature: -1.0, ..plain() },
        Sampling { temperature: f32::INFINITY, ..plain() },
        Sampling { repetition_penalty: 0.0, ..plain() },
        Sampling { frequency_penalty: f32::INFINITY, ..plain() },
        Sampling { logit_bias: vec![(2, 1.0), (2, 1.0)], ..plain() },
    ];
    let rows = [normal(3, 30_000, 2.0), (0..30_000).map(|at| (at % 3) as f32).collect()];
    for (samplings, elsewhere) in [(&nucleus[..], 0), (&few, 2), (&odd, 5)] {
        let all = tokens(&history, samplings, None, 1);
        assert_eq!(check(&device(0), &rows[..1], &all), elsewhere);
    }
    // Ten thousand equal logits end the nucleus.
    assert_eq!(check(&device(0), &rows[1..], &tokens(&history, &nucleus, None, 1)), 1);
    let all = [Choice::Elsewhere].into_iter().zip(tokens(&history, &nucleus, None, 1));
    for (choice, (_, wanted)) in all {
        assert_eq!(token(choice, wanted, &mut Scratch::default(), || Err("lost")), Err("lost"));
    }
    let unknown = Likeliest { max: 2.0, total: 1.0, top: None };
    let copied = || Ok::<_, Infallible>(rows[0].clone());
    let mut scratch = Scratch::default();
    let Ok(ours) = logprobs_of(&unknown, (5, rows[0][5]), 3, &mut scratch, copied);
    assert_eq!(ours, logprobs(&rows[0], 5, 3, &mut scratch));
}
