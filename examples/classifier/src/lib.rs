//! Language identification with a small network over hashed n-grams, one batch at a time.
//!
//! Its input and its scores are those of a judge, so a gateway answers `/v1/decisions` with it.
//! [`Identifier`] is the only type that uses the bridge. `examples/train.rs` produces the weights.
//! [`guard`] has a judge of prompts and replies, with a network of the same kind.

mod grams;
pub mod guard;
mod network;
pub mod training;

use nsbridge::checkpoint::Checkpoint;
use nsbridge::{
    Batch, BatchLimits, Error, Fingerprint, Item, JudgeInput, JudgeLabel, JudgeScores, Models,
    Result, quote,
};
use serde::{Deserialize, Serialize};

pub use grams::grams;
pub use network::Network;

/// Maximum length of a text in bytes. A line or two is enough to identify a language.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// Contents of the model's `config.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Number of features of a text.
    pub buckets: usize,
    /// Width of the hidden layer.
    pub hidden: usize,
    /// ISO 639-1 codes of the languages, in the order of the network's outputs.
    pub labels: Vec<String>,
}

/// Language identification model.
#[derive(Debug)]
pub struct Identifier {
    config: Config,
    network: Network,
    fingerprint: [u8; 16],
}

impl Batch for Identifier {
    type Options = ();
    type Input = JudgeInput;
    type Output = JudgeScores;

    fn load((): (), models: Models) -> Result<Self> {
        let model = models.require("target")?;
        let config: Config = serde_json::from_slice(&model.read("config.json")?)?;
        let network = Network::load(&Checkpoint::open(model)?, &config)?;
        let files = (model.digest("config.json")?, model.digest("model.safetensors")?);
        let fingerprint = std::array::from_fn(|i| files.0[i] ^ files.1[i]);
        Ok(Self { config, network, fingerprint })
    }

    fn run(&mut self, batch: &[Item<JudgeInput>]) -> Result<Vec<Result<JudgeScores>>> {
        let texts = batch.iter().map(|item| {
            self.check(&item.input.labels)?;
            self.read(&item.input.text)
        });
        let (good, read): (Vec<_>, Vec<_>) = texts.map(split).unzip();
        // One product for all valid texts. Refused texts of the batch have no effect on it.
        let good: Vec<Vec<f32>> = good.into_iter().flatten().collect();
        let logits = self.network.forward(&good);
        let mut rows = logits.chunks_exact(self.config.labels.len());
        let answer = |read: Result<()>| {
            read?;
            let row = rows.next().ok_or_else(|| Error::fatal("the network lost a row"))?;
            Ok(self.scores(row))
        };
        Ok(read.into_iter().map(answer).collect())
    }

    fn limits(&self) -> BatchLimits {
        BatchLimits { batch_size: 32, ..BatchLimits::default() }
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(Fingerprint(self.fingerprint))
    }
}

/// Splits a read text into its row, if it is valid, and its status.
fn split(read: Result<Vec<f32>>) -> (Option<Vec<f32>>, Result<()>) {
    match read {
        Ok(row) => (Some(row), Ok(())),
        Err(error) => (None, Err(error)),
    }
}

impl Identifier {
    /// Converts a text to the network's input: `[buckets]`.
    fn read(&self, text: &str) -> Result<Vec<f32>> {
        if text.len() > MAX_TEXT_BYTES {
            let bytes = text.len();
            return Err(Error::bad_input(format!(
                "`text` has {bytes} bytes, and may have {MAX_TEXT_BYTES}"
            )));
        }
        grams(text, self.config.buckets).ok_or_else(|| {
            Error::bad_input("`text` has no letters, so there is no language to be told")
        })
    }

    /// Refuses labels other than the model's.
    fn check(&self, labels: &[JudgeLabel]) -> Result<()> {
        let known = &self.config.labels;
        match labels.iter().find(|asked| !known.contains(&asked.label)) {
            None => Ok(()),
            Some(other) => {
                let (other, known) = (quote(&other.label), known.join(", "));
                Err(Error::bad_input(format!("`labels` has `{other}`, and may have {known}")))
            }
        }
    }

    /// Returns the probability of each language by its ISO 639-1 code, from `[labels]` logits.
    fn scores(&self, logits: &[f32]) -> JudgeScores {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f32> = logits.iter().map(|logit| libm::expf(logit - most)).collect();
        let sum: f32 = powers.iter().sum();
        let scores = powers.iter().map(|power| f64::from(power / sum));
        self.config.labels.iter().cloned().zip(scores).collect()
    }
}

#[cfg(test)]
mod tests;
