//! `/v1/moderations`: texts by category, as a model with the task `judge` scores them.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use nsbridge_client::{JudgeInput, JudgeScores, RequestId};
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::RequestContext;
use nsbridge_protocol::Uuid;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::judges::Asked;
use crate::catalog::Model;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, read};
use crate::ids;
use crate::state::App;

/// Maximum number of texts of a request.
const MOST_TEXTS: usize = 2048;

/// Categories of OpenAI's interface. Its clients expect all of them in each result.
const CATEGORIES: [&str; 13] = [
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
];

/// Part of an input.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Part {
    Text { text: String },
}

/// Scores texts by category.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    body: Bytes,
) -> Result<impl IntoResponse> {
    let mut fields = Fields::parse(&body)?;
    let (name, model, settings) = app.models.judge(&mut fields, &caller)?;
    let texts = texts(fields.need("input")?)?;
    fields.finish()?;
    let several = texts.len() > 1;
    let inputs = texts.into_iter().map(JudgeInput::text).collect();
    let asked = Asked { caller: &caller, context: &context, kind: "moderation", model: &model };
    let at = |index| if several { format!("input[{index}]") } else { "input".to_owned() };
    let (scores, _) = asked.judge(&app, inputs, at).await?;
    let results: Vec<Value> = scores.iter().map(|scores| result(scores, &settings)).collect();
    let id = ids::moderation(RequestId(Uuid::now_v7()));
    Ok(Json(json!({ "id": id, "model": name, "results": results })))
}

/// Reads the texts: one text, a list of texts, or the parts of one text.
fn texts(input: Value) -> Result<Vec<String>> {
    let refused = |message: String| Err(ApiError::field("input", message));
    let items = match input {
        Value::String(text) => return Ok(vec![text]),
        Value::Array(items) => items,
        _ => {
            return refused(
                "`input` must be a text, a list of texts or a list of parts".to_owned(),
            );
        }
    };
    if !(1..=MOST_TEXTS).contains(&items.len()) {
        return refused(format!("`input` must have 1 to {MOST_TEXTS} texts"));
    }
    if items.iter().all(Value::is_string) {
        return items.into_iter().map(|text| read("input", text)).collect();
    }
    let parts = items.into_iter().enumerate().map(|(index, part)| {
        let at = format!("input[{index}]");
        if part.get("type").and_then(Value::as_str) == Some("image_url") {
            let message = format!("`{at}` is an image, and only text is judged");
            return Err(ApiError::field(&at, message).coded("unsupported_parameter"));
        }
        let Part::Text { text } = read(&at, part)?;
        Ok(text)
    });
    Ok(vec![parts.collect::<Result<Vec<_>>>()?.join("\n")])
}

/// Returns the result of one text. A category that the model does not have is not flagged, and
/// applies to no type of input.
fn result(scores: &JudgeScores, settings: &Model) -> Value {
    let mut flagged = false;
    let [mut flags, mut numbers, mut types] = [(); 3].map(|()| Map::new());
    let unknown = CATEGORIES.into_iter().filter(|category| !scores.0.contains_key(*category));
    for category in unknown {
        flags.insert(category.into(), false.into());
        numbers.insert(category.into(), 0.0.into());
        types.insert(category.into(), json!([]));
    }
    for (category, score) in &scores.0 {
        let is_flagged = *score >= settings.threshold(category);
        flagged |= is_flagged;
        flags.insert(category.clone(), is_flagged.into());
        numbers.insert(category.clone(), (*score).into());
        types.insert(category.clone(), json!(["text"]));
    }
    json!({
        "flagged": flagged, "categories": flags, "category_scores": numbers,
        "category_applied_input_types": types
    })
}

#[cfg(test)]
mod tests {
    use super::{CATEGORIES, result, texts};
    use crate::catalog::Model;
    use serde_json::{Value, json};

    #[test]
    fn an_input_is_a_text_or_texts_or_the_parts_of_one() {
        assert_eq!(texts(json!("a")).unwrap(), ["a"]);
        assert_eq!(texts(json!(["a", ""])).unwrap(), ["a", ""]);
        let part = |text: &str| json!({ "type": "text", "text": text });
        assert_eq!(texts(json!([part("a"), part("b")])).unwrap(), ["a\nb"]);
    }

    #[track_caller]
    fn refused(input: Value, param: &str) {
        let error = texts(input).unwrap_err();
        assert_eq!(error.json()["error"]["param"], param, "{}", error.message());
    }

    #[test]
    fn an_input_of_another_shape_is_refused_by_its_place() {
        for odd in [json!(1), json!({}), json!([]), json!(vec!["a"; 2049])] {
            refused(odd, "input");
        }
        let part = json!({ "type": "text", "text": "a" });
        let image = json!({ "type": "image_url", "image_url": { "url": "https://x.example" } });
        refused(json!([part, image]), "input[1]");
        refused(json!(["a", part]), "input[0]");
        refused(json!([part, { "type": "text", "text": "a", "x": 1 }]), "input[1]");
        refused(json!([part, { "type": "audio" }]), "input[1]");
    }

    #[test]
    fn a_category_is_flagged_from_its_threshold_on_and_an_absent_one_is_not() {
        let thresholds = [("hate".to_owned(), 0.75)].into();
        let model = Model { thresholds, ..Model::default() };
        let scores = [("hate", 0.7), ("violence", 0.5), ("spam", 0.49)].into_iter().collect();
        let found = result(&scores, &model);
        let flagged = |category: &str| found["categories"][category].as_bool().unwrap();
        assert!(!flagged("hate") && flagged("violence") && !flagged("spam") && !flagged("sexual"));
        assert_eq!(found["flagged"], true);
        assert_eq!(found["category_scores"]["hate"], 0.7);
        let types = &found["category_applied_input_types"];
        assert_eq!((&types["spam"], &types["sexual"]), (&json!(["text"]), &json!([])));
        for object in ["categories", "category_scores", "category_applied_input_types"] {
            for category in CATEGORIES {
                assert!(found[object].get(category).is_some(), "{object} {category}");
            }
            assert_eq!(found[object].as_object().unwrap().len(), 14);
        }
        let calm = [("hate", 0.74)].into_iter().collect();
        assert_eq!(result(&calm, &model)["flagged"], false);
    }
}
