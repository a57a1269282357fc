//! Tests of sampling: its parameters, its definition, its frequencies and edge cases.

use super::{Allowed, History, Noise, Sampling, Scratch, sample};

mod device;
mod frequencies;
mod naive;
mod processors;

fn draw(logits: &[f32], history: &History, sampling: &Sampling, index: usize) -> Option<u32> {
    sample(logits, history, sampling, None, Noise::new(1, &[]), index, &mut Scratch::default())
}

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..Sampling::default() }
}

/// Checks the greedy choice after a prompt and a reply.
#[track_caller]
fn check_greedy(logits: &[f32], told: (&[u32], &[u32]), sampling: &Sampling, choice: u32) {
    let mut history = History::new(told.0);
    told.1.iter().for_each(|&token| history.push(token));
    assert_eq!(draw(logits, &history, sampling, told.1.len()), Some(choice));
}

#[test]
fn temperature_zero_takes_the_likeliest_and_of_equals_the_first() {
    let cut = Sampling { top_p: 0.9, min_p: 0.1, top_k: 3, ..greedy() };
    for index in 0..100 {
        for sampling in [&greedy(), &cut] {
            assert_eq!(draw(&[0.0, 3.0, 3.0, -1.0], &History::default(), sampling, index), Some(1));
        }
    }
    // The equal logits are in different blocks.
    let mut logits = [0.0; 300];
    [299, 130, 64].iter().for_each(|&token| logits[token] = 1.0);
    check_greedy(&logits, (&[], &[]), &greedy(), 64);
}

#[test]
fn the_repetition_penalty_lowers_what_occurred_whatever_its_sign_and_only_once() {
    let sampling = Sampling { repetition_penalty: 2.0, ..greedy() };
    check_greedy(&[3.0, 2.0], (&[], &[]), &sampling, 0);
    check_greedy(&[3.0, 2.0], (&[0], &[]), &sampling, 1);
    check_greedy(&[3.0, 2.0], (&[], &[0]), &sampling, 1);
    check_greedy(&[-1.0, -1.5], (&[0], &[]), &sampling, 1);
    check_greedy(&[3.0, 1.0], (&[0, 0], &[0, 0]), &sampling, 0);
}

#[test]
fn the_presence_penalty_counts_once_and_the_frequency_penalty_each_time() {
    let presence = Sampling { presence_penalty: 1.0, ..greedy() };
    check_greedy(&[2.5, 1.0], (&[], &[0, 0, 0]), &presence, 0);
    check_greedy(&[1.5, 1.0], (&[], &[0]), &presence, 1);
    let frequency = Sampling { frequency_penalty: 1.0, ..greedy() };
    check_greedy(&[2.5, 1.0], (&[], &[0]), &frequency, 0);
    check_greedy(&[2.5, 1.0], (&[], &[0, 0]), &frequency, 1);
    // A negative penalty favors repetition.
    check_greedy(&[1.0, 1.5], (&[], &[0]), &Sampling { presence_penalty: -1.0, ..greedy() }, 0);
}

#[test]
fn presence_and_frequency_penalties_do_not_see_the_prompt() {
    for sampling in [
        Sampling { presence_penalty: 2.0, ..greedy() },
        Sampling { frequency_penalty: 2.0, ..greedy() },
    ] {
        check_greedy(&[1.5, 1.0], (&[0, 0, 0], &[]), &sampling, 0);
        check_greedy(&[1.5, 1.0], (&[0], &[0]), &sampling, 1);
    }
}

#[test]
fn penalties_come_after_the_bias_and_in_their_order() {
    // (1 + 3) / 2 - 0.25 * 2 - 0.5 = 1; any other order gives another logit.
    let sampling = Sampling {
        logit_bias: vec![(0, 3.0)],
        repetition_penalty: 2.0,
        frequency_penalty: 0.25,
        presence_penalty: 0.5,
        ..greedy()
    };
    check_greedy(&[1.0, 0.99], (&[], &[0, 0]), &sampling, 0);
    check_greedy(&[1.0, 1.01], (&[], &[0, 0]), &sampling, 1);
}

