//! Trains the judge on `data/guard/train.tsv` and prints its error rates on `data/guard/held-out.tsv`.
//!
//! ```sh
//! cargo run --release -p classifier --example train_guard -- examples/models/guard
//! ```
//!
//! Without a folder argument it writes nothing. The same machine produces the same weights each
//! time.

use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use classifier::Config;
use classifier::guard::corpus::{LABELS, errors, train};
use classifier::guard::{Guard, features};
use classifier::training::{Example, Random, Training, write};

const BUCKETS: usize = 8192;
const HIDDEN: usize = 16;
const STEPS: usize = 1000;
const BATCH: usize = 64;
/// Number of training texts without a category, out of five.
const WITHOUT: usize = 2;
/// Seed of the initial weights and of the choice of sentences.
const SEED: u64 = 20_261_125;
/// Threshold of the error rates: that of a category without one of its own.
const THRESHOLD: f32 = 0.5;

/// Returns true for a text with Hiragana or Katakana, which each Japanese sentence of the corpus has.
fn is_japanese(text: &str) -> bool {
    text.contains(|character| ('\u{3040}'..='\u{30ff}').contains(&character))
}

/// Name of a language, and the function that selects its texts.
type Language = (&'static str, fn(&str) -> bool);

fn main() -> Result<()> {
    let labels = LABELS.map(str::to_owned).to_vec();
    let config = Config { buckets: BUCKETS, hidden: HIDDEN, labels };
    let templates = train();
    let mut random = Random(SEED);
    let mut training = Training::begin(&config, STEPS, &mut random);
    let mut out = std::io::stdout().lock();
    for step in 1..=STEPS {
        let example = |_| -> Example {
            let label = match random.below(5) {
                low if low < WITHOUT => 0,
                high => 1 + high - WITHOUT,
            };
            let own: Vec<_> = templates.iter().filter(|it| it.label == label).collect();
            let text = own[random.below(own.len())].fill(&mut random);
            (features(&text, BUCKETS), label)
        };
        let batch: Vec<Example> = (0..BATCH).map(example).collect();
        let loss = training.step(&batch);
        if step % 250 == 0 {
            writeln!(out, "step {step}: loss {loss:.4}")?;
        }
    }
    let network = training.network;
    if let Some(folder) = std::env::args_os().nth(1) {
        write(&network, &config, Path::new(&folder))?;
    }
    let guard = Guard::new(config, network, Vec::new());
    let languages: [Language; 3] =
        [("all", |_| true), ("English", |text| !is_japanese(text)), ("Japanese", is_japanese)];
    for (language, counts) in languages {
        for (category, label) in LABELS.iter().enumerate().skip(1) {
            let found = errors(|text| guard.probabilities(text), category, THRESHOLD, counts);
            let share = |part: usize, of: usize| 100.0 * part as f64 / of.max(1) as f64;
            writeln!(
                out,
                "held out, {language}, {label}: {} of {} missed ({:.1}%), {} of {} others flagged ({:.1}%)",
                found.false_negatives,
                found.own,
                share(found.false_negatives, found.own),
                found.false_positives,
                found.others,
                share(found.false_positives, found.others),
            )?;
        }
    }
    Ok(())
}
