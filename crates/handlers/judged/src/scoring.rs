//! Judge as a model of its own, on a queue.

use std::fmt;

use nsbridge_handler::{
    Batch, Error, Fingerprint, Item, JudgeInput, JudgeScores, Models, Result, quote,
};
use sha2::{Digest, Sha256};

use crate::judge::Judge;
use crate::panics::caught;

/// [`Batch`] of a judge: answers a [`JudgeInput`] with the scores of its text, as
/// `/v1/moderations` and `/v1/decisions` of a gateway ask for them.
///
/// ```no_run
/// use nsbridge_handler::Batched;
/// use nsbridge_judged::{Rules, Scoring};
///
/// type Handler = Batched<Scoring<Rules>>; // nsbridge::serve_async::<Batched<Scoring<Rules>>>()
/// ```
pub struct Scoring<J>(J);

impl<J: Judge> Scoring<J> {
    /// Creates the batch of a loaded judge.
    pub fn new(judge: J) -> Self {
        Self(judge)
    }

    fn answer(&self, input: &JudgeInput) -> Result<JudgeScores> {
        let categories = self.0.categories();
        let is_known = |label: &str| categories.iter().any(|category| category.name == label);
        match input.labels.iter().find(|label| !is_known(&label.label)) {
            None => caught(|| self.0.scores(&input.text)),
            Some(other) => {
                let known: Vec<&str> =
                    categories.iter().map(|category| category.name.as_str()).collect();
                let (other, known) = (quote(&other.label), known.join(", "));
                Err(Error::bad_input(format!("`labels` has `{other}`, and may have {known}")))
            }
        }
    }
}

impl<J: Judge> Batch for Scoring<J>
where
    J::Options: 'static,
{
    type Options = J::Options;
    type Input = JudgeInput;
    type Output = JudgeScores;

    fn load(options: J::Options, models: Models) -> Result<Self> {
        J::load(options, &models).map(Self)
    }

    fn run(&mut self, batch: &[Item<JudgeInput>]) -> Result<Vec<Result<JudgeScores>>> {
        Ok(batch.iter().map(|item| self.answer(&item.input)).collect())
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        let digest: [u8; 32] = Sha256::digest(self.0.fingerprint()).into();
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&digest[..16]);
        Some(Fingerprint(fingerprint))
    }
}

impl<J> fmt::Debug for Scoring<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scoring")
    }
}
