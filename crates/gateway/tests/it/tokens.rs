//! `/tokenize` and `/detokenize`, where each character is a token.

use serde_json::{Value, json};

use crate::place::Place;

#[track_caller]
fn check(told: &Value, expected: &Value) {
    assert_eq!(told, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_becomes_tokens_and_tokens_a_text() {
    let place = Place::new().await;
    let made = place.post("/tokenize", &json!({ "model": "words", "prompt": "bär" }), &[]).await;
    let expected =
        json!({ "count": 3, "max_model_len": 512, "tokens": [98, 228, 114], "token_strs": null });
    check(&made.json(), &expected);
    let chat = json!({
        "model": "words", "messages": [{ "role": "user", "content": "bär" }],
        "add_generation_prompt": true, "add_special_tokens": false, "return_token_strs": true
    });
    let made = place.post("/v1/tokenize", &chat, &[]).await.json();
    assert_eq!((&made["count"], &made["token_strs"]), (&json!(3), &json!(["b", "ä", "r"])));
    let ids = json!({ "model": "words", "tokens": [98, 228, 114] });
    check(&place.post("/detokenize", &ids, &[]).await.json(), &json!({ "prompt": "bär" }));
    let none = json!({ "model": "words", "tokens": [] });
    check(&place.post("/v1/detokenize", &none, &[]).await.json(), &json!({ "prompt": "" }));
    assert_eq!(place.post_as("", "/tokenize", &json!({})).await.status, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_served_is_refused_by_name() {
    let place = Place::new().await;
    let user = json!([{ "role": "user", "content": "x" }]);
    let cases = [
        (json!({ "prompt": "x", "add_special_tokens": false }), "add_special_tokens"),
        (json!({ "messages": user, "add_special_tokens": true }), "add_special_tokens"),
        (json!({ "messages": user, "prompt": "x" }), "prompt"),
        (json!({}), "prompt"),
        (json!({ "prompt": ["x"] }), "prompt"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "prompt": "x", "add_generation_prompt": true }), "add_generation_prompt"),
        (json!({ "prompt": "x", "truncate": 1 }), "truncate"),
    ];
    for (mut body, param) in cases {
        body["model"] = "words".into();
        let answer = place.post("/tokenize", &body, &[]).await;
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
    }
    let negative = json!({ "model": "words", "tokens": [-1] });
    let answer = place.post("/detokenize", &negative, &[]).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("tokens")));
    let other = json!({ "model": "other", "tokens": [1] });
    assert_eq!(place.post("/detokenize", &other, &[]).await.code(), "model_not_found");
}
