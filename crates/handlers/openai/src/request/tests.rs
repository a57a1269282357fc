//! Tests of the bodies that a server gets.

use std::sync::Arc;

use nsbridge_handler::MultimodalInput;
use serde_json::{Value, json};

use super::{Request, Wanted};
use crate::http::Http;
use crate::options::Flavor;
use crate::server::Server;

fn server(flavor: Flavor) -> Server {
    Server {
        http: Arc::new(Http::new("http://a", None).unwrap()),
        flavor,
        model: "m".to_owned(),
        adapters: vec!["sql".to_owned()],
        texts: None,
        context: Some(100),
        share_prefix_cache: false,
        takes_images: false,
        facts: Vec::new(),
    }
}

#[track_caller]
fn request(flavor: Flavor, tokens: Option<&[u32]>, known: usize, input: &Value) -> Request {
    let MultimodalInput(input) = serde_json::from_str(&input.to_string()).unwrap();
    let wanted = Wanted { tokens, known, seed: u64::MAX, scope: "s" };
    Request::new(&server(flavor), &input, &wanted).unwrap()
}

#[test]
fn a_request_to_vllm_has_each_field_by_its_name_there() {
    let input = json!({
        "prompt": "x", "max_tokens": 9, "temperature": 0.5, "top_p": 0.75, "top_k": 4, "min_p": 0.25,
        "repetition_penalty": 1.5, "frequency_penalty": 0.25, "presence_penalty": -0.5,
        "logit_bias": { "12": -2.0 }, "bad_token_ids": [3], "stop": ["."], "stop_token_ids": [4],
        "min_tokens": 5, "ignore_eos": true, "logprobs": true, "top_logprobs": 5, "priority": -1,
        "skip_special_tokens": false, "n": 3
    });
    let made = request(Flavor::Vllm, Some(&[7, 8]), 2, &input);
    assert_eq!(made.path, "/v1/completions");
    let expected = json!({
        "stream": true, "temperature": 0.5, "top_p": 0.75, "top_k": 4, "min_p": 0.25, "ignore_eos": true,
        "model": "m", "stream_options": { "include_usage": true }, "max_tokens": 7,
        "seed": i64::MAX, "repetition_penalty": 1.5, "frequency_penalty": 0.25,
        "presence_penalty": -0.5, "logit_bias": { "12": -2.0, "3": -100.0 }, "stop_token_ids": [4],
        "min_tokens": 3, "skip_special_tokens": false, "cache_salt": "s", "return_token_ids": true,
        "priority": -1, "logprobs": 5, "return_tokens_as_token_ids": true, "prompt": [7, 8]
    });
    assert_eq!(made.body, expected, "stop sequences are found here");
}

#[test]
fn a_request_to_llama_server_has_the_fields_of_its_own_api() {
    let input = json!({
        "prompt": "x", "temperature": 0.5, "repetition_penalty": 1.5, "logit_bias": { "12": -2.0 },
        "bad_token_ids": [3], "stop": ["."], "stop_token_ids": [4], "logprobs": true
    });
    let made = request(Flavor::LlamaServer, Some(&[7, 8]), 0, &input);
    assert_eq!(made.path, "/completion");
    let expected = json!({
        "stream": true, "temperature": 0.5, "return_tokens": true, "cache_prompt": false,
        "n_predict": 98, "seed": i32::MAX, "repeat_penalty": 1.5, "repeat_last_n": 100,
        "logit_bias": [[12, -2.0], [3, false]], "n_probs": 1, "prompt": [7, 8]
    });
    assert_eq!(made.body, expected);
}

#[test]
fn other_servers_get_the_chat_itself_and_the_stop_sequences() {
    let input = json!({
        "messages": [{ "role": "user", "content": "a" }], "stop": ["."], "reasoning_effort": "low",
        "max_tokens": 9
    });
    let made = request(Flavor::Generic, None, 0, &input);
    assert_eq!(made.path, "/v1/chat/completions");
    let expected = json!({
        "stream": true, "model": "m", "stream_options": { "include_usage": true }, "max_tokens": 9,
        "seed": i64::MAX, "stop": ["."], "messages": [{ "role": "user", "content": "a" }],
        "reasoning_effort": "low"
    });
    assert_eq!(made.body, expected);
    let made = request(Flavor::Sglang, None, 0, &input);
    assert_eq!(made.path, "/v1/chat/completions");
    assert_eq!(made.body["separate_reasoning"], false);
    assert_eq!(made.body["chat_template_kwargs"], json!({ "reasoning_effort": "low" }));
    assert_eq!(made.body["cache_salt"], "s");
    let ids = json!({ "prompt_token_ids": [5], "max_tokens": 9 });
    let made = request(Flavor::Sglang, None, 0, &ids);
    assert_eq!((made.path, &made.body["prompt"]), ("/v1/completions", &json!([5])));
}

#[test]
fn an_adapter_is_a_model_of_the_server() {
    let input = json!({ "prompt": "x", "adapter": "sql" });
    assert_eq!(request(Flavor::Vllm, Some(&[7]), 0, &input).body["model"], "sql");
}

#[test]
fn images_are_passed_on_in_their_places() {
    let url = "data:image/png;base64,iVBORw0KGgo=";
    let content = json!([{ "type": "text", "text": "a" }, { "type": "image_url", "image_url": { "url": url } }]);
    let messages = json!([{ "role": "user", "content": content }]);
    for flavor in [Flavor::Generic, Flavor::Sglang] {
        let made = request(flavor, None, 0, &json!({ "messages": messages }));
        assert_eq!((made.path, &made.body["messages"]), ("/v1/chat/completions", &messages));
    }
}

#[test]
fn a_reply_without_a_maximum_ends_with_the_context() {
    let input = json!({ "prompt": "x" });
    let made = request(Flavor::Vllm, Some(&[7; 60]), 20, &input);
    assert_eq!(made.body["max_tokens"], 40);
    let longer = json!({ "prompt": "x", "max_tokens": 500 });
    let made = request(Flavor::LlamaServer, Some(&[7; 60]), 20, &longer);
    assert_eq!(made.body["n_predict"], 40);
}
