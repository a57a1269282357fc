//! Test that sampling keeps the same tokens of random logits as Hugging Face's logits processors
//! (`tests/processors.py`).

use serde::Deserialize;

use super::super::adjust::adjusted;
use super::super::cut::cut;
use super::super::row::{Row, rank, token};
use super::{History, Sampling, Scratch, naive};

const TOLERANCE: f64 = 1e-5;

#[derive(Deserialize)]
pub(super) struct Case {
    parameters: Parameters,
    pub(super) logits: Vec<f32>,
    pub(super) prompt: Vec<u32>,
    pub(super) reply: Vec<u32>,
    /// Kept tokens with their log-probabilities.
    left: Vec<(u32, f64)>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    logit_bias: Vec<(u32, f32)>,
    banned: Vec<u32>,
    banned_sequences: Vec<Vec<u32>>,
    ends: Vec<u32>,
    min_tokens: usize,
    repetition_penalty: f32,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
}

impl Default for Parameters {
    fn default() -> Self {
        let repetition_penalty = Sampling::default().repetition_penalty;
        let Sampling { temperature, top_k, top_p, min_p, .. } = Sampling::default();
        Self {
            logit_bias: Vec::new(),
            banned: Vec::new(),
            banned_sequences: Vec::new(),
            ends: Vec::new(),
            min_tokens: 0,
            repetition_penalty,
            temperature,
            top_k,
            top_p,
            min_p,
        }
    }
}

impl From<Parameters> for Sampling {
    fn from(asked: Parameters) -> Self {
        Self {
            logit_bias: asked.logit_bias,
            banned: asked.banned.into(),
            banned_sequences: asked.banned_sequences.into(),
            ends: asked.ends.into(),
            min_tokens: asked.min_tokens,
            repetition_penalty: asked.repetition_penalty,
            temperature: asked.temperature,
            top_k: asked.top_k,
            top_p: asked.top_p,
            min_p: asked.min_p,
            ..Self::default()
        }
    }
}

/// Returns the kept tokens by id, with their log-probabilities.
fn left(case: &Case, sampling: &Sampling) -> Vec<(u32, f64)> {
    let mut history = History::new(&case.prompt);
    case.reply.iter().for_each(|&token| history.push(token));
    let Scratch { adjusted: copy, maxima, room } = &mut Scratch::default();
    let logits = adjusted(&case.logits, &history, sampling, None, case.reply.len(), copy);
    let row = Row::new(logits, maxima).unwrap();
    let last = cut(&row, sampling, room);
    let ranks = (0..).zip(logits).map(|(token, &logit)| rank(logit, token));
    let tokens: Vec<u32> = ranks.filter(|&rank| rank <= last).map(token).collect();
    let mut defined = naive::left(logits, sampling);
    defined.sort_unstable();
    assert_eq!(tokens, defined);
    let scaled = |id: u32| f64::from(logits[id as usize]) / f64::from(sampling.temperature);
    let all = libm::log(tokens.iter().map(|&id| libm::exp(scaled(id))).sum());
    tokens.into_iter().map(|id| (id, scaled(id) - all)).collect()
}

/// Returns the cases, with their parameters apart.
pub(super) fn cases() -> Vec<(Case, Sampling)> {
    let cases = include_str!("../../../tests/processors.json");
    let cases: Vec<Case> = serde_json::from_str(cases).unwrap();
    let apart = |mut case: Case| {
        let sampling = std::mem::take(&mut case.parameters).into();
        (case, sampling)
    };
    cases.into_iter().map(apart).collect()
}

#[test]
fn what_is_left_is_what_the_processors_of_transformers_leave() {
    let cases = cases();
    assert!(cases.len() >= 20);
    assert!(cases.iter().any(|(_, sampling)| sampling.banned_sequences.list().len() > 4));
    for (at, (case, sampling)) in cases.into_iter().enumerate() {
        let ours = left(&case, &sampling);
        let ids = |left: &[(u32, f64)]| left.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        assert_eq!(ids(&ours), ids(&case.left), "case {at}: {sampling:?}");
        for ((id, ours), (_, theirs)) in ours.into_iter().zip(case.left) {
            let difference = (ours - theirs).abs();
            assert!(difference <= TOLERANCE, "case {at}, token {id}: {difference}, {sampling:?}");
        }
    }
}
