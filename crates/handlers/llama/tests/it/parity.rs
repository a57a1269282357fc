//! Tests of the arithmetic against `reference.py`, an independent implementation in numpy and f64.

use std::collections::HashMap;

use nsbridge_llama::{Config, Model, Setup, Weights};
use serde::Deserialize;
use serde_json::Value;

use crate::network;
use crate::tiny::write_model;

const TOLERANCE: f32 = 1e-4;

#[derive(Deserialize)]
struct Case {
    config: Value,
    seed: u64,
    tokens: Vec<u32>,
    /// Logits by the number of tokens before them.
    logits: HashMap<usize, Vec<f32>>,
}

impl Case {
    fn all() -> Vec<Self> {
        serde_json::from_str(include_str!("../reference.json")).unwrap()
    }

    fn model(&self) -> Model {
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path(), &self.config, self.seed);
        network::open(dir.path(), &Setup::default())
    }

    /// Runs the tokens in chunks of `chunk`. Returns the largest difference from the reference.
    fn worst(&self, chunk: usize) -> f32 {
        let found = network::logits(&mut self.model(), &self.tokens, chunk);
        let mut worst: f32 = 0.0;
        for (&tokens, expected) in &self.logits {
            let logits = &found[tokens - 1];
            assert_eq!(argmax(logits), argmax(expected));
            let difference = logits.iter().zip(expected).map(|(a, b)| (a - b).abs());
            worst = difference.fold(worst, f32::max);
        }
        worst
    }
}

fn argmax(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
}

#[test]
fn logits_are_those_of_the_reference_however_the_prompt_is_cut() {
    for (index, case) in Case::all().iter().enumerate() {
        for chunk in [1, 7, 60] {
            let worst = case.worst(chunk);
            assert!(worst <= TOLERANCE, "case {index}, chunks of {chunk}: {worst}");
        }
    }
}

/// Sensitivity of the tolerance: each change is a plausible bug.
#[test]
fn a_wrong_theta_a_wrong_epsilon_and_wrong_scaling_are_seen() {
    for (case, pointer, wrong) in [
        (0, "/rope_theta", 10_500.0),
        (0, "/rms_norm_eps", 1e-4),
        (1, "/rms_norm_eps", 1e-5),
        (1, "/rope_parameters/rope_theta", 10_000.0),
        (1, "/rope_parameters/factor", 4.0),
        (1, "/rope_parameters/original_max_position_embeddings", 64.0),
    ] {
        let mut case = Case::all().remove(case);
        *case.config.pointer_mut(pointer).unwrap() = wrong.into();
        let expected = &case.logits[&60];
        let logits = &network::logits(&mut case.model(), &case.tokens, 60)[59];
        let worst = logits.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst > 2.0 * TOLERANCE, "{pointer}: {worst}");
    }
}

#[test]
fn a_missing_tensor_and_a_wrong_shape_are_named() {
    let mut case = Case::all().remove(1);
    case.config["tie_word_embeddings"] = true.into();
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), &case.config, case.seed);
    let load = |field: &str, value: Value| {
        let mut config = case.config.clone();
        config[field] = value;
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let files = nsbridge_handler::Model::in_dir(dir.path());
        let config = Config::read(&files).unwrap();
        let weights = Weights::read(&files).unwrap();
        Model::new(&config, config.context, &weights, &Setup::default()).unwrap_err().to_string()
    };
    assert!(load("tie_word_embeddings", false.into()).contains("lm_head.weight"));
    assert!(load("head_dim", 514.into()).contains("head_dim"));
    assert!(load("intermediate_size", 65.into()).contains("mlp.gate_proj.weight"));
}
