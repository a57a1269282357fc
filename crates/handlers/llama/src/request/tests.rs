//! Tests of the precedence of defaults and of the fields that errors name.

use nsbridge_handler::{Error, TextInput};
use serde_json::json;

use super::{Advice, Options, RequestParameters, Vocabulary};

const VOCABULARY: Vocabulary<'_> = Vocabulary { size: 10, eos: &[7, 8] };

fn ask(input: &TextInput) -> Result<RequestParameters, Error> {
    let options = Options { max_tokens: Some(50), top_k: Some(40), ..Options::default() };
    let advice = Advice { top_k: Some(5), temperature: Some(0.6), ..Advice::default() };
    RequestParameters::new(input, &options, &advice, VOCABULARY)
}

fn plain() -> TextInput {
    TextInput::default()
}

#[track_caller]
fn check_refused(input: &TextInput, field: &str) {
    match ask(input) {
        Err(Error::BadInput(why)) => assert!(why.starts_with(&format!("`{field}`")), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_goes_before_the_options_and_they_before_the_advice() {
    let parameters = ask(&plain()).unwrap();
    assert_eq!((parameters.sampling.temperature, parameters.sampling.top_k), (0.6, 40));
    let parameters = ask(&TextInput { top_k: Some(7), temperature: Some(0.0), ..plain() }).unwrap();
    assert_eq!((parameters.sampling.temperature, parameters.sampling.top_k), (0.0, 7));
}

#[test]
fn min_p_has_the_same_defaults_as_the_others() {
    let min_p = |own, option, advised| {
        let input = TextInput { min_p: own, ..plain() };
        let options = Options { min_p: option, ..Options::default() };
        let advice: Advice = serde_json::from_value(json!({ "min_p": advised })).unwrap();
        RequestParameters::new(&input, &options, &advice, VOCABULARY).unwrap().sampling.min_p
    };
    assert_eq!(min_p(None, None, None), 0.0);
    assert_eq!(min_p(None, None, Some(0.125)), 0.125);
    assert_eq!(min_p(None, Some(0.25), Some(0.125)), 0.25);
    assert_eq!(min_p(Some(0.5), Some(0.25), Some(0.125)), 0.5);
}

#[test]
fn every_parameter_reaches_the_sampler() {
    let input = TextInput {
        top_p: Some(0.5),
        min_p: Some(0.25),
        repetition_penalty: Some(1.5),
        frequency_penalty: Some(-2.0),
        presence_penalty: Some(2.0),
        logit_bias: [(9, -100.0), (3, 100.0)].into(),
        bad_token_ids: vec![1, 2],
        bad_token_sequences: vec![vec![5, 6], vec![0]],
        stop_token_ids: vec![4],
        min_tokens: Some(3),
        ..plain()
    };
    let sampling = ask(&input).unwrap().sampling;
    assert_eq!((sampling.top_p, sampling.min_p), (0.5, 0.25));
    assert_eq!(sampling.repetition_penalty, 1.5);
    assert_eq!((sampling.frequency_penalty, sampling.presence_penalty), (-2.0, 2.0));
    assert_eq!(sampling.logit_bias, [(3, 100.0), (9, -100.0)]);
    assert_eq!(sampling.banned, vec![1, 2].into());
    assert_eq!(sampling.banned_sequences.list(), [vec![5, 6], vec![0]]);
    assert_eq!((sampling.min_tokens, sampling.ends), (3, vec![7, 8, 4].into()));
}

#[test]
fn the_options_cap_the_tokens_of_a_reply() {
    let limit = |max_tokens| ask(&TextInput { max_tokens, ..plain() }).unwrap().max_tokens;
    assert_eq!(limit(None), 50);
    assert_eq!(limit(Some(20)), 20);
    assert_eq!(limit(Some(70)), 50);
}

#[test]
fn the_models_end_tokens_end_a_reply_unless_they_are_ignored() {
    let ends = |ignore_eos| {
        let parameters =
            ask(&TextInput { stop_token_ids: vec![4], ignore_eos, ..plain() }).unwrap();
        [4, 5, 7, 8].map(|token| parameters.ends(token))
    };
    assert_eq!(ends(false), [true, false, true, true]);
    assert_eq!(ends(true), [true, false, false, false]);
}

#[test]
fn log_probabilities_are_told_where_they_are_asked_for() {
    let told = |logprobs, top_logprobs| {
        ask(&TextInput { logprobs, top_logprobs, ..plain() }).unwrap().logprobs
    };
    assert_eq!(told(false, None), None);
    assert_eq!(told(true, None), Some(0));
    assert_eq!(told(true, Some(20)), Some(20));
    check_refused(&TextInput { top_logprobs: Some(1), ..plain() }, "top_logprobs");
    let many = TextInput { logprobs: true, top_logprobs: Some(21), ..plain() };
    check_refused(&many, "top_logprobs");
}

#[test]
fn numbers_out_of_range_are_refused_by_their_field() {
    for temperature in [f32::NAN, f32::INFINITY, -0.1] {
        check_refused(&TextInput { temperature: Some(temperature), ..plain() }, "temperature");
    }
    for top_p in [f32::NAN, 0.0, -1.0, 1.1] {
        check_refused(&TextInput { top_p: Some(top_p), ..plain() }, "top_p");
    }
    for min_p in [f32::NAN, -0.1, 1.1] {
        check_refused(&TextInput { min_p: Some(min_p), ..plain() }, "min_p");
    }
    for penalty in [f32::NAN, 0.0, f32::INFINITY] {
        let input = TextInput { repetition_penalty: Some(penalty), ..plain() };
        check_refused(&input, "repetition_penalty");
    }
    for penalty in [f32::NAN, 2.1, -2.1] {
        let input = TextInput { frequency_penalty: Some(penalty), ..plain() };
        check_refused(&input, "frequency_penalty");
        let input = TextInput { presence_penalty: Some(penalty), ..plain() };
        check_refused(&input, "presence_penalty");
    }
    for bias in [f32::NAN, 100.5, -101.0] {
        check_refused(&TextInput { logit_bias: [(1, bias)].into(), ..plain() }, "logit_bias");
    }
}

#[test]
fn tokens_that_the_model_does_not_have_are_refused_by_their_field() {
    assert!(ask(&TextInput { bad_token_ids: vec![9], ..plain() }).is_ok());
    check_refused(&TextInput { bad_token_ids: vec![10], ..plain() }, "bad_token_ids");
    check_refused(&TextInput { stop_token_ids: vec![10], ..plain() }, "stop_token_ids");
    check_refused(&TextInput { logit_bias: [(10, 1.0)].into(), ..plain() }, "logit_bias");
    // With the two end tokens, which `min_tokens` may ban, these are all tokens.
    check_refused(
        &TextInput { bad_token_ids: (0..7).chain([9]).collect(), ..plain() },
        "bad_token_ids",
    );
    assert!(ask(&TextInput { bad_token_ids: (0..7).collect(), ..plain() }).is_ok());
}

#[test]
fn sequences_that_cannot_be_are_refused_by_their_field() {
    let with = |bad_token_sequences| TextInput { bad_token_sequences, ..plain() };
    assert!(ask(&with(vec![vec![9; 64]; 1024])).is_ok());
    for wrong in [vec![vec![1, 10]], vec![vec![]], vec![vec![1; 65]], vec![vec![1]; 1025]] {
        check_refused(&with(wrong), "bad_token_sequences");
    }
    // With the two end tokens, one step could ban all tokens.
    let all: Vec<_> = (0..10).map(|last| vec![3, last]).collect();
    check_refused(&with(all.clone()), "bad_token_sequences");
    assert!(ask(&with(all[1..].to_vec())).is_ok());
}

#[test]
fn lengths_and_stops_that_cannot_be_are_refused_by_their_field() {
    check_refused(&TextInput { max_tokens: Some(0), ..plain() }, "max_tokens");
    let longer = TextInput { min_tokens: Some(5), max_tokens: Some(4), ..plain() };
    check_refused(&longer, "min_tokens");
    check_refused(&TextInput { stop: vec![String::new()], ..plain() }, "stop");
}

#[test]
fn a_prompt_of_token_ids_names_tokens_of_the_model() {
    assert!(ask(&TextInput::token_ids([0, 9])).is_ok());
    check_refused(&TextInput::token_ids([0, 10]), "prompt_token_ids");
}

#[test]
fn nothing_is_generated_only_where_the_prompt_is_told() {
    let nothing = TextInput { max_tokens: Some(0), ..plain() };
    check_refused(&nothing, "max_tokens");
    for input in [
        TextInput { echo: true, ..nothing.clone() },
        TextInput { prompt_logprobs: Some(0), ..nothing },
    ] {
        assert_eq!(ask(&input).unwrap().max_tokens, 0);
        check_refused(&TextInput { min_tokens: Some(1), ..input.clone() }, "min_tokens");
        check_refused(&TextInput { n: Some(2), ..input.clone() }, "n");
        assert!(ask(&TextInput { n: Some(1), ..input }).is_ok());
    }
}

#[test]
fn an_echoed_prompt_has_the_log_probabilities_of_the_reply_unless_it_has_its_own() {
    let told = |echo, logprobs, top_logprobs, prompt_logprobs| {
        let input = TextInput { echo, logprobs, top_logprobs, prompt_logprobs, ..plain() };
        ask(&input).unwrap().prompt_logprobs
    };
    assert_eq!(told(false, true, Some(3), None), None);
    assert_eq!(told(true, false, None, None), None);
    assert_eq!(told(true, true, Some(3), None), Some(3));
    assert_eq!(told(true, true, Some(3), Some(5)), Some(5));
    assert_eq!(told(false, false, None, Some(0)), Some(0));
    check_refused(&TextInput { prompt_logprobs: Some(21), ..plain() }, "prompt_logprobs");
}

#[test]
fn a_prompt_whose_pieces_do_not_fit_into_a_reply_is_refused_with_both_numbers() {
    let parameters =
        |echo, prompt_logprobs| ask(&TextInput { echo, prompt_logprobs, ..plain() }).unwrap();
    let refused =
        |parameters: &RequestParameters, tokens| match parameters.refuse_large_prompt(tokens) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
    assert_eq!(refused(&parameters(false, None), usize::MAX), "");
    assert_eq!(refused(&parameters(false, Some(20)), 8192), "");
    let why = refused(&parameters(false, Some(20)), 10_000);
    assert!(why.contains("`prompt_logprobs` are 20, and 17 are the most"), "{why}");
    assert_eq!(refused(&parameters(false, Some(17)), 10_000), "");
    let why = refused(&parameters(true, Some(0)), 100_000);
    assert!(why.contains("100000 tokens, and 74898 are the most"), "{why}");
    assert_eq!(refused(&parameters(true, Some(0)), 74_898), "");
    assert_eq!(refused(&parameters(true, None), 100_000), "");
    let why = refused(&parameters(true, None), 200_000);
    assert!(why.contains("200000 tokens, and 174762 are the most"), "{why}");
}
