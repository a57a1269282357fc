//! Errors of flows.

use std::fmt;

/// Result of a step of a flow.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a step of a flow has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A request failed.
    #[error(transparent)]
    Client(#[from] crate::error::Error),
    /// A judge's score is above its limit.
    #[error("the judge's score for `{}` is above {}", .0.label, .0.limit)]
    CutOff(CutOff),
    /// A judge's reply has no score for a label that has a limit.
    #[error("the judge gave no score for `{label}`: name one of its categories, or pass labels")]
    NoScore {
        /// Label without a score.
        label: String,
    },
    /// The reply of a judge is not one piece with scores.
    #[error("the reply of the model is no judgment")]
    NoJudgment,
    /// The reply of an embedder is not one vector for each text.
    #[error("the reply of the model is not one vector for each text")]
    NoEmbedding,
    /// A later attempt of the writer differs from text that was already judged.
    #[error("a later attempt of the writer differs: only its first {kept} pieces stand")]
    Restarted {
        /// Number of pieces that stand.
        kept: usize,
    },
}

/// Score of a judge above its limit.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct CutOff {
    /// Label of the score.
    pub label: String,
    /// Score, from 0 to 1.
    pub score: f64,
    /// Highest score that passes.
    pub limit: f64,
    /// Text that passed before.
    pub text: String,
}

impl fmt::Debug for CutOff {
    /// Omits the text, and the score, because it tells about the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CutOff")
            .field("label", &self.label)
            .field("limit", &self.limit)
            .field("text_bytes", &self.text.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{CutOff, Error};

    #[test]
    fn a_cut_off_shows_nothing_of_the_text() {
        let (label, text) = ("hate".to_owned(), "canary".to_owned());
        let error = Error::CutOff(CutOff { label, score: 0.4711, limit: 0.3, text });
        let shown = format!("{error} {error:?}");
        assert!(shown.contains("hate") && shown.contains("0.3"), "{shown}");
        assert!(!shown.contains("canary") && !shown.contains("4711"), "{shown}");
    }
}
