//! Tests of replies with a response format: their ends, other parameters, and refused formats.

use std::sync::Arc;

use nsbridge_handler::testing::{answer, check};
use nsbridge_handler::{AsyncHandler, Error, Finish, FinishReason, TextPiece};
use nsbridge_llama::{Llama, Options};
use serde_json::{Value, json};

use crate::replies::{check_refused, uncached};
use crate::tiny::{EOS, Tiny};

fn literate() -> Arc<Llama> {
    Tiny::literate().load(Options::default()).unwrap()
}

fn regex(regex: &str) -> Value {
    json!({ "prompt": "x", "response_format": { "type": "regex", "regex": regex } })
}

/// Returns the request with additional fields.
fn with(mut input: Value, more: &Value) -> Value {
    for (field, value) in more.as_object().unwrap() {
        input[field] = value.clone();
    }
    input
}

fn reply(llama: &Arc<Llama>, input: &Value, seed: u64) -> (String, Vec<TextPiece>, Finish) {
    let (pieces, finish) = answer(llama, input, seed, &[]).unwrap();
    assert_eq!(finish.usage.output_tokens, pieces.len() as u64);
    (pieces.iter().map(|piece| piece.text.as_str()).collect(), pieces, finish)
}

fn token(byte: u8) -> u32 {
    u32::from(byte)
}

#[test]
fn what_is_said_matches_the_expression_as_a_whole() {
    let llama = literate();
    for expression in [
        "[a-z]{3,8}",
        "(灯台|朝|の){1,4}!",
        r"\d{4}-(0[1-9]|1[0-2])-[0-3]\d",
        "(true|false|null)(, (true|false|null)){0,3}",
        r"(?i)(yes|no), [^\n]{1,5}\.",
        "[あ-ん]{1,6}",
        ".{1,6}",
        "😀{2}|[😀-😎]{3}",
    ] {
        let matches = regex::Regex::new(&format!("^(?:{expression})$")).unwrap();
        for seed in 0..20 {
            for temperature in [0.0, 1.0, 3.0] {
                let input = with(regex(expression), &json!({ "temperature": temperature }));
                let (text, _, finish) = reply(&llama, &input, seed);
                assert!(matches.is_match(&text), "{expression}: {text}");
                assert_eq!(finish.reason, FinishReason::Stop);
            }
        }
    }
}

#[test]
fn any_json_object_is_one_without_blanks() {
    let llama = literate();
    let (mut whole, mut cut) = (0, 0);
    for seed in 0..60 {
        // Without this bias, an uncertain model would open more brackets than it closes.
        let bias = json!({ "125": 4.0, "93": 4.0, "34": 2.0 });
        let more = json!({ "prompt": "x", "max_tokens": 300, "logit_bias": bias, "response_format": { "type": "json_object" } });
        let (text, _, finish) = reply(&llama, &more, seed);
        let object = serde_json::from_str::<Value>(&text);
        if finish.reason == FinishReason::Stop {
            assert!(object.is_ok_and(|object| object.is_object()), "{text}");
            whole += 1;
        } else {
            assert!(object.is_err() && text.starts_with('{'), "{text}");
            cut += 1;
        }
        // Whitespace only occurs in strings, so the first character in an object is none.
        assert!(!text.starts_with("{ ") && !text.starts_with("{\n"), "{text}");
    }
    assert!(whole > 20 && whole + cut == 60, "{whole} and {cut}");
}

#[test]
fn any_text_is_what_it_is_without_a_format() {
    let llama = literate();
    let plain = json!({ "prompt": "x", "max_tokens": 30 });
    let text = with(plain.clone(), &json!({ "response_format": { "type": "text" } }));
    assert_eq!(answer(&llama, &text, 3, &[]).unwrap(), answer(&llama, &plain, 3, &[]).unwrap());
}

