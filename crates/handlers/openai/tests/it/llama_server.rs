//! A scripted llama-server whose tokens are bytes.

use std::sync::Arc;

use nsbridge_handler::{Error, FinishReason, Models, TextPiece, testing};
use nsbridge_openai::{OpenAi, Options};
use nsbridge_testkit::http::{Answer, Seen, Server};
use serde_json::{Value, json};
use tokio::task::block_in_place;

const CARD: &str = r#"{"data":[{"id":"m","owned_by":"llamacpp"}]}"#;
const PROPS: &str = r#"{"default_generation_settings":{"n_ctx":1000}}"#;

fn body(seen: &Seen) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}

fn text_of(tokens: &Value) -> String {
    let bytes = tokens.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u8);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// Starts a server whose replies have these events.
async fn loaded(events: &[Value]) -> (Server, Arc<OpenAi>) {
    let reply: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    let server = Server::start(move |seen| match seen.line.as_str() {
        "GET /v1/models" => Answer::new(200, CARD),
        "GET /props" => Answer::new(200, PROPS),
        "POST /tokenize" => {
            let tokens = body(seen)["content"].as_str().unwrap().as_bytes().to_vec();
            Answer::new(200, &json!({ "tokens": tokens }).to_string())
        }
        "POST /detokenize" => {
            let text = text_of(&body(seen)["tokens"]);
            Answer::new(200, &json!({ "content": text }).to_string())
        }
        "POST /completion" => Answer::new(200, &reply),
        _ => Answer::new(404, ""),
    });
    let server = server.await.unwrap();
    let options = Options::new(server.url(""));
    let handler = block_in_place(|| testing::load(options, Models::default())).unwrap();
    (server, handler)
}

fn event(content: &str, tokens: &[u32], predicted: u64) -> Value {
    json!({ "content": content, "tokens": tokens, "tokens_predicted": predicted })
}

fn end(predicted: u64) -> Value {
    json!({ "content": "", "stop": true, "stop_type": "eos", "tokens_predicted": predicted })
}

fn said(pieces: &[TextPiece]) -> Vec<(u32, &str)> {
    pieces.iter().map(|piece| (piece.token, piece.text.as_str())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_told_ends_no_reply() {
    let events = [event("é", &[169], 2), event("!", &[33], 3), event("", &[4], 4), end(4)];
    let (_server, handler) = loaded(&events).await;
    let input = json!({ "prompt": "a", "max_tokens": 9, "stop_token_ids": [0] });
    let answer = block_in_place(|| testing::answer(&handler, &input, 1, &[]));
    let (pieces, finish) = answer.unwrap();
    assert_eq!(said(&pieces), [(0, ""), (169, "é"), (33, "!"), (4, "")]);
    assert_eq!(finish.reason, FinishReason::Stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_with_a_token_that_is_not_told_starts_over() {
    let events = [event("b", &[98], 1), event("é", &[169], 3), end(4)];
    let (server, handler) = loaded(&events).await;
    let input = json!({ "prompt": "a", "max_tokens": 9, "stop_token_ids": [7] });
    let ask = |known: &[TextPiece]| {
        block_in_place(|| testing::answer(&handler, &input, 1, known)).unwrap().0
    };
    let whole = ask(&[]);
    assert_eq!(said(&whole), [(98, "b"), (0, ""), (169, "é"), (0, "")]);
    for known in [2, 3, 4] {
        assert_eq!(said(&ask(&whole[..known])), said(&whole), "{known}");
        let seen = server.seen();
        let mut asked = seen.iter().filter(|seen| seen.line == "POST /completion");
        assert_eq!(asked.clone().count(), known, "each attempt asks the server");
        assert!(asked.all(|seen| body(seen)["prompt"] == json!([97])), "for a whole reply");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_counts_tokens_which_cannot_be_is_not_believed() {
    for predicted in [1000, 1_000_000_000_000, u64::MAX] {
        let (_server, handler) = loaded(&[event("a", &[97], predicted), end(predicted)]).await;
        let input = json!({ "prompt": "a", "max_tokens": 9 });
        let error = block_in_place(|| testing::answer(&handler, &input, 1, &[])).unwrap_err();
        assert!(matches!(&error, Error::Retry(_)), "{error}");
        assert!(error.to_string().contains("a reply that cannot be read"), "{error}");
    }
}
