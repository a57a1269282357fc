//! Tests of the sampling parameters, from a request through the handler to its tokens.

use std::sync::Arc;

use nsbridge_handler::testing::{answer, check};
use nsbridge_handler::{Error, FinishReason, TextPiece};
use nsbridge_llama::{Llama, Options};
use serde_json::{Value, json};

use crate::tiny::{EOS, Tiny};

fn with(base: &Value, more: &Value) -> Value {
    let mut input = base.clone();
    let fields = more.as_object().unwrap().clone();
    input.as_object_mut().unwrap().extend(fields);
    input
}

fn greedy(more: &Value) -> Value {
    with(&json!({ "prompt": "x", "max_tokens": 12, "temperature": 0.0 }), more)
}

fn tokens(llama: &Arc<Llama>, input: &Value) -> (Vec<u32>, FinishReason) {
    let (pieces, finish) = answer(llama, input, 7, &[]).unwrap();
    (pieces.iter().map(|piece| piece.token).collect(), finish.reason)
}

fn endless() -> Arc<Llama> {
    Tiny::endless().load(Options::default()).unwrap()
}

/// Loads a model in which all tokens except the last few are end tokens.
fn eager() -> Arc<Llama> {
    let ends: Vec<u32> = (0..=EOS - 4).collect();
    let tiny = Tiny::new().with("generation_config.json", &json!({ "eos_token_id": ends }));
    tiny.load(Options::default()).unwrap()
}

#[test]
fn a_banned_token_is_not_made_and_a_favoured_one_is() {
    let llama = endless();
    let (plain, _) = tokens(&llama, &greedy(&json!({})));
    let (banned, _) = tokens(&llama, &greedy(&json!({ "bad_token_ids": [plain[0]] })));
    assert!(!banned.contains(&plain[0]));
    let (favoured, _) = tokens(&llama, &greedy(&json!({ "logit_bias": { "65": 100.0 } })));
    assert_eq!(favoured, [65; 12]);
}

#[test]
fn a_banned_sequence_does_not_come_about_and_its_parts_may() {
    let llama = endless();
    let (plain, _) = tokens(&llama, &greedy(&json!({})));
    // `x` is the prompt's last token, so the first of these sequences begins in the prompt.
    for sequence in [vec![120, plain[0]], plain[3..6].to_vec()] {
        let input = greedy(&json!({ "bad_token_sequences": [sequence] }));
        let (made, _) = tokens(&llama, &input);
        assert!(![&[120], &made[..]].concat().windows(sequence.len()).any(|w| w == sequence));
        let at = if sequence[0] == 120 { 0 } else { 5 };
        assert_eq!(made[..at], plain[..at]);
        assert_ne!(made[at], plain[at]);
    }
}

#[test]
fn penalties_count_the_reply_as_it_grows() {
    let llama = endless();
    let favour = json!({ "logit_bias": { "65": 100.0, "66": 99.0 } });
    let more = |more: &Value| tokens(&llama, &greedy(&with(&favour, more))).0;
    assert_eq!(more(&json!({ "max_tokens": 3, "presence_penalty": 2.0 }))[0], 65);
    let mixed = more(&json!({ "frequency_penalty": 2.0 }));
    assert!(mixed.contains(&65) && mixed.contains(&66), "{mixed:?}");
    // Each token is penalized once, so the first one is ahead again.
    let twice = more(&json!({ "presence_penalty": 2.0, "max_tokens": 20 }));
    assert_eq!(twice[19], 65);
}

#[test]
fn a_stop_token_ends_the_reply_like_the_models_own() {
    let llama = endless();
    let (plain, reason) = tokens(&llama, &greedy(&json!({})));
    assert_eq!(reason, FinishReason::Length);
    let stopped = tokens(&llama, &greedy(&json!({ "stop_token_ids": [plain[4]] })));
    let first = plain.iter().position(|token| *token == plain[4]).unwrap();
    assert_eq!(stopped, (plain[..=first].to_vec(), FinishReason::Stop));
}

