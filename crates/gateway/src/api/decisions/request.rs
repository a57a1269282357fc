//! Request of a decision.

use std::fmt;

use nsbridge_client::{JudgeInput, JudgeLabel, ModelName};
use nsbridge_gateway_access::Caller;
use serde::Deserialize;
use serde_json::Value;

use super::input::{content, text_of};
use crate::api::judges::MOST_BYTES;
use crate::catalog::Models;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, read};

/// Maximum number of questions, as in OpenAI's interface.
const MOST_QUESTIONS: usize = 400;

/// Maximum number of choices or levels of a question, as in OpenAI's interface for choices.
const MOST_LABELS: usize = 255;

/// Parsed request.
pub(super) struct DecisionRequest {
    /// Name of the model, as the client wrote it.
    pub(super) name: String,
    pub(super) model: ModelName,
    pub(super) questions: Vec<Question>,
    text: String,
}

/// Question about the text.
pub(super) struct Question {
    pub(super) name: Option<String>,
    pub(super) kind: Kind,
    /// Statement of a predicate, choices, or levels: what the model scores.
    pub(super) labels: Vec<JudgeLabel>,
    question: Option<String>,
}

/// Kind of a question.
#[derive(Debug, PartialEq)]
pub(super) enum Kind {
    Predicate,
    /// Values of the choices: texts or booleans.
    Choice(Vec<Value>),
    Score,
}

/// Question as it is in the request.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Written {
    Predicate { instructions: Value, name: Option<String> },
    Choice { instructions: Value, name: Option<String>, choices: Vec<Choice> },
    Score { instructions: Value, name: Option<String>, levels: Vec<JudgeLabel> },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    value: Value,
    description: Option<String>,
}

impl DecisionRequest {
    /// Parses a request.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub(super) fn parse(body: &[u8], models: &Models, caller: &Caller) -> Result<Self> {
        let mut fields = Fields::parse(body)?;
        let (name, model, _) = models.judge(&mut fields, caller)?;
        let text = text_of(fields.need("input")?)?;
        let written: Vec<Value> = fields.need("questions")?;
        fields.ignore(&["prompt_cache_key", "prompt_cache_options", "safety_identifier"]);
        fields.finish()?;
        if !(1..=MOST_QUESTIONS).contains(&written.len()) {
            let message = format!("`questions` must have 1 to {MOST_QUESTIONS} questions");
            return Err(ApiError::field("questions", message));
        }
        if text.len().saturating_mul(written.len()) > MOST_BYTES {
            let most = MOST_BYTES / written.len();
            let message = format!(
                "`input` has {} bytes, and {most} are the most for this number of questions",
                text.len()
            );
            return Err(ApiError::field("input", message));
        }
        let questions = written.into_iter().enumerate();
        let questions = questions.map(|(index, value)| {
            let at = format!("questions[{index}]");
            Question::of(&at, read(&at, value)?)
        });
        Ok(Self { name, model, text, questions: questions.collect::<Result<_>>()? })
    }

    /// Returns the input of the model for each question.
    pub(super) fn inputs(&self) -> Vec<JudgeInput> {
        let input = |it: &Question| JudgeInput {
            text: self.text.clone(),
            question: it.question.clone(),
            labels: it.labels.clone(),
        };
        self.questions.iter().map(input).collect()
    }
}

impl fmt::Debug for DecisionRequest {
    /// Omits the texts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionRequest")
            .field("model", &self.model)
            .field("questions", &self.questions.len())
            .finish_non_exhaustive()
    }
}

impl Question {
    /// Creates a question for a test of its answer.
    #[cfg(test)]
    pub(super) fn of_parts(name: Option<&str>, kind: Kind, labels: Vec<JudgeLabel>) -> Self {
        Self { name: name.map(str::to_owned), kind, labels, question: None }
    }

    fn of(at: &str, written: Written) -> Result<Self> {
        let instructions = |value| content(&format!("{at}.instructions"), value);
        match written {
            Written::Predicate { instructions: given, name } => {
                let labels = vec![JudgeLabel::new(instructions(given)?)];
                Ok(Self { name, kind: Kind::Predicate, labels, question: None })
            }
            Written::Choice { instructions: given, name, choices } => {
                let question = Some(instructions(given)?);
                let (mut values, mut labels) = (Vec::new(), Vec::new());
                for Choice { value, description } in choices {
                    let mut label = JudgeLabel::new(label_of(at, &value)?);
                    label.description = description;
                    labels.push(label);
                    values.push(value);
                }
                check(at, "choices", &labels)?;
                Ok(Self { name, kind: Kind::Choice(values), labels, question })
            }
            Written::Score { instructions: given, name, levels } => {
                let question = Some(instructions(given)?);
                check(at, "levels", &levels)?;
                Ok(Self { name, kind: Kind::Score, labels: levels, question })
            }
        }
    }
}

