//! Moderations and decisions.

use serde_json::{Value, json};

use crate::judge::score;
use crate::place::Place;

const MODERATIONS: &str = "/v1/moderations";
const DECISIONS: &str = "/v1/decisions";

fn question(kind: &str, field: &str, entries: &Value) -> Value {
    json!({ "type": kind, "name": kind, "instructions": "Which?", field: entries })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_are_scored_and_flagged_from_their_thresholds_on() {
    let place = Place::judging("thresholds = { hate = 0.9, spam = 0.25 }").await;
    let texts = ["hat", "hate", "xyz", "p"];
    let body = json!({ "model": "judge", "input": texts });
    let answer = place.post(MODERATIONS, &body, &[]).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    assert!(answer["id"].as_str().unwrap().starts_with("modr-"), "{answer}");
    assert_eq!(answer["model"], "judge");
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), texts.len());
    for (text, result) in texts.iter().zip(results) {
        let is = |category: &str, threshold: f64| {
            let expected = score(text, category);
            assert_eq!(result["category_scores"][category], expected, "{text} {category}");
            assert_eq!(result["categories"][category], expected >= threshold, "{text} {category}");
            expected >= threshold
        };
        let flagged = [is("hate", 0.9), is("spam", 0.25), is("violence", 0.5)];
        assert_eq!(result["flagged"], flagged.contains(&true), "{text}");
        assert_eq!(result["categories"]["sexual/minors"], false);
    }
    let flagged: Vec<&Value> = results.iter().map(|result| &result["flagged"]).collect();
    assert_eq!(flagged, [&json!(true), &json!(true), &json!(false), &json!(true)]);
    // The parts of one text are one text; the only judge and its aliases need no name.
    let parts = json!([{ "type": "text", "text": "ha" }, { "type": "text", "text": "te" }]);
    let of_parts = place.post(MODERATIONS, &json!({ "input": parts }), &[]).await.json();
    assert_eq!(of_parts["results"][0]["category_scores"]["hate"], 1.0);
    let alias = json!({ "input": "hate", "model": "omni-moderation-latest" });
    let of_alias = place.post(MODERATIONS, &alias, &[]).await.json();
    assert_eq!(of_alias["results"].as_array().unwrap().len(), 1);
    let measured = place.measured().await;
    let count = "gen_ai_client_operation_duration_seconds_count";
    let series = format!("{count}{{model=\"judge\",operation=\"moderation\"}} 6");
    assert!(measured.contains(&series), "{measured}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_are_answered_in_their_order() {
    let place = Place::judging("").await;
    let choices = json!([{ "value": "ab" }, { "value": true, "description": "yes" }]);
    let levels = json!([{ "label": "xy" }, { "label": "ab" }, { "label": "ac" }]);
    let questions = json!([
        { "type": "predicate", "instructions": "abcd" },
        question("choice", "choices", &choices),
        question("score", "levels", &levels),
        question("score", "levels", &json!([{ "label": "x" }, { "label": "y" }])),
    ]);
    let body = json!({
        "model": "judge", "input": [{ "role": "user", "content": "ab" }], "questions": questions,
        "safety_identifier": "u", "prompt_cache_key": null
    });
    let answer = place.post(DECISIONS, &body, &[]).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    let expected = json!([
        { "type": "predicate", "name": null, "probability": 0.5 },
        { "type": "choice", "name": "choice", "choice": "ab", "confidence": 1.0, "probabilities": [
            { "value": "ab", "probability": 1.0 }, { "value": true, "probability": 0.0 }
        ] },
        { "type": "score", "name": "score", "score": 4.0 / 3.0, "confidence": 0.5,
          "probabilities": [
            { "label": "xy", "value": 0, "probability": 0.0 },
            { "label": "ab", "value": 1, "probability": 2.0 / 3.0 },
            { "label": "ac", "value": 2, "probability": 1.0 / 3.0 }
        ] },
        { "type": "refusal", "name": "score" }
    ]);
    for (index, expected) in expected.as_array().unwrap().iter().enumerate() {
        close(&answer["answers"][index], expected);
    }
    assert_eq!(answer["answers"].as_array().unwrap().len(), 4);
    assert_eq!((&answer["model"], &answer["usage"]["total_tokens"]), (&json!("judge"), &json!(0)));
}

/// Compares two values, whose numbers may differ in their last digits.
#[track_caller]
fn close(one: &Value, other: &Value) {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) => {
            assert!((a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-9, "{one} {other}");
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{one} {other}");
            a.iter().zip(b).for_each(|(one, other)| close(one, other));
        }
        (Value::Object(a), Value::Object(b)) => {
            assert_eq!(a.len(), b.len(), "{one} {other}");
            a.iter().for_each(|(name, value)| close(value, &b[name]));
        }
        _ => assert_eq!(one, other),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_judged_is_refused_and_counts_for_the_limits() {
    let place = Place::judging("").await;
    let image = json!([{ "type": "image_url", "image_url": { "url": "data:," } }]);
    let predicate = json!([{ "type": "predicate", "instructions": "x" }]);
    for (path, body, status, param) in [
        (MODERATIONS, json!({ "input": image }), 400, json!("input[0]")),
        (MODERATIONS, json!({ "input": ["a", ""] }), 400, json!("input[1]")),
        (MODERATIONS, json!({ "input": "a", "stream": true }), 400, json!("stream")),
        (MODERATIONS, json!({ "input": "a", "model": "words" }), 400, json!("model")),
        (MODERATIONS, json!({ "input": "a", "model": "none" }), 404, json!("model")),
        (MODERATIONS, json!({ "input": "no judge" }), 500, Value::Null),
        (
            DECISIONS,
            json!({ "input": "a", "questions": [{ "type": "rank" }] }),
            400,
            json!("questions[0]"),
        ),
        (DECISIONS, json!({ "input": "", "questions": predicate }), 400, json!("questions[0]")),
        ("/v1/completions", json!({ "prompt": "a", "model": "judge" }), 400, json!("model")),
        ("/v1/embeddings", json!({ "input": "a", "model": "judge" }), 400, json!("model")),
        ("/tokenize", json!({ "prompt": "a", "model": "judge" }), 400, json!("model")),
    ] {
        let answer = place.post(path, &body, &[]).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (status, &param), "{body}");
    }
    let odd = place.post(MODERATIONS, &json!({ "input": "no judge" }), &[]).await;
    assert_eq!(odd.code(), "bad_reply");
    // Each request counts once, however many texts it has.
    for left in ["2", "1", "0"] {
        let body = json!({ "input": ["a", "b", "c"] });
        let answer = place.post_as(&place.other, MODERATIONS, &body).await;
        assert_eq!(
            (answer.status, answer.header("x-ratelimit-remaining-requests")),
            (200, Some(left))
        );
    }
    let over = place.post_as(&place.other, MODERATIONS, &json!({ "input": "a" })).await;
    assert_eq!((over.status, over.code().as_str()), (429, "rate_limit_exceeded"));
    let log = crate::place::logged();
    assert!(log.contains("/v1/moderations") && !log.contains("no judge"), "{log}");
}
