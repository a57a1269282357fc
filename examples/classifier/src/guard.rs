//! Judge of prompts and replies: prompt injection, personal data and insults, in English and Japanese.
//!
//! A network of two layers scores each sentence. [`Guard`] is a [`Judge`] for the layer around a
//! handler, and by `Scoring<Guard>` a model on a queue of its own, with equal scores.
//! `examples/train_guard.rs` produces the weights from `data/guard`.

pub mod corpus;
mod features;
mod sentences;

use nsbridge::checkpoint::Checkpoint;
use nsbridge::{Models, Result};
use nsbridge_judged::{Category, Finding, Judge};

use crate::Config;
use crate::network::Network;
pub use features::features;
use sentences::{MAX_SENTENCE_CHARS, sentences};

/// Label of sentences that belong to no category.
const NONE: &str = "none";

/// Judge with the weights of the model `judge`.
#[derive(Debug)]
pub struct Guard {
    config: Config,
    network: Network,
    categories: Vec<Category>,
    /// Output of the network for each category.
    outputs: Vec<usize>,
    fingerprint: Vec<u8>,
}

impl Guard {
    /// Creates a judge of a network.
    pub fn new(config: Config, network: Network, fingerprint: Vec<u8>) -> Self {
        let labels = config.labels.iter().enumerate().filter(|(_, label)| *label != NONE);
        let (outputs, categories) = labels
            .map(|(output, label)| {
                let in_replies = label != "prompt_injection";
                (output, Category { in_replies, ..Category::new(label) })
            })
            .unzip();
        Self { config, network, categories, outputs, fingerprint }
    }

    /// Returns the probability of each label for one sentence.
    pub fn probabilities(&self, sentence: &str) -> Vec<f32> {
        let logits = self.network.forward(&[features(sentence, self.config.buckets)]);
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f32> = logits.iter().map(|logit| libm::expf(logit - most)).collect();
        let sum: f32 = powers.iter().sum();
        powers.into_iter().map(|power| power / sum).collect()
    }
}

impl Judge for Guard {
    type Options = ();

    fn load((): (), models: &Models) -> Result<Self> {
        let model = models.require("judge")?;
        let config: Config = serde_json::from_slice(&model.read("config.json")?)?;
        let network = Network::load(&Checkpoint::open(model)?, &config)?;
        let files = [model.digest("config.json")?, model.digest("model.safetensors")?];
        Ok(Self::new(config, network, files.concat()))
    }

    fn categories(&self) -> &[Category] {
        &self.categories
    }

    fn window(&self) -> usize {
        // The characters beside a sentence decide where it begins and ends.
        MAX_SENTENCE_CHARS + 2
    }

    fn find(&self, text: &str, offset: usize) -> Vec<Finding> {
        let characters: Vec<char> = text.chars().collect();
        // The space before a sentence is not a part of it.
        let filled = sentences(&characters, offset).into_iter().filter_map(|sentence| {
            let spaces = characters[sentence.clone()].iter().take_while(|it| it.is_whitespace());
            let begin = sentence.start + spaces.count();
            (begin < sentence.end).then_some(begin..sentence.end)
        });
        let findings = filled.flat_map(|range| {
            let sentence: String = characters[range.clone()].iter().collect();
            let probabilities = self.probabilities(&sentence);
            let scores = self.outputs.iter().map(move |output| probabilities[*output]);
            scores
                .enumerate()
                .map(move |(category, score)| Finding::new(category, score, range.clone()))
        });
        findings.collect()
    }

    fn open(&self, text: &str, offset: usize) -> usize {
        let characters: Vec<char> = text.chars().collect();
        sentences(&characters, offset).last().map_or(0, |last| last.len())
    }

    fn fingerprint(&self) -> Vec<u8> {
        self.fingerprint.clone()
    }
}

#[cfg(test)]
mod tests;
