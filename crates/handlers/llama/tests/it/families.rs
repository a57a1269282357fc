//! Tests of every family against Hugging Face's own classes, recorded by `families.py`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use nsbridge_llama::{Config, Setup};
use serde::Deserialize;
use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::network;
use crate::tiny::write_drawn;

/// Returns the logits after each of `tokens`, by the network under test.
fn logits(dir: &Path, tokens: &[u32]) -> Vec<Vec<f32>> {
    network::logits(&mut network::open(dir, &Setup::default()), tokens, 50)
}

#[derive(Deserialize)]
struct Case {
    name: String,
    config: Value,
    seed: u64,
    scale: f32,
    tokens: Vec<u32>,
    tolerance: f32,
    /// Sliding window of each layer's last token, as observed in transformers.
    windows: Vec<Option<usize>>,
    frequencies: Vec<f32>,
    attention_scaling: f32,
    /// Change to the config that each plausible bug amounts to.
    mutants: BTreeMap<String, Map<String, Value>>,
    /// Logits by the number of tokens before them.
    logits: HashMap<usize, Vec<f32>>,
}

impl Case {
    fn all() -> Vec<Self> {
        serde_json::from_str(include_str!("../families.json")).unwrap()
    }

    fn write(&self) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        write_drawn(dir.path(), &self.config, self.seed, self.scale);
        dir
    }

    fn config(&self) -> Config {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), self.config.to_string()).unwrap();
        Config::read(&nsbridge_handler::Model::in_dir(dir.path())).unwrap()
    }

    /// Returns the largest difference from the reference.
    fn worst(&self) -> f32 {
        let found = logits(self.write().path(), &self.tokens);
        assert_eq!(found.len(), self.tokens.len());
        let of = |(after, expected): (&usize, &Vec<f32>)| {
            let found = &found[after - 1];
            assert_eq!(found.len(), expected.len());
            found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        self.logits.iter().map(of).fold(0.0, f32::max)
    }

    fn change(&mut self, fields: &Map<String, Value>) {
        for (field, value) in fields {
            self.config[field] = value.clone();
        }
    }
}

#[test]
fn the_logits_of_every_family_are_those_of_transformers() {
    for case in Case::all() {
        let (worst, tolerance) = (case.worst(), case.tolerance);
        assert!(worst <= tolerance, "{}: {worst} is above {tolerance}", case.name);
    }
}

/// Sensitivity of the tolerances: each change stands for a bug that could have been written.
#[test]
fn a_wrong_theta_a_wrong_epsilon_and_the_like_are_seen() {
    for mut case in Case::all() {
        let original = case.config.clone();
        for (name, change) in std::mem::take(&mut case.mutants) {
            case.config = original.clone();
            case.change(&change);
            let (worst, tolerance) = (case.worst(), case.tolerance);
            assert!(worst > 5.0 * tolerance, "{}, {name}: {worst} is too little", case.name);
        }
    }
}

#[test]
fn each_layer_looks_back_as_far_as_in_transformers() {
    for case in Case::all() {
        assert_eq!(case.config().windows, case.windows, "{}", case.name);
    }
}

/// Compared bit by bit, because a small error in a frequency rotates distant positions by a lot.
#[test]
fn positions_turn_by_the_numbers_of_transformers() {
    for case in Case::all() {
        let Config { rope, head_dim, .. } = case.config();
        assert_eq!(rope.frequencies(head_dim), case.frequencies, "{}", case.name);
        assert_eq!(rope.attention_scaling(), case.attention_scaling, "{}", case.name);
    }
}

#[test]
fn a_file_of_transformers_4_says_what_one_of_5_says() {
    let mut pairs: BTreeMap<String, Vec<Config>> = BTreeMap::new();
    for case in Case::all() {
        let title = case.name.split(',').next().unwrap_or_default();
        pairs.entry(title.to_owned()).or_default().push(case.config());
    }
    for (title, pair) in pairs {
        assert_eq!(pair[0], pair[1], "{title}");
    }
}
