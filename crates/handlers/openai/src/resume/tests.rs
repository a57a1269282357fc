//! Tests of what a reply is continued by.

use nsbridge_handler::{TextInput, TextPiece};
use serde_json::{Value, json};

use super::continuation;

fn input(fields: &Value) -> TextInput {
    let mut input = json!({ "prompt": "a" });
    for (name, value) in fields.as_object().unwrap() {
        input[name] = value.clone();
    }
    serde_json::from_str(&input.to_string()).unwrap()
}

fn piece(token: u32, index: u32) -> TextPiece {
    TextPiece { index, ..TextPiece::new(token, "x") }
}

fn tokens(input: &TextInput, tells: bool, pieces: &[TextPiece]) -> Option<Vec<Vec<u32>>> {
    let known = continuation(input, tells, pieces)?;
    let of = |pieces: Vec<&TextPiece>| pieces.iter().map(|piece| piece.token).collect();
    Some(known.into_iter().map(of).collect())
}

#[test]
fn plain_text_continues_and_what_has_a_state_starts_over() {
    let pieces = [piece(5, 0), piece(6, 0)];
    let schema = json!({ "type": "json_schema", "json_schema": { "schema": {} } });
    let calls = json!({ "begin": "<t>", "end": "</t>", "schema": {} });
    for (fields, tells, continues) in [
        (json!({}), true, true),
        (json!({}), false, false),
        (json!({ "temperature": 0.5, "stop": ["x"], "min_tokens": 5 }), true, true),
        (json!({ "repetition_penalty": 1.5 }), true, true),
        (json!({ "frequency_penalty": 0.5 }), true, false),
        (json!({ "presence_penalty": -0.5 }), true, false),
        (json!({ "frequency_penalty": 0.0, "presence_penalty": 0.0 }), true, true),
        (json!({ "response_format": { "type": "text" } }), true, true),
        (json!({ "response_format": { "type": "json_object" } }), true, false),
        (json!({ "response_format": { "type": "regex", "regex": "a" } }), true, false),
        (json!({ "response_format": schema }), true, false),
        (json!({ "response_format": { "type": "tool_calls", "tool_calls": calls } }), true, false),
    ] {
        let input = input(&fields);
        let expected = continues.then(|| vec![vec![5, 6]]);
        assert_eq!(tokens(&input, tells, &pieces), expected, "{fields} {tells}");
    }
}

#[test]
fn each_of_several_replies_has_its_own_pieces() {
    let input = input(&json!({ "n": 3 }));
    let pieces = [piece(5, 0), piece(6, 1), piece(7, 2), piece(8, 0), piece(9, 2)];
    assert_eq!(tokens(&input, true, &pieces), Some(vec![vec![5, 8], vec![6], vec![7, 9]]));
    assert_eq!(tokens(&input, true, &[piece(5, 3)]), None, "there is no fourth reply");
}

#[test]
fn pieces_of_the_prompt_are_not_of_the_reply() {
    let prompt = TextPiece { prompt: true, ..piece(4, 0) };
    let input = input(&json!({ "echo": true }));
    let known = tokens(&input, true, &[prompt.clone(), prompt.clone(), piece(5, 0)]);
    assert_eq!(known, Some(vec![vec![5]]));
    assert_eq!(tokens(&input, true, &[prompt]), Some(vec![vec![]]));
    assert_eq!(tokens(&input, true, &[]), None, "nothing to continue after");
}
