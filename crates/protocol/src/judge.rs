//! Input and output of models that judge texts: classifiers, with categories of their own or with
//! labels that a request names.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::replay_key::ReplayKey;

/// Input of a judge: a text, and the labels that a question has for it.
///
/// A literal ends in `..JudgeInput::text(..)`: minor versions add fields.
///
/// ```
/// use nsbridge_protocol::JudgeInput;
///
/// let input: JudgeInput = serde_json::from_str(
///     r#"{"text":"It came broken.","question":"Who answers?","labels":[{"label":"returns"}]}"#,
/// )?;
/// assert_eq!((input.question.as_deref(), input.labels.len()), (Some("Who answers?"), 1));
/// assert_eq!(serde_json::to_string(&JudgeInput::text("a bear"))?, r#"{"text":"a bear"}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgeInput {
    /// Text to judge.
    pub text: String,
    /// Question that exactly one of the labels answers. If absent, each label is a statement of its
    /// own about the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// Labels to score; all categories of the model if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<JudgeLabel>,
}

/// Label of a [`JudgeInput`].
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct JudgeLabel {
    /// Name of the label in the scores.
    pub label: String,
    /// Meaning of the label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Scores of a text, from 0 to 1: the only piece of a judge's reply.
///
/// ```
/// use nsbridge_protocol::JudgeScores;
///
/// let scores: JudgeScores = [("hate", 0.01), ("violence", 0.75)].into_iter().collect();
/// assert_eq!(serde_json::to_string(&scores)?, r#"{"hate":0.01,"violence":0.75}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JudgeScores(
    /// Score of each label, or of each category of the model.
    pub BTreeMap<String, f64>,
);

impl JudgeInput {
    /// Creates the input of a text that is scored by all categories of the model.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl JudgeLabel {
    /// Creates a label whose name is all that it says.
    pub fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), description: None }
    }

    /// Sets the meaning of the label.
    #[must_use]
    pub fn meaning(self, description: impl Into<String>) -> Self {
        Self { description: Some(description.into()), ..self }
    }
}

impl<L: Into<String>> FromIterator<(L, f64)> for JudgeScores {
    fn from_iter<I: IntoIterator<Item = (L, f64)>>(scores: I) -> Self {
        Self(scores.into_iter().map(|(label, score)| (label.into(), score)).collect())
    }
}

/// Whole pieces are compared: two workers of a model give a text equal scores to the bit.
impl ReplayKey for JudgeScores {}

impl fmt::Debug for JudgeInput {
    /// Omits the user's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JudgeInput")
            .field("bytes", &self.text.len())
            .field("labels", &self.labels.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for JudgeLabel {
    /// Omits the text, which may be the user's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JudgeLabel").field("bytes", &self.label.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for JudgeScores {
    /// Omits the scores, because they tell about the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JudgeScores").field("labels", &self.0.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{JudgeInput, JudgeLabel, JudgeScores};

    #[test]
    fn an_input_of_another_shape_is_refused() {
        for odd in [r#"{"text":1}"#, "{}", r#"{"text":"a","labels":["x"]}"#, r#"{"text":"","x":1}"#]
        {
            assert!(serde_json::from_str::<JudgeInput>(odd).is_err(), "{odd}");
        }
        assert!(serde_json::from_str::<JudgeScores>(r#"{"hate":"high"}"#).is_err());
    }

    #[test]
    fn debug_shows_nothing_of_the_user() {
        let label = JudgeLabel::new("canary").meaning("canary");
        let question = Some("canary".to_owned());
        let input = JudgeInput { question, labels: vec![label], ..JudgeInput::text("canary") };
        let scores: JudgeScores = [("canary", 0.4711)].into_iter().collect();
        let shown = format!("{input:?} {:?} {scores:?}", input.labels);
        assert!(!shown.contains("canary") && !shown.contains("4711"), "{shown}");
    }
}