#[test]
fn a_text_that_is_cut_is_the_beginning_of_the_whole_one() {
    let llama = literate();
    let input = regex(r#"\{"name":"[a-zの]{12}"\}"#);
    let (whole, pieces, _) = reply(&llama, &input, 5);
    for most in 1..pieces.len() {
        let (text, _, finish) =
            reply(&llama, &with(input.clone(), &json!({ "max_tokens": most })), 5);
        assert_eq!(finish.reason, FinishReason::Length);
        assert!(whole.starts_with(text.trim_end_matches('\u{fffd}')), "{text}");
    }
    // Exactly as many tokens as the reply needs are enough.
    let (text, _, finish) = reply(&llama, &with(input, &json!({ "max_tokens": pieces.len() })), 5);
    assert_eq!((text, finish.reason), (whole, FinishReason::Stop));
}

#[test]
fn a_text_that_nothing_may_follow_ends_without_an_end_token() {
    let llama = literate();
    let never = json!({ "logit_bias": { "257": -100.0 } });
    let soon = json!({ "logit_bias": { "257": 100.0 } });
    let (text, pieces, finish) = reply(&llama, &with(regex("[a-c]{3,6}"), &never), 1);
    assert_eq!((text.len(), finish.reason), (6, FinishReason::Stop));
    assert_ne!(pieces.last().unwrap().token, EOS);
    assert!(!pieces.last().unwrap().text.is_empty());
    // Where the text may end or continue, the model decides.
    let (text, pieces, finish) = reply(&llama, &with(regex("[a-c]{3,6}"), &soon), 1);
    assert_eq!((text.len(), finish.reason), (3, FinishReason::Stop));
    assert_eq!(pieces.last().unwrap().token, EOS);
    // A model without end tokens writes as much as the format allows.
    let endless = Tiny::literate().without_end();
    let endless = endless.load(Options::default()).unwrap();
    assert_eq!(reply(&endless, &regex("[a-c]{3,6}"), 1).0.len(), 6);
    let cut = reply(&endless, &with(regex("[a-c]+"), &json!({ "max_tokens": 20 })), 1);
    assert_eq!((cut.1.len(), cut.2.reason), (20, FinishReason::Length));
}

#[test]
fn other_fields_choose_among_what_the_format_allows() {
    let llama = literate();
    let ask = |expression: &str, more: &Value| reply(&llama, &with(regex(expression), more), 2);
    let soon = json!({ "257": 100.0 });
    // The minimum length holds, if the format allows that much text.
    let (text, pieces, _) = ask("[a-c]{1,6}", &json!({ "min_tokens": 4, "logit_bias": soon }));
    assert_eq!((text.len(), pieces.len()), (4, 5));
    let (text, _, finish) = ask("[a-c]{1,6}", &json!({ "min_tokens": 50 }));
    assert_eq!((text.len(), finish.reason), (6, FinishReason::Stop));
    // Without its end token, the model writes as much as the format allows.
    let (text, _, finish) = ask("[a-c]{1,6}", &json!({ "ignore_eos": true, "logit_bias": soon }));
    assert_eq!((text.len(), finish.reason), (6, FinishReason::Stop));
    let more = json!({ "ignore_eos": true, "logit_bias": soon, "max_tokens": 30 });
    let (text, _, finish) = ask("[a-c]+", &more);
    assert_eq!((text.len(), finish.reason), (30, FinishReason::Length));
    // A stop sequence ends the text, complete or not.
    let (text, _, finish) = ask("a{3}bc{3}", &json!({ "stop": ["b"] }));
    assert_eq!((text.as_str(), finish.reason), ("aaa", FinishReason::StopText));
    // A stop token ends the reply, so it is no longer a letter of the text.
    let (a, b) = (token(b'a'), token(b'b'));
    let more = json!({ "stop_token_ids": [b], "logit_bias": { "98": 100.0 } });
    let (text, pieces, finish) = ask("a[ab]{0,9}", &more);
    assert_eq!((text.as_str(), finish.reason), ("a", FinishReason::Stop));
    assert_eq!(pieces.iter().map(|piece| piece.token).collect::<Vec<_>>(), [a, b]);
    // Bans, cuts and penalties.
    for seed in 0..20 {
        let more = json!({
            "bad_token_ids": [a], "bad_token_sequences": [[b, b]], "top_k": 3, "top_p": 0.9,
            "repetition_penalty": 1.3, "frequency_penalty": 0.5, "logprobs": true, "top_logprobs": 2
        });
        let (text, pieces, _) = reply(&llama, &with(regex("[abc]{8}"), &more), seed);
        assert!(text.len() == 8 && !text.contains('a') && !text.contains("bb"), "{text}");
        assert!(
            pieces.iter().all(|piece| piece.logprob.is_some() && piece.top_logprobs.len() == 2)
        );
    }
    // One token is left, the likeliest that is allowed.
    assert_eq!(ask("[abc]{8}", &json!({ "top_k": 1 })).0.len(), 8);
}

#[test]
fn fields_that_leave_no_token_are_named_with_the_format() {
    let llama = literate();
    let refused = |expression: &str, more: &Value, words: &[&str]| {
        let words: Vec<&str> = ["`response_format`"].iter().chain(words).copied().collect();
        check_refused(&llama, &with(regex(expression), more), &words);
    };
    let (a, b, c) = (token(b'a'), token(b'b'), token(b'c'));
    refused("[ab]c", &json!({ "bad_token_ids": [a, b] }), &["`bad_token_ids`"]);
    refused("[ab]c", &json!({ "bad_token_ids": [c] }), &["`bad_token_ids`"]);
    let sequences = json!({ "bad_token_sequences": [[a, c], [b, c]] });
    refused("[ab]c", &sequences, &["`bad_token_sequences`"]);
    refused("[ab]c", &json!({ "stop_token_ids": [c] }), &["`stop_token_ids`"]);
    let never = json!({ "bad_token_ids": [EOS, b], "bad_token_sequences": [[a, a]] });
    refused("a+b?", &never, &["`bad_token_ids` and `bad_token_sequences`"]);
    // A conflict at the first token is found before the model runs: the logits of this model are
    // NaN.
    let tiny = Tiny::literate();
    tiny.break_weights();
    let broken = tiny.load(Options::default()).unwrap();
    let first = with(regex("[ab]c"), &json!({ "bad_token_ids": [a, b] }));
    check_refused(&broken, &first, &["`bad_token_ids`", "`response_format`"]);
    assert!(matches!(answer(&broken, &regex("[ab]c"), 1, &[]), Err(Error::Retry(_))));
}

#[test]
fn a_format_that_cannot_be_held_to_is_refused_before_the_first_token() {
    let llama = literate();
    let format = |format: Value| json!({ "prompt": "x", "response_format": format });
    let schema = |schema: Value| {
        format(json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } }))
    };
    check_refused(&llama, &regex("a("), &["`response_format.regex`"]);
    let field = "`response_format.json_schema.schema`";
    check_refused(&llama, &schema(json!({ "uniqueItems": true })), &[field, "uniqueItems"]);
    check_refused(&llama, &schema(json!([1])), &[field]);
    check_refused(&llama, &format(json!({ "type": "xml" })), &["xml"]);
    check_refused(&llama, &format(json!({ "type": "json_schema" })), &["json_schema"]);
    // A format without these faults is still accepted.
    assert_eq!(reply(&llama, &regex("[ab]{4}"), 1).0.len(), 4);
}

