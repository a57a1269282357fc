//! Trait of judges, and the findings that they return.

use std::collections::BTreeMap;
use std::ops::Range;

use nsbridge_handler::{JudgeScores, Models, Result};
use serde::de::DeserializeOwned;

/// Category that a judge scores.
///
/// A literal ends in `..Category::new(..)`: minor versions add fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Category {
    /// Name in `snake_case` or in the form of OpenAI's categories (`hate/threatening`). It is a label
    /// of metrics and a name in the configuration.
    pub name: String,
    /// True if findings of the category refuse a reply by default. A prompt injection is a danger in
    /// a prompt only.
    pub in_replies: bool,
}

impl Category {
    /// Creates a category that is judged in prompts and in replies.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), in_replies: true }
    }
}

/// Part of a text that belongs to a category.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Finding {
    /// Index of the category in [`Judge::categories`].
    pub category: usize,
    /// Certainty from 0 to 1.
    pub score: f32,
    /// Part of the text, in characters (Unicode scalar values) from its beginning.
    pub range: Range<usize>,
}

impl Finding {
    /// Creates a finding of the category with this index.
    pub const fn new(category: usize, score: f32, range: Range<usize>) -> Self {
        Self { category, score, range }
    }
}

/// Model or list of rules that finds refused text, within the process of the handler.
///
/// A judge reads a text of any length, and a reply while it grows. For this, findings are local.
///
/// # Contract
///
/// - A finding is at most [`window`](Self::window) characters long. It depends on the text from
///   `window` characters before its end to `window` characters after its beginning, and on nothing
///   else. A finding is then found in each part of the text that holds these characters.
/// - [`open`](Self::open) returns the number of characters at the end of a text in which a finding
///   may begin whose presence, range or score more text may change.
/// - Two calls with equal arguments return equal findings, to the bit and on each machine.
pub trait Judge: Send + Sync + Sized + 'static {
    /// Type of the judge's own fields in the table `[judge]` of the worker's configuration.
    type Options: DeserializeOwned + Send;

    /// Loads the judge.
    ///
    /// # Errors
    ///
    /// An error ends the worker with a non-zero exit code before it takes a request.
    fn load(options: Self::Options, models: &Models) -> Result<Self>;

    /// Returns the categories, each with a name of its own.
    fn categories(&self) -> &[Category];

    /// Returns the maximum length of a finding with the context that decides it, in characters.
    fn window(&self) -> usize;

    /// Finds the parts of `text` that belong to a category. `text` begins `offset` characters after
    /// the beginning of the whole text.
    fn find(&self, text: &str, offset: usize) -> Vec<Finding>;

    /// Returns the number of characters at the end of `text` that are not decided yet. At most
    /// [`window`](Self::window) characters are held back.
    fn open(&self, text: &str, offset: usize) -> usize {
        let _ = (text, offset);
        self.window()
    }

    /// Returns an id of everything that the findings depend on: weights, lists, version.
    fn fingerprint(&self) -> Vec<u8>;

    /// Returns the highest score of each category in a text.
    fn scores(&self, text: &str) -> JudgeScores {
        let categories = self.categories();
        let names = categories.iter().map(|category| category.name.clone());
        let mut scores: BTreeMap<String, f64> = names.map(|name| (name, 0.0)).collect();
        for finding in self.find(text, 0) {
            let name = categories.get(finding.category).map(|category| &category.name);
            if let Some(score) = name.and_then(|name| scores.get_mut(name)) {
                *score = score.max(f64::from(finding.score));
            }
        }
        JudgeScores(scores)
    }
}
