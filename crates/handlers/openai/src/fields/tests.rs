//! Tests of the fields that each server takes.

use nsbridge_handler::{ChatMessage, MultimodalInput, TextInput};
use serde_json::{Value, json};

use super::{check_fields, refuse_images, unknown_adapter};
use crate::options::Flavor;

const ALL: [Flavor; 4] = [Flavor::Vllm, Flavor::LlamaServer, Flavor::Sglang, Flavor::Generic];

fn input(fields: &Value) -> TextInput {
    let mut input = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 8 });
    for (name, value) in fields.as_object().unwrap() {
        input[name] = value.clone();
    }
    let MultimodalInput(input) = serde_json::from_str(&input.to_string()).unwrap();
    input
}

fn refused(flavor: Flavor, input: &TextInput) -> Option<String> {
    check_fields(input, flavor).err().map(|error| error.to_string())
}

#[test]
fn each_field_is_honored_or_refused_by_its_name() {
    let user = json!([{ "role": "assistant", "content": "a" }]);
    let prompt = json!({ "messages": [], "prompt": "a" });
    let image = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=" } });
    // Marks in the order of `ALL`: `+` is honored, `-` is refused.
    for (field, fields, by) in [
        ("temperature", json!({ "temperature": 0.5 }), "++++"),
        ("top_p", json!({ "top_p": 0.5 }), "++++"),
        ("top_k", json!({ "top_k": 5 }), "+++-"),
        ("min_p", json!({ "min_p": 0.5 }), "+++-"),
        ("repetition_penalty", json!({ "repetition_penalty": 1.5 }), "+++-"),
        ("frequency_penalty", json!({ "frequency_penalty": 1.5 }), "+-++"),
        ("presence_penalty", json!({ "presence_penalty": 1.5 }), "+-++"),
        ("logit_bias", json!({ "logit_bias": { "5": 1.0 } }), "++++"),
        ("bad_token_ids", json!({ "bad_token_ids": [5] }), "+++-"),
        ("bad_token_sequences", json!({ "bad_token_sequences": [[5, 6]] }), "----"),
        ("stop", json!({ "stop": ["END"] }), "++++"),
        ("stop_token_ids", json!({ "stop_token_ids": [5] }), "+++-"),
        ("min_tokens", json!({ "min_tokens": 2 }), "+-+-"),
        ("ignore_eos", json!({ "ignore_eos": true }), "+++-"),
        ("skip_special_tokens", json!({ "skip_special_tokens": false }), "+-+-"),
        ("logprobs", json!({ "logprobs": true, "top_logprobs": 2 }), "++--"),
        ("echo", json!({ "echo": true }), "+---"),
        ("prompt_logprobs", json!({ "prompt_logprobs": 1 }), "+---"),
        ("n", json!({ "n": 2 }), "++++"),
        ("priority", json!({ "priority": 1 }), "+---"),
        ("no priority", json!({ "priority": 0 }), "++++"),
        ("tools", json!({ "tools": [{ "type": "function" }] }), "+++-"),
        ("chat_template_kwargs", json!({ "chat_template_kwargs": { "a": 1 } }), "+++-"),
        ("reasoning_effort", json!({ "reasoning_effort": "low" }), "++++"),
        ("add_generation_prompt", json!({ "add_generation_prompt": false }), "++--"),
        (
            "continue_final_message",
            json!({ "messages": user, "continue_final_message": true }),
            "+++-",
        ),
        ("prompt", prompt, "++++"),
        ("image_url", json!({ "messages": [{ "role": "user", "content": [image] }] }), "--++"),
        ("prompt_token_ids", json!({ "messages": [], "prompt_token_ids": [5] }), "+++-"),
        ("max_tokens", json!({ "messages": [], "prompt": "a", "max_tokens": null }), "++--"),
    ] {
        let input = input(&fields);
        for (flavor, mark) in ALL.into_iter().zip(by.chars()) {
            let refused = refused(flavor, &input);
            assert_eq!(refused.is_none(), mark == '+', "{field} {flavor}: {refused:?}");
            if let Some(why) = refused {
                assert!(why.contains(field) && why.contains(&flavor.to_string()), "{why}");
            }
        }
    }
}

#[test]
fn what_would_have_no_effect_is_refused() {
    for (fields, says) in [
        (json!({ "prompt": "a" }), "exactly one of `prompt`"),
        (json!({ "n": 0 }), "`n` must be from 1 to 128"),
        (json!({ "n": 2, "echo": true }), "`n` must be 1 with `echo`"),
        (json!({ "stop": [""] }), "`stop` must be texts of 1 to 256 bytes"),
        (json!({ "top_logprobs": 2 }), "`top_logprobs` needs `logprobs`"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "must be at most 20"),
        (json!({ "return_token_texts": true }), "`return_token_texts` needs"),
        (json!({ "max_tokens": 0 }), "`max_tokens` must be at least 1"),
        (json!({ "max_tokens": 2, "min_tokens": 3 }), "`min_tokens` must be at most"),
        (json!({ "messages": [], "prompt": "a", "tools": [{}] }), "`tools` needs `messages`"),
        (
            json!({ "continue_final_message": true, "add_generation_prompt": true }),
            "`continue_final_message` needs `add_generation_prompt` to be false",
        ),
    ] {
        let why = refused(Flavor::Vllm, &input(&fields)).unwrap();
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn images_are_refused_until_the_worker_is_told_that_the_model_takes_them() {
    let image = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=" } });
    let input = input(&json!({ "messages": [{ "role": "user", "content": [image] }] }));
    let why = refuse_images(&input, false).unwrap_err().to_string();
    assert!(why.contains("`image_url`") && why.contains("takes_images"), "{why}");
    refuse_images(&input, true).unwrap();
    refuse_images(&TextInput::chat([ChatMessage::new("user", "a")]), false).unwrap();
}

#[test]
fn an_adapter_that_the_worker_does_not_have_is_refused_by_its_name() {
    let refused = |known: &[String]| unknown_adapter("sq", known).to_string();
    assert_eq!(refused(&[]), "`adapter` is `sq`, and this worker has no adapters");
    let known = ["sql", "chat"].map(str::to_owned);
    assert_eq!(refused(&known), "`adapter` is `sq`: this worker has `sql`, `chat`");
}

#[test]
fn llama_server_would_continue_a_last_message_of_the_model() {
    let messages = [ChatMessage::new("user", "a"), ChatMessage::new("assistant", "b")];
    let input = TextInput::chat(messages);
    assert!(refused(Flavor::LlamaServer, &input).unwrap().contains("continue_final_message"));
    assert_eq!(refused(Flavor::Vllm, &input), None);
}
