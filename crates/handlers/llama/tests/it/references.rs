//! Tests of scores and embeddings against torch and transformers, which `scoring.py` ran on the
//! bundled model in f32.

use std::sync::Arc;

use nsbridge_handler::testing::{answer, load};
use nsbridge_handler::{Embedding, TextPiece};
use nsbridge_llama::{Embedder, Llama, Options, Pooling, Task};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::bundled::bundled;
use crate::tiny::models;

/// Maximum difference of a log-probability, twenty times the observed one.
const TOLERANCE: f32 = 2e-4;

/// Maximum distance of a cosine from 1, a thousand times the observed one.
const ANGLE: f64 = 1e-10;

/// Maximum difference of an element of a vector that is not normalized, twenty times the observed
/// one. The largest elements are about 5.
const ELEMENT: f32 = 2e-5;

#[derive(Deserialize)]
struct Reference {
    sha256: String,
    prompts: Vec<Prompt>,
    texts: Vec<Text>,
}

#[derive(Deserialize)]
struct Prompt {
    tokens: Vec<u32>,
    /// Values of each token after the first.
    positions: Vec<Position>,
}

#[derive(Deserialize)]
struct Position {
    logprob: f32,
    rank: u32,
    top: Vec<(u32, f32)>,
}

#[derive(Deserialize)]
struct Text {
    tokens: Vec<u32>,
    last: Vec<f32>,
    mean: Vec<f32>,
}

/// Reads the reference, which must be of the model as it is.
fn reference() -> Reference {
    let reference: Reference = serde_json::from_str(include_str!("../scoring.json")).unwrap();
    let weights = std::fs::read(bundled("tale-7m").join("model.safetensors")).unwrap();
    let digest: String = Sha256::digest(weights).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, reference.sha256, "the model was trained again: run tests/scoring.py");
    reference
}

fn scores(llama: &Arc<Llama>, tokens: &[u32]) -> Vec<TextPiece> {
    let input = json!({ "prompt_token_ids": tokens, "prompt_logprobs": 5, "max_tokens": 0 });
    answer(llama, &input, 7, &[]).unwrap().0
}

/// Returns the largest difference of a log-probability, or infinity if a rank or a token differs
/// that no rounding explains.
fn worst(pieces: &[TextPiece], prompt: &Prompt) -> f32 {
    let mut worst: f32 = 0.0;
    for (piece, position) in pieces[1..].iter().zip(&prompt.positions) {
        worst = worst.max((piece.logprob.unwrap() - position.logprob).abs());
        let found = &piece.top_logprobs;
        for (found, (token, logprob)) in found.iter().zip(&position.top) {
            worst = worst.max((found.logprob - logprob).abs());
            // Two tokens may change places only if they are as likely.
            let swapped = position.top.iter().find(|(other, _)| *other == found.token);
            if found.token != *token
                && swapped.is_some_and(|(_, other)| (other - logprob).abs() > TOLERANCE)
            {
                return f32::INFINITY;
            }
        }
        // Among thousands of unlikely tokens, rounding moves a token by a few places.
        let apart = piece.rank.unwrap().abs_diff(position.rank);
        if apart > 2 + position.rank / 100 {
            return f32::INFINITY;
        }
    }
    worst
}

#[test]
fn log_probabilities_of_prompts_are_those_of_torch() {
    let llama: Arc<Llama> = load(Options::default(), models(&bundled("tale-7m"))).unwrap();
    for prompt in reference().prompts {
        let pieces = scores(&llama, &prompt.tokens);
        assert_eq!(pieces.len(), prompt.positions.len() + 1);
        let found = worst(&pieces, &prompt);
        assert!(found < TOLERANCE, "{found}");
        // A row too early is seen.
        let mut shifted = pieces.clone();
        if shifted.len() > 2 {
            shifted.remove(1);
            assert!(worst(&shifted, &prompt) > 100.0 * TOLERANCE);
        }
    }
}

fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
}

#[test]
fn embeddings_are_those_of_transformers() {
    for pooling in [Pooling::Last, Pooling::Mean] {
        let options = |normalize| Options {
            task: Some(Task::Embed),
            pooling: Some(pooling),
            normalize: Some(normalize),
            ..Options::default()
        };
        let load = |normalize| -> Arc<Embedder> {
            load(options(normalize), models(&bundled("tale-7m"))).unwrap()
        };
        let (raw, unit) = (load(false), load(true));
        let vector = |embedder: &Arc<Embedder>, tokens: &[u32]| {
            let piece = answer(embedder, &json!({ "input": tokens }), 7, &[]).unwrap().0.remove(0);
            let Embedding::Floats(vector) = piece.embedding else { panic!("no numbers") };
            vector
        };
        for Text { tokens, last, mean } in reference().texts {
            let (right, wrong) = match pooling {
                Pooling::Last => (last, mean),
                Pooling::Mean => (mean, last),
                other => panic!("{other:?} has no reference"),
            };
            let found = vector(&raw, &tokens);
            let apart = found.iter().zip(&right).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let angle = 1.0 - cosine(&found, &right);
            assert!(apart < ELEMENT && angle.abs() < ANGLE, "{apart} {angle}");
            assert!((1.0 - cosine(&vector(&unit, &tokens), &right)).abs() < ANGLE);
            // In a text of two tokens, both have nearly the same direction.
            let other = 1.0 - cosine(&found, &wrong);
            assert!(tokens.len() == 2 || other > 100.0 * ANGLE, "the other pooling is seen");
        }
    }
}