#[test]
fn a_reply_in_a_format_resumes_as_if_nothing_had_happened() {
    let llama = literate();
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "n"],
        "properties": { "name": { "type": "string", "maxLength": 9 }, "n": { "type": "integer", "minimum": -99, "maximum": 999 } }
    });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
    for (seed, temperature) in [(1, 0.0), (2, 1.0), (3, 1.0)] {
        let input = json!({ "prompt": "x", "temperature": temperature, "response_format": format, "presence_penalty": 0.5 });
        let whole = answer(&llama, &input, seed, &[]).unwrap();
        for at in 0..=whole.0.len() {
            let again = answer(&llama, &input, seed, &whole.0[..at]).unwrap();
            assert_eq!(uncached(again), uncached(whole.clone()), "at {at}");
        }
    }
}

#[test]
fn pieces_that_the_format_does_not_allow_are_no_beginning() {
    let llama = literate();
    let piece = |byte| TextPiece { token: token(byte), text: "?".into(), ..TextPiece::default() };
    let resume = |pieces: &[u8]| {
        let pieces: Vec<TextPiece> = pieces.iter().map(|&byte| piece(byte)).collect();
        answer(&llama, &regex("ab{2}"), 1, &pieces)
    };
    for wrong in ["b", "aa", "abc", "abbb"] {
        match resume(wrong.as_bytes()) {
            Err(Error::BadInput(why)) => {
                assert!(why.contains("not of this model's making"), "{why}");
            }
            other => panic!("{wrong}: {other:?}"),
        }
    }
    let end = [TextPiece { token: EOS, ..TextPiece::default() }];
    assert!(matches!(answer(&llama, &regex("ab{2}"), 1, &end), Err(Error::BadInput(_))));
    assert_eq!(resume(b"ab").unwrap().1.reason, FinishReason::Stop);
    assert_eq!(resume(b"abb").unwrap().1.reason, FinishReason::Stop);
}

#[test]
fn a_handler_that_is_held_to_a_format_keeps_its_contract() {
    let input = with(regex(r#"\[("[a-zあ-ん]{0,4}",){6}1\]"#), &json!({ "temperature": 0.8 }));
    assert_eq!(check(&literate(), &input), Ok(()));
}

#[test]
fn special_tokens_and_added_ones_are_no_part_of_a_text() {
    let tiny = Tiny::literate();
    let path = tiny.path().join("tokenizer.json");
    let mut tokenizer: Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    // "true" and "{\"" become added tokens, one special and one not.
    let added = |id: u32, content: &str, special| {
        json!({ "id": id, "content": content, "special": special, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false })
    };
    let tokens = tokenizer["added_tokens"].as_array_mut().unwrap();
    tokens.push(added(258, "{\"", false));
    tokens.push(added(267, "true", true));
    let llama = tiny.with("tokenizer.json", &tokenizer).load(Options::default()).unwrap();
    let bias = json!({ "logit_bias": { "258": 100.0, "267": 100.0, "256": 100.0 } });
    let (text, pieces, _) = reply(&llama, &with(regex(r#"\{"(true|a<s>)""#), &bias), 1);
    assert!(text.starts_with("{\""), "{text}");
    assert!(pieces.iter().all(|piece| ![256, 258, 267].contains(&piece.token)), "{pieces:?}");
}

#[test]
fn a_worker_that_was_never_asked_for_a_format_answers_as_before() {
    let llama = literate();
    let input = json!({ "prompt": "x", "max_tokens": 20 });
    let before = answer(&llama, &input, 1, &[]).unwrap();
    reply(&llama, &regex("[ab]{3}"), 1);
    assert_eq!(uncached(answer(&llama, &input, 1, &[]).unwrap()), uncached(before));
    assert!(AsyncHandler::fingerprint(&*llama).is_some());
}
