//! Tests of the events of each server.

use nsbridge_handler::{Error, FinishReason};

use super::{Chunk, decode};
use crate::options::Flavor;

#[track_caller]
fn read(flavor: Flavor, data: &str) -> Chunk {
    decode(data.as_bytes(), flavor, "http://a").unwrap().unwrap()
}

fn fail(flavor: Flavor, data: &str) -> Error {
    decode(data.as_bytes(), flavor, "http://a").unwrap_err()
}

#[test]
fn a_part_from_vllm_has_tokens_text_and_log_probabilities() {
    let data = r#"{"choices":[{"index":0,"text":" bear","token_ids":[9],"finish_reason":null,
        "logprobs":{"tokens":["token_id:9"],"token_logprobs":[-0.5],
        "top_logprobs":[{"token_id:9":-0.5,"token_id:8":-0.25,"token_id:7":-0.5,
        "token_id:6":-9999.0}]}}]}"#;
    let chunk = read(Flavor::Vllm, data);
    assert_eq!((chunk.text.as_str(), chunk.finish), (" bear", None));
    let token = &chunk.tokens[0];
    assert_eq!((token.id, token.logprob), (Some(9), Some(-0.5)));
    let top: Vec<u32> = token.top.iter().map(|top| top.token).collect();
    assert_eq!(top, [8, 7, 9], "descending, equals by their ids, none forbidden");
}

#[test]
fn usage_comes_with_any_part() {
    let data = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,
        "prompt_tokens_details":{"cached_tokens":4}}}"#;
    let counts = read(Flavor::Generic, data).counts;
    assert_eq!((counts.input, counts.output, counts.cached), (Some(5), Some(2), Some(4)));
}

#[track_caller]
fn check_finish(flavor: Flavor, data: &str, expected: FinishReason) {
    assert_eq!(read(flavor, data).finish, Some(expected), "{data}");
}

#[test]
fn each_kind_of_server_tells_the_end_in_its_own_words() {
    let choice = |rest: &str| format!(r#"{{"choices":[{{"text":"",{rest}}}]}}"#);
    let stop = choice(r#""finish_reason":"stop","stop_reason":7"#);
    check_finish(Flavor::Vllm, &stop, FinishReason::Stop);
    let length = choice(r#""finish_reason":"length""#);
    check_finish(Flavor::Vllm, &length, FinishReason::Length);
    let text = choice(r#""finish_reason":"stop","matched_stop":"END""#);
    check_finish(Flavor::Sglang, &text, FinishReason::StopText);
    let token = choice(r#""finish_reason":"stop","matched_stop":2"#);
    check_finish(Flavor::Sglang, &token, FinishReason::Stop);
    let llama = |kind: &str| format!(r#"{{"content":"","stop":true,"stop_type":"{kind}"}}"#);
    check_finish(Flavor::LlamaServer, &llama("eos"), FinishReason::Stop);
    check_finish(Flavor::LlamaServer, &llama("limit"), FinishReason::Length);
    let aborted = fail(Flavor::Vllm, &choice(r#""finish_reason":"abort""#));
    assert!(matches!(aborted, Error::Retry(_)), "{aborted}");
}

#[test]
fn a_part_from_llama_server_has_its_tokens_and_their_bytes() {
    let data = r#"{"index":0,"content":"é","tokens":[4],"stop":false,"tokens_predicted":2,
        "tokens_evaluated":7,"completion_probabilities":[{"id":4,"token":"","bytes":[169],
        "logprob":-0.5,"top_logprobs":[{"id":4,"token":"","bytes":[169],"logprob":-0.5}]}]}"#;
    let chunk = read(Flavor::LlamaServer, data);
    assert_eq!((chunk.text.as_str(), chunk.counts.output), ("é", Some(2)));
    let token = &chunk.tokens[0];
    assert_eq!(token.text.as_ref().map(|text| text.as_bytes()), Some(&[169][..]));
    assert_eq!((token.id, token.logprob, token.top.len()), (Some(4), Some(-0.5), 1));
}

#[test]
fn what_a_parser_takes_out_of_the_text_is_not_dropped() {
    let delta = |delta: &str| format!(r#"{{"choices":[{{"delta":{delta}}}]}}"#);
    let said = read(Flavor::Generic, &delta(r#"{"content":"a","reasoning":null,"tool_calls":[]}"#));
    assert_eq!(said.text, "a");
    let refused = read(Flavor::Generic, &delta(r#"{"content":null,"refusal":"I cannot"}"#));
    assert_eq!(refused.text, "I cannot");
    for (parsed, what) in [
        (r#"{"reasoning_content":"hm"}"#, "the reasoning"),
        (r#"{"reasoning":"hm"}"#, "the reasoning"),
        (r#"{"tool_calls":[{"index":0}]}"#, "calls of tools"),
    ] {
        let error = fail(Flavor::Generic, &delta(parsed));
        assert!(matches!(&error, Error::BadInput(why) if why.contains(what)), "{error}");
    }
}

#[test]
fn a_failure_in_the_stream_is_the_clients_only_if_it_says_so() {
    let own = fail(Flavor::Vllm, r#"{"error":{"message":"canary","code":400}}"#);
    assert!(matches!(&own, Error::BadInput(why) if why == "canary"), "{own}");
    for data in [r#"{"error":{"message":"canary","code":500}}"#, r#"{"error":"canary"}"#, "canary"]
    {
        let error = fail(Flavor::Vllm, data);
        assert!(matches!(error, Error::Retry(_)), "{error}");
        assert!(!error.to_string().contains("canary"), "{error}");
    }
}

#[test]
fn the_stream_ends_with_a_word_of_its_own() {
    assert!(decode(b"[DONE]", Flavor::Vllm, "http://a").unwrap().is_none());
}
