//! Trains the network on `data/train.tsv` and measures its accuracy on `data/held-out.tsv`.
//!
//! ```sh
//! cargo run --release -p classifier --example train -- examples/models/six-languages
//! ```
//!
//! Without a folder argument it writes nothing. The same machine produces the same weights each
//! time.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use classifier::training::{Example, Random, Training, write};
use classifier::{Config, Network, grams};

const BUCKETS: usize = 2048;
const HIDDEN: usize = 16;
const STEPS: usize = 3000;
const BATCH: usize = 64;
/// Seed of the initial weights and of the choice of words.
const SEED: u64 = 20_261_121;

fn main() -> Result<()> {
    let train = sentences(include_str!("../data/train.tsv"))?;
    let held_out = sentences(include_str!("../data/held-out.tsv"))?;
    let mut labels: Vec<String> = train.iter().map(|(label, _)| (*label).to_owned()).collect();
    labels.dedup();
    let config = Config { buckets: BUCKETS, hidden: HIDDEN, labels };

    let mut random = Random(SEED);
    let mut training = Training::begin(&config, STEPS, &mut random);
    let mut out = std::io::stdout().lock();
    for step in 1..=STEPS {
        // Texts without letters are skipped, such as the separate question mark of French.
        let texts = std::iter::repeat_with(|| example(&train, &config, &mut random));
        let batch: Vec<_> = texts.flatten().take(BATCH).collect();
        let loss = training.step(&batch);
        if step % 500 == 0 {
            writeln!(out, "step {step}: loss {loss:.4}")?;
        }
    }
    let network = training.network;
    for words in [usize::MAX, 5, 3, 2, 1] {
        let (right, of) = measure(&network, &config, &held_out, words);
        let what = if words == usize::MAX {
            "whole sentences".into()
        } else {
            format!("{words} words each")
        };
        let share = 100.0 * right as f64 / of as f64;
        writeln!(out, "held out, {what}: {right} of {of} right, {share:.1}%")?;
    }
    match std::env::args_os().nth(1) {
        Some(folder) => write(&network, &config, Path::new(&folder)),
        None => Ok(()),
    }
}

/// Parses each line into a language and a sentence.
fn sentences(text: &'static str) -> Result<Vec<(&'static str, &'static str)>> {
    text.lines().map(|line| line.split_once('\t').context("a line without a tab")).collect()
}

/// Returns a random run of words of a random sentence, so that short texts are as frequent as long
/// ones.
fn example(from: &[(&str, &str)], config: &Config, random: &mut Random) -> Option<Example> {
    let (label, sentence) = from[random.below(from.len())];
    let words: Vec<&str> = sentence.split(' ').collect();
    let count = 1 + random.below(words.len());
    let first = random.below(words.len() - count + 1);
    let row = grams(&words[first..first + count].join(" "), config.buckets)?;
    Some((row, index(config, label)?))
}

fn index(config: &Config, label: &str) -> Option<usize> {
    config.labels.iter().position(|known| known == label)
}

/// Returns the number of correct answers and the number of texts. Each sentence is cut into texts
/// of `words` words; the last text may be shorter.
fn measure(
    network: &Network,
    config: &Config,
    from: &[(&str, &str)],
    words: usize,
) -> (usize, usize) {
    let mut examples: Vec<Example> = Vec::new();
    for (label, sentence) in from {
        let split: Vec<&str> = sentence.split(' ').collect();
        for text in split.chunks(words.min(split.len())) {
            let row = grams(&text.join(" "), config.buckets);
            examples.extend(row.zip(index(config, label)));
        }
    }
    let rows: Vec<_> = examples.iter().map(|(row, _)| row.clone()).collect();
    let logits = network.forward(&rows);
    let told = logits.chunks_exact(config.labels.len()).map(|row| {
        let largest = row.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
        largest.map(|(at, _)| at)
    });
    let right = told.zip(&examples).filter(|(told, (_, label))| *told == Some(*label));
    (right.count(), examples.len())
}