#[test]
fn a_reply_does_not_end_before_its_least_length() {
    let llama = eager();
    assert_eq!(tokens(&llama, &greedy(&json!({}))).0.len(), 1);
    let (made, reason) = tokens(&llama, &greedy(&json!({ "min_tokens": 5 })));
    assert!(made[..5].iter().all(|token| *token > EOS - 4), "{made:?}");
    assert!(made.len() > 5);
    assert!(matches!(reason, FinishReason::Stop | FinishReason::Length));
}

#[test]
fn a_reply_goes_on_after_an_end_token_that_is_ignored() {
    let llama = eager();
    let (made, reason) = tokens(&llama, &greedy(&json!({ "ignore_eos": true })));
    assert_eq!((made.len(), reason), (12, FinishReason::Length));
    assert!(made.iter().any(|token| *token <= EOS - 4));
    let stop = json!({ "ignore_eos": true, "stop_token_ids": [made[0]] });
    assert_eq!(tokens(&llama, &greedy(&stop)).0.len(), 1);
}

#[test]
fn log_probabilities_come_with_the_pieces_that_asked_for_them() {
    let llama = endless();
    let pieces = |more: &Value| answer(&llama, &greedy(more), 7, &[]).unwrap().0;
    let silent = |piece: &TextPiece| piece.logprob.is_none() && piece.top_logprobs.is_empty();
    assert!(pieces(&json!({})).iter().all(silent));
    // Log-probabilities are those of the model's own distribution: a bias changes the choice only.
    let bias = json!({ "logprobs": true, "top_logprobs": 3, "logit_bias": { "65": 100.0 } });
    for piece in pieces(&bias) {
        let (own, top) = (piece.logprob.unwrap(), piece.top_logprobs);
        assert_eq!((piece.token, top.len()), (65, 3));
        assert!(top.is_sorted_by(|a, b| a.logprob >= b.logprob));
        assert!(top[0].logprob < 0.0 && top[0].logprob >= own);
    }
    for piece in pieces(&json!({ "logprobs": true, "top_logprobs": 1 })) {
        assert_eq!(piece.token, piece.top_logprobs[0].token);
        assert_eq!(piece.logprob, Some(piece.top_logprobs[0].logprob));
    }
    assert!(pieces(&json!({ "logprobs": true })).iter().all(|piece| piece.top_logprobs.is_empty()));
    // The texts of tokens come if the request asks for them, and change nothing else.
    let plain = pieces(&json!({ "logprobs": true, "top_logprobs": 2 }));
    let told = pieces(&json!({ "logprobs": true, "top_logprobs": 2, "return_token_texts": true }));
    for (plain, told) in plain.iter().zip(&told) {
        assert_eq!((plain.token, &plain.text, &plain.token_text), (told.token, &told.text, &None));
        let texts: Vec<_> = told.top_logprobs.iter().map(|top| top.text.clone().unwrap()).collect();
        assert_eq!(told.token_text.as_ref(), texts.first());
        assert!(texts.len() == 2 && texts[0] != texts[1]);
    }
    assert_eq!(plain.len(), told.len());
}

#[test]
fn with_every_parameter_the_contract_holds_and_a_resumed_reply_is_the_same() {
    let llama = endless();
    let input = json!({
        "prompt": "灯台", "max_tokens": 24, "temperature": 0.9, "top_k": 100, "top_p": 0.95,
        "min_p": 0.01, "repetition_penalty": 1.2, "frequency_penalty": 0.4,
        "presence_penalty": 0.3, "logit_bias": { "70": 1.5 }, "bad_token_ids": [71],
        "bad_token_sequences": [[65, 66], [73, 74, 75], [120]], "stop_token_ids": [72], "min_tokens": 20, "ignore_eos": true
    });
    assert_eq!(check(&llama, &input), Ok(()));
    let whole = answer(&llama, &input, 7, &[]).unwrap();
    for at in 0..=whole.0.len() {
        assert_eq!(answer(&llama, &input, 7, &whole.0[..at]).unwrap(), whole, "at {at}");
    }
}

#[test]
fn tokens_that_the_model_does_not_have_are_refused() {
    let llama = endless();
    let result = answer(&llama, &greedy(&json!({ "stop_token_ids": [70_000] })), 7, &[]);
    assert!(matches!(result, Err(Error::BadInput(why)) if why.contains("`stop_token_ids`")));
}