#[test]
fn what_is_banned_is_never_chosen_whatever_its_bias() {
    let banned = Sampling { banned: vec![0, 2].into(), logit_bias: vec![(0, 100.0)], ..greedy() };
    check_greedy(&[9.0, 1.0, 5.0], (&[], &[]), &banned, 1);
    let all = Sampling { banned: vec![0, 1].into(), ..Sampling::default() };
    assert_eq!(draw(&[9.0, 1.0], &History::default(), &all, 0), None);
    // Ids beyond the logits are ignored.
    let beyond = Sampling { banned: vec![7].into(), logit_bias: vec![(8, 1.0)], ..greedy() };
    check_greedy(&[1.0, 0.0], (&[9], &[9]), &beyond, 0);
}

#[test]
fn what_would_complete_a_banned_sequence_is_not_chosen() {
    let banned_sequences = vec![vec![0, 1, 0], vec![2, 1], vec![]].into();
    let banned = Sampling { banned_sequences, ..greedy() };
    let logits = [9.0, 5.0, 1.0];
    check_greedy(&logits, (&[], &[]), &banned, 0);
    check_greedy(&logits, (&[], &[0, 1]), &banned, 1);
    // A sequence may span prompt and reply.
    check_greedy(&logits, (&[0], &[1]), &banned, 1);
    check_greedy(&logits, (&[0, 1], &[]), &banned, 1);
    check_greedy(&logits, (&[0, 1], &[2]), &banned, 0);
    check_greedy(&logits, (&[1, 1], &[]), &banned, 0);
    // A draft token that was removed is not part of the history.
    let mut history = History::new(&[0, 1]);
    history.push(2);
    history.pop();
    assert_eq!(draw(&logits, &history, &banned, 0), Some(1));
    let one = Sampling { banned_sequences: vec![vec![0]].into(), ..greedy() };
    check_greedy(&logits, (&[], &[]), &one, 1);
}

#[test]
fn what_ends_the_reply_waits_for_its_least_length() {
    let sampling = Sampling { ends: vec![0].into(), min_tokens: 2, ..greedy() };
    check_greedy(&[5.0, 1.0], (&[1], &[]), &sampling, 1);
    check_greedy(&[5.0, 1.0], (&[1], &[1]), &sampling, 1);
    check_greedy(&[5.0, 1.0], (&[1], &[1, 1]), &sampling, 0);
}

#[test]
fn logits_that_are_no_numbers_are_passed_over() {
    let plain = Sampling::default();
    let cut = Sampling { top_k: 2, top_p: 0.5, min_p: 0.1, ..Sampling::default() };
    for sampling in [&greedy(), &plain, &cut] {
        let choice = |logits: &[f32]| draw(logits, &History::default(), sampling, 0);
        assert_eq!(choice(&[f32::NAN, f32::NEG_INFINITY, 0.0]), Some(2));
        assert_eq!(choice(&[f32::NAN; 3]), None);
        assert_eq!(choice(&[]), None);
    }
}

#[test]
fn a_used_scratch_changes_no_choice() {
    let (mut used, history) = (Scratch::default(), History::new(&[3]));
    let wide: Vec<f32> = (0..1000u32).map(|i| (i * 7919 % 1000) as f32 / 250.0).collect();
    let samplings = [
        Sampling::default(),
        Sampling { top_k: 40, top_p: 0.9, ..Sampling::default() },
        Sampling { top_p: 0.5, repetition_penalty: 1.3, ..Sampling::default() },
    ];
    for index in 0..60 {
        let (sampling, logits) = (&samplings[index % 3], &wide[..10 + index * 16]);
        let noise = Noise::new(9, &[]);
        assert_eq!(
            sample(logits, &history, sampling, None, noise, index, &mut used),
            sample(logits, &history, sampling, None, noise, index, &mut Scratch::default()),
        );
    }
}
