//! Judge of the tests: the score of a label is the share of its letters that the text has.

use nsbridge_handler::{Batch, Error, Item, JudgeInput, JudgeScores, Models, Result};

/// Categories of the judge.
const CATEGORIES: [&str; 3] = ["hate", "violence", "spam"];

/// Model that judges texts.
#[derive(Debug)]
pub(crate) struct Judge;

impl Batch for Judge {
    type Options = ();
    type Input = JudgeInput;
    type Output = JudgeScores;

    fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    fn run(&mut self, batch: &[Item<JudgeInput>]) -> Result<Vec<Result<JudgeScores>>> {
        Ok(batch.iter().map(|item| scores(&item.input)).collect())
    }
}

fn scores(input: &JudgeInput) -> Result<JudgeScores> {
    match input.text.as_str() {
        "" => return Err(Error::bad_input("`text` is empty")),
        "no judge" => return Ok([("hate", 7.0)].into_iter().collect()),
        _ => {}
    }
    let labels = input.labels.iter().map(|it| it.label.as_str());
    let labels: Vec<&str> =
        if input.labels.is_empty() { CATEGORIES.into() } else { labels.collect() };
    Ok(labels.into_iter().map(|label| (label, score(&input.text, label))).collect())
}

/// Returns the share of the letters of a label that the text has.
pub(crate) fn score(text: &str, label: &str) -> f64 {
    let letters: Vec<char> = label.chars().filter(|letter| letter.is_alphabetic()).collect();
    let found = letters.iter().filter(|letter| text.contains(**letter)).count();
    found as f64 / letters.len().max(1) as f64
}
