//! Tests of replies of a tiny model with random weights. Its tokens are bytes, so its text is
//! noise.

use std::sync::Arc;

use nsbridge_handler::erased::{AnyHandler, Call};
use nsbridge_handler::testing::{self, answer, check};
use nsbridge_handler::transcript::Reader;
use nsbridge_handler::{AsyncHandler, Error, Finish, FinishReason, Stop, TextPiece, Usage};
use nsbridge_llama::{Llama, Options};
use serde_json::{Value, json};

use crate::tiny::{EOS, Tiny};

fn llama() -> Arc<Llama> {
    Tiny::new().load(Options::default()).unwrap()
}

fn reply(llama: &Arc<Llama>, input: &Value) -> (Vec<TextPiece>, Finish) {
    answer(llama, input, 7, &[]).unwrap()
}

/// Removes the counts of cached and drafted tokens, which are no part of the reply.
pub(crate) fn uncached((pieces, finish): (Vec<TextPiece>, Finish)) -> (Vec<TextPiece>, Finish) {
    let Usage { input_tokens, output_tokens, .. } = finish.usage;
    (pieces, finish.with_usage(Usage::new(input_tokens, output_tokens)))
}

fn text(pieces: &[TextPiece]) -> String {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}

pub(crate) fn call(input: &Value) -> (Call, Reader) {
    testing::call(input, 7)
}

/// Checks that a request is refused with a sentence that has these words and quotes no input.
#[track_caller]
pub(crate) fn check_refused(llama: &Arc<Llama>, input: &Value, words: &[&str]) {
    check_bad_input(answer(llama, input, 7, &[]), words);
}