/// Returns the value of a choice as the label that the model scores.
fn label_of(at: &str, value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(truth) => Ok(truth.to_string()),
        _ => {
            let message = format!("`{at}.choices` must have texts or booleans as values");
            Err(ApiError::field(&format!("{at}.choices"), message))
        }
    }
}

/// Refuses labels that are too few or too many, or of which two are equal: the scores have one number
/// for each text.
fn check(at: &str, field: &str, labels: &[JudgeLabel]) -> Result<()> {
    let at = format!("{at}.{field}");
    if !(2..=MOST_LABELS).contains(&labels.len()) {
        let message = format!("`{at}` must have 2 to {MOST_LABELS} entries");
        return Err(ApiError::field(&at, message));
    }
    let mut texts: Vec<&str> = labels.iter().map(|it| it.label.as_str()).collect();
    texts.sort_unstable();
    if texts.windows(2).any(|two| matches!(two, [one, other] if one == other)) {
        let message = format!(
            "`{at}` has two entries of one text: a boolean and the text of its name count as equal"
        );
        return Err(ApiError::field(&at, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nsbridge_gateway_access::Access;
    use serde_json::{Value, json};

    use super::{DecisionRequest, Kind};
    use crate::catalog::{Model, Models, Task};
    use crate::error::Result;

    fn parse(input: &Value, questions: &Value) -> Result<DecisionRequest> {
        let judge = Model { task: Task::Judge, ..Model::default() };
        let models = Models::new([("judge".to_owned(), judge)].into(), None).unwrap();
        let access = Access::open_to_all("t".parse().unwrap());
        let caller = access.check(None, None).unwrap();
        let body = json!({ "model": "judge", "input": input, "questions": questions });
        DecisionRequest::parse(body.to_string().as_bytes(), &models, &caller)
    }

    fn choice(values: &[Value]) -> Value {
        let choices: Vec<Value> = values.iter().map(|value| json!({ "value": value })).collect();
        json!({ "type": "choice", "instructions": "Which?", "choices": choices })
    }

    #[test]
    fn each_question_becomes_labels_that_the_model_scores() {
        let levels = json!([{ "label": "low", "description": "mild" }, { "label": "high" }]);
        let questions = json!([
            { "type": "predicate", "name": "broken", "instructions": "The screen is broken." },
            choice(&["returns".into(), true.into()]),
            { "type": "score", "instructions": [{ "type": "input_text", "text": "How bad?" }],
              "levels": levels }
        ]);
        let request = parse(&"It broke.".into(), &questions).unwrap();
        let inputs = serde_json::to_value(request.inputs()).unwrap();
        let expected = json!([
            { "text": "It broke.", "labels": [{ "label": "The screen is broken." }] },
            { "text": "It broke.", "question": "Which?",
              "labels": [{ "label": "returns" }, { "label": "true" }] },
            { "text": "It broke.", "question": "How bad?", "labels": levels }
        ]);
        assert_eq!(inputs, expected);
        assert_eq!(request.questions[0].name.as_deref(), Some("broken"));
        let values = vec!["returns".into(), true.into()];
        assert_eq!(request.questions[1].kind, Kind::Choice(values));
    }

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "the values are written in place")]
    fn refused(input: Value, questions: Value, param: &str) {
        let error = parse(&input, &questions).unwrap_err();
        assert_eq!(error.json()["error"]["param"], param, "{}", error.message());
    }

    #[test]
    fn what_cannot_be_asked_is_refused_by_its_place() {
        let fine = choice(&["a".into(), "b".into()]);
        assert!(parse(&"a".into(), &json!([fine])).is_ok());
        refused("a".into(), json!([]), "questions");
        refused("a".into(), vec![fine.clone(); 401].into(), "questions");
        let rank = json!({ "type": "rank", "instructions": "Order them." });
        refused("a".into(), json!([fine, rank]), "questions[1]");
        refused("a".into(), json!([choice(&["a".into()])]), "questions[0].choices");
        let many: Vec<Value> = (0..256).map(|n| n.to_string().into()).collect();
        refused("a".into(), json!([choice(&many)]), "questions[0].choices");
        refused("a".into(), json!([choice(&["a".into(), "a".into()])]), "questions[0].choices");
        let truths = [true.into(), "true".into()];
        refused("a".into(), json!([choice(&truths)]), "questions[0].choices");
        refused("a".into(), json!([choice(&["a".into(), 7.into()])]), "questions[0].choices");
        let level = json!({ "type": "score", "instructions": "", "levels": [{ "label": "a" }] });
        refused("a".into(), json!([level]), "questions[0].levels");
        refused("a".into(), json!([{ "type": "predicate" }]), "questions[0]");
        let image = json!([{ "type": "input_image", "image_url": "data:" }]);
        let question = json!([{ "type": "predicate", "instructions": image }]);
        refused("a".into(), question, "questions[0].instructions[0]");
        let all = json!(vec![fine; 400]);
        refused("a".repeat(42_000).into(), all.clone(), "input");
        assert!(parse(&"a".repeat(41_000).into(), &all).is_ok());
    }
}
