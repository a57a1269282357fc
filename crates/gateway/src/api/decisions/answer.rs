//! Answer to a question, from the scores of its labels.

use nsbridge_client::JudgeScores;
use serde_json::{Value, json};

use super::request::{Kind, Question};
use crate::error::{ApiError, Result};

/// Returns the answer to a question at the place `at` of the request.
///
/// # Errors
///
/// Returns an error if the model has no score of a label.
pub(super) fn of(question: &Question, scores: &JudgeScores, at: &str) -> Result<Value> {
    let score = |label: &str| {
        scores.0.get(label).copied().ok_or_else(|| {
            let label: String = label.chars().take(100).collect();
            ApiError::field(at, format!("`{at}`: the model has no score of `{label}`"))
        })
    };
    let labels = question.labels.iter().map(|it| score(&it.label));
    let scores = labels.collect::<Result<Vec<f64>>>()?;
    let mut answer = match (&question.kind, scores.as_slice()) {
        (Kind::Predicate, [probability]) => {
            json!({ "type": "predicate", "probability": probability })
        }
        (kind, scores) => match normalized(scores) {
            Some(shares) => distribution(kind, question, &shares),
            // No label fits at all.
            None => json!({ "type": "refusal" }),
        },
    };
    answer["name"] = question.name.clone().into();
    Ok(answer)
}

/// Returns scores as shares of their sum; `None` if it is zero.
fn normalized(scores: &[f64]) -> Option<Vec<f64>> {
    let sum: f64 = scores.iter().sum();
    (sum > 0.0).then(|| scores.iter().map(|score| score / sum).collect())
}

/// Returns the answer to a question of which one label is true.
fn distribution(kind: &Kind, question: &Question, shares: &[f64]) -> Value {
    let (best, most) = largest(shares);
    // From 0 for equal shares to 1 for certainty, with any number of labels.
    let equal = 1.0 / shares.len() as f64;
    let confidence = ((most - equal) / (1.0 - equal)).clamp(0.0, 1.0);
    if let Kind::Choice(values) = kind {
        let all = values.iter().zip(shares);
        let all = all.map(|(value, share)| json!({ "value": value, "probability": share }));
        return json!({
            "type": "choice", "choice": values.get(best), "confidence": confidence,
            "probabilities": all.collect::<Vec<_>>()
        });
    }
    let all = question.labels.iter().zip(shares).enumerate().map(|(value, (level, share))| {
        json!({ "label": level.label, "value": value, "probability": share })
    });
    let levels = shares.iter().enumerate();
    let score: f64 = levels.map(|(value, share)| value as f64 * share).sum();
    json!({
        "type": "score", "score": score, "confidence": confidence,
        "probabilities": all.collect::<Vec<_>>()
    })
}

/// Returns the first largest share, with its place.
fn largest(shares: &[f64]) -> (usize, f64) {
    let shares = shares.iter().copied().enumerate();
    shares.fold((0, 0.0), |best, share| if share.1 > best.1 { share } else { best })
}

#[cfg(test)]
mod tests {
    use super::of;
    use crate::api::decisions::request::{Kind, Question};
    use nsbridge_client::JudgeLabel;
    use serde_json::{Value, json};

    fn question(kind: Kind, labels: &[&str]) -> Question {
        let labels = labels.iter().copied().map(JudgeLabel::new);
        Question::of_parts(Some("q"), kind, labels.collect())
    }

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "the values are written in place")]
    fn check(kind: Kind, scores: &[(&str, f64)], expected: Value) {
        let labels: Vec<&str> = scores.iter().map(|(label, _)| *label).collect();
        let scores = scores.iter().copied().chain([("another", 1.0)]).collect();
        assert_eq!(of(&question(kind, &labels), &scores, "questions[0]").unwrap(), expected);
    }

    #[test]
    fn an_answer_is_a_function_of_the_scores() {
        check(
            Kind::Predicate,
            &[("It broke.", 0.25)],
            json!({ "type": "predicate", "name": "q", "probability": 0.25 }),
        );
        check(
            Kind::Choice(vec![false.into(), "a".into()]),
            &[("false", 0.125), ("a", 0.375)],
            json!({
                "type": "choice", "name": "q", "choice": "a", "confidence": 0.5, "probabilities": [
                    { "value": false, "probability": 0.25 }, { "value": "a", "probability": 0.75 }
                ]
            }),
        );
        check(
            Kind::Score,
            &[("low", 0.5), ("high", 0.5)],
            json!({
                "type": "score", "name": "q", "score": 0.5, "confidence": 0.0, "probabilities": [
                    { "label": "low", "value": 0, "probability": 0.5 },
                    { "label": "high", "value": 1, "probability": 0.5 }
                ]
            }),
        );
    }

    #[test]
    fn a_question_that_no_label_fits_is_declined_and_a_label_without_a_score_is_an_error() {
        let declined = json!({ "type": "refusal", "name": "q" });
        check(Kind::Score, &[("low", 0.0), ("high", 0.0)], declined);
        let scores = [("low", 0.5)].into_iter().collect();
        let error = of(&question(Kind::Score, &["low", "high"]), &scores, "questions[3]");
        let error = error.unwrap_err();
        assert_eq!(error.json()["error"]["param"], "questions[3]");
        assert!(error.message().contains("no score of `high`"), "{}", error.message());
    }
}