/// Checks that a result is a refusal with a sentence that has these words and quotes no input.
#[track_caller]
pub(crate) fn check_bad_input<T: std::fmt::Debug>(result: Result<T, Error>, words: &[&str]) {
    match result {
        Err(Error::BadInput(why)) => {
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
            assert!(!why.contains("canary"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_handler_keeps_its_contract() {
    let llama = llama();
    for temperature in [0.0, 0.8] {
        let input = json!({ "prompt": "灯台", "temperature": temperature, "max_tokens": 24 });
        assert_eq!(check(&llama, &input), Ok(()));
    }
}

#[test]
fn a_resumed_reply_is_the_uninterrupted_one_wherever_it_broke() {
    let llama = Tiny::endless().load(Options::default()).unwrap();
    for temperature in [0.0, 0.8] {
        let input = json!({
            "prompt": "a long enough prompt, so that its products have many rows: 灯台守の朝",
            "temperature": temperature, "max_tokens": 40, "repetition_penalty": 1.2,
            "stop": ["never met"]
        });
        let whole = reply(&llama, &input);
        assert_eq!(whole.0.len(), 40);
        for at in 0..=40 {
            let again = answer(&llama, &input, 7, &whole.0[..at]).unwrap();
            assert_eq!(uncached(again), uncached(whole.clone()), "at {at}");
        }
    }
}

#[test]
fn a_prompt_that_begins_alike_is_computed_once_for_each_scope() {
    let llama = Tiny::endless().load(Options::default()).unwrap();
    let begin = "what a system prompt says, again and again, before each question: ".repeat(2);
    let ask = |end: &str| json!({ "prompt": format!("{begin}{end}"), "max_tokens": 4 });
    let cached = |scope: &str, end: &str| {
        let (mut call, _reader) = call(&ask(end));
        call.info.scope = scope.into();
        let finish = futures_executor::block_on(AnyHandler::call(&*llama, call)).unwrap();
        finish.usage.cached_tokens
    };
    assert_eq!(cached("one", "why"), 0);
    assert_eq!(cached("one", "who"), 128);
    assert_eq!(cached("other", "who"), 0);
    // Equal to the reply of a fresh worker.
    let fresh = Tiny::endless().load(Options::default()).unwrap();
    let alone = reply(&fresh, &ask("how"));
    for cached_tokens in [0, 128] {
        let after = reply(&llama, &ask("how"));
        assert_eq!(after.1.usage.cached_tokens, cached_tokens);
        assert_eq!(uncached(after), alone);
    }
}

#[test]
fn the_seed_decides_unless_the_temperature_is_zero() {
    let llama = llama();
    let with = |temperature: f64, seed| {
        let input = json!({ "prompt": "x", "temperature": temperature, "max_tokens": 12 });
        answer(&llama, &input, seed, &[]).unwrap().0
    };
    assert_ne!(with(0.8, 1), with(0.8, 2));
    assert_eq!(with(0.8, 1), with(0.8, 1));
    assert_eq!(with(0.0, 1), with(0.0, 2));
}

#[test]
fn the_end_token_is_the_last_piece_and_has_no_text() {
    let every_token: Vec<u32> = (0..=EOS).collect();
    let tiny = Tiny::new().with("generation_config.json", &json!({ "eos_token_id": every_token }));
    let llama = tiny.load(Options::default()).unwrap();
    let (pieces, finish) = reply(&llama, &json!({ "prompt": "x" }));
    assert_eq!((pieces.len(), text(&pieces).as_str()), (1, ""));
    assert_eq!(finish.reason, FinishReason::Stop);
    assert_eq!(finish.usage.output_tokens, 1);
}

#[test]
fn a_token_that_any_file_names_as_an_end_ends_a_reply() {
    let tiny = Tiny::new().with("generation_config.json", &json!({ "eos_token_id": [65] }));
    let path = tiny.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["eos_token_id"] = json!(66);
    // The tokenizer's own is `EOS`.
    let llama = tiny.with("config.json", &config).load(Options::default()).unwrap();
    for (token, reason) in [
        (65, FinishReason::Stop),
        (66, FinishReason::Stop),
        (EOS, FinishReason::Stop),
        (67, FinishReason::Length),
    ] {
        let mut input = json!({ "prompt": "x", "max_tokens": 3, "temperature": 0.0 });
        input["logit_bias"][token.to_string()] = json!(100.0);
        assert_eq!(reply(&llama, &input).1.reason, reason, "{token}");
    }
}

#[test]
fn a_reply_is_as_long_as_asked_or_as_there_is_room() {
    let tiny = Tiny::endless();
    let llama = tiny.load(Options::default()).unwrap();
    let (pieces, finish) = reply(&llama, &json!({ "prompt": "four", "max_tokens": 9 }));
    assert_eq!((pieces.len(), finish.reason), (9, FinishReason::Length));
    assert_eq!((finish.usage.input_tokens, finish.usage.output_tokens), (5, 9));
    // The context has 160 positions; the prompt has 5 tokens with its start token.
    for input in [json!({ "prompt": "four" }), json!({ "prompt": "four", "max_tokens": 500 })] {
        assert_eq!(reply(&llama, &input).0.len(), 155);
    }
    let small = tiny.load(Options { n_positions: Some(20), ..Options::default() }).unwrap();
    assert_eq!(reply(&small, &json!({ "prompt": "four" })).0.len(), 15);
    let capped = tiny.load(Options { max_tokens: Some(3), ..Options::default() }).unwrap();
    assert_eq!(reply(&capped, &json!({ "prompt": "four", "max_tokens": 9 })).0.len(), 3);
}

#[test]
fn a_stop_text_ends_the_reply_before_it() {
    let llama = Tiny::endless().load(Options::default()).unwrap();
    let input = |stop: &str| json!({ "prompt": "x", "max_tokens": 60, "stop": [stop] });
    let (pieces, _) = reply(&llama, &input("no such text"));
    let whole = text(&pieces);
    let stop: String = whole.chars().skip(8).take(3).collect();
    let (pieces, finish) = reply(&llama, &input(&stop));
    assert_eq!(text(&pieces), whole[..whole.find(&stop).unwrap()]);
    assert_eq!(finish.reason, FinishReason::StopText);
    // Text that only began like a stop sequence is emitted with the last token.
    let last = whole.chars().last().unwrap();
    assert_eq!(text(&reply(&llama, &input(&format!("{last}never"))).0), whole);
}

#[test]
fn pieces_are_whole_characters_and_every_token_has_one() {
    let llama = llama();
    let input = json!({ "prompt": "x", "max_tokens": 90, "temperature": 1.5 });
    let (pieces, finish) = reply(&llama, &input);
    assert_eq!(pieces.len() as u64, finish.usage.output_tokens);
    let bytes: Vec<u8> =
        pieces.iter().filter(|piece| piece.token < 256).map(|piece| piece.token as u8).collect();
    assert_eq!(text(&pieces), String::from_utf8_lossy(&bytes));
}

#[test]
fn bad_input_is_refused_in_words_that_do_not_quote_it() {
    let llama = llama();
    check_refused(&llama, &json!({}), &["`prompt`", "`messages`"]);
    let both = json!({ "prompt": "canary", "messages": [{ "role": "user", "content": "canary" }] });
    check_refused(&llama, &both, &["`prompt`", "`messages`"]);
    check_refused(&llama, &json!({ "prompt": "canary", "top_p": 0.0 }), &["`top_p`"]);
    check_refused(&llama, &json!({ "prompt": "canary", "max_tokens": 0 }), &["`max_tokens`"]);
    check_refused(&llama, &json!({ "prompt": "canary", "temprature": 1 }), &["temprature"]);
}

#[test]
fn a_prompt_that_leaves_no_room_is_refused_with_both_numbers_and_never_cut() {
    let tiny = Tiny::endless();
    let whole = tiny.load(Options::default()).unwrap();
    let small = tiny.load(Options { n_positions: Some(20), ..Options::default() }).unwrap();
    for (llama, context) in [(&whole, 160), (&small, 20)] {
        // With its start token, this fills the context to the last position.
        let full = "x".repeat(context - 1);
        let numbers = |tokens| [format!("{tokens} tokens"), format!("context of {context}")];
        let check = |input: &Value, tokens: usize| {
            let numbers = numbers(tokens);
            check_refused(llama, input, &numbers.each_ref().map(String::as_str));
        };
        check(&json!({ "prompt": full }), context);
        check(&json!({ "prompt": full, "max_tokens": 1 }), context);
        check(&json!({ "prompt": "canary ".repeat(100) }), 701);
        let chat = json!({ "messages": [{ "role": "user", "content": "canary ".repeat(100) }] });
        check(&chat, 707);
        let (pieces, finish) = reply(llama, &json!({ "prompt": full[1..] }));
        assert_eq!((pieces.len(), finish.reason), (1, FinishReason::Length));
        assert_eq!(finish.usage.input_tokens, context as u64 - 1);
    }
}

#[test]
fn pieces_that_another_model_made_are_refused() {
    let llama = llama();
    let foreign = TextPiece { token: 70_000, text: "x".into(), ..TextPiece::default() };
    let result = answer(&llama, &json!({ "prompt": "x" }), 7, &[foreign]);
    assert!(matches!(result, Err(Error::BadInput(_))));
}

#[test]
fn a_stop_is_seen_before_the_prompt_is_run_and_broken_weights_are_not_answered_with() {
    let tiny = Tiny::new();
    tiny.break_weights();
    let llama = tiny.load(Options::default()).unwrap();
    let input = json!({ "prompt": "x" });
    let result = answer(&llama, &input, 7, &[]);
    assert!(matches!(result, Err(Error::Retry(why)) if why.to_string().contains("logits")));
    let (call, reader) = call(&input);
    reader.stop(Stop::Cancelled);
    let result = futures_executor::block_on(AnyHandler::call(&*llama, call));
    assert!(matches!(result, Err(Error::Stopped(Stop::Cancelled))));
}

#[test]
fn a_chat_is_answered_through_the_template_and_refused_without_one() {
    let messages = json!([{ "role": "user", "content": "canary" }]);
    let chat = json!({ "messages": messages, "max_tokens": 4, "temperature": 0.0 });
    let raw = json!({ "prompt": "user:canary\n", "max_tokens": 4, "temperature": 0.0 });
    let tiny = Tiny::new();
    let llama = tiny.load(Options::default()).unwrap();
    assert_eq!(reply(&llama, &chat), reply(&llama, &raw));
    let tiny = tiny.with("tokenizer_config.json", &json!({}));
    check_refused(&tiny.load(Options::default()).unwrap(), &chat, &["chat template"]);
}

#[test]
fn the_fingerprint_is_of_the_files_and_of_the_options_that_change_text() {
    let tiny = Tiny::new();
    let print =
        |options: Options| AsyncHandler::fingerprint(&*tiny.load(options).unwrap()).unwrap();
    let plain = print(Options::default());
    let threads = Options { max_rolling_batch_size: Some(5), ..Options::default() };
    assert_eq!(plain, print(threads));
    assert_ne!(plain, print(Options { temperature: Some(0.5), ..Options::default() }));
    let weights = tiny.path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    assert_ne!(plain, print(Options::default()));
}

#[test]
fn options_that_cannot_be_are_refused_by_name() {
    let tiny = Tiny::new();
    for (options, name) in [
        (Options { max_tokens: Some(0), ..Options::default() }, "max_tokens"),
        (Options { n_positions: Some(161), ..Options::default() }, "n_positions"),
        (Options { top_p: Some(0.0), ..Options::default() }, "`top_p`"),
        (Options { min_p: Some(1.5), ..Options::default() }, "`min_p`"),
        (Options { predict_timeout: Some(0.0), ..Options::default() }, "predict_timeout"),
        (Options { model_loading_timeout: Some(-1.0), ..Options::default() }, "model_loading"),
        (Options { kv_cache_mb: Some(0), ..Options::default() }, "kv_cache_mb"),
        (Options { max_num_batched_tokens: Some(0), ..Options::default() }, "max_num_batched"),
        (Options { max_step_ms: Some(0), ..Options::default() }, "max_step_ms"),
        (Options { max_rolling_batch_size: Some(1 << 34), ..Options::default() }, "at most 4096"),
        (Options { kv_cache_mb: Some(1 << 40), ..Options::default() }, "does not fit"),
    ] {
        let error = tiny.load(options).unwrap_err();
        assert!(matches!(error, Error::Fatal(_)));
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(serde_json::from_value::<Options>(json!({ "temprature": 1 })).is_err());
    // The draft is checked before anything is loaded, and the error names its option.
    let options = Options { draft_model_tp_size: Some(8), ..Options::default() };
    let why = tiny.load_with_draft(&tiny, options.clone()).unwrap_err().to_string();
    assert!(
        why.contains("the option draft_model_tp_size is 8") && why.contains("[1, 2, 4]"),
        "{why}"
    );
    assert!(tiny.load(options).is_ok());
}

#[test]
fn a_batch_of_none_is_a_batch_of_one() {
    let options = Options { max_rolling_batch_size: Some(0), ..Options::default() };
    let llama = Tiny::new().load(options).unwrap();
    let input = json!({ "prompt": "x", "max_tokens": 3 });
    assert_eq!(
        reply(&llama, &input),
        reply(&Tiny::new().load(Options::default()).unwrap(), &input)
    );
}
