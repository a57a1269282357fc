//! Prompts that the tokenizer or the embedding cannot take. Each is refused, and the handler goes on.

use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value as GgufValue;
use futures_executor::block_on;
use nsbridge_handler::Error;
use nsbridge_handler::erased::Servable;
use nsbridge_handler::testing::{answer, load};
use nsbridge_llama::{Embedder, Llama, Options, Task};
use serde_json::{Value, json};

use crate::gguf;
use crate::replies::{call, check_bad_input, check_refused};
use crate::tiny::{Tiny, models, write_drawn};

/// Number of times that each kind of prompt is sent.
const TIMES: usize = 1000;

/// Words of the refusal of a prompt with a token that has no row.
const NO_ROW: [&str; 2] = ["the prompt has token 25", "leave out its text"];

fn good() -> Value {
    json!({ "prompt": "a good prompt", "max_tokens": 6, "temperature": 0.0 })
}

/// Changes a JSON file of the model.
fn edit(dir: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let path = dir.join(file);
    let mut json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    std::fs::write(path, json.to_string()).unwrap();
}

fn added(id: u32, content: &str, special: bool, normalized: bool) -> Value {
    json!({ "id": id, "content": content, "special": special, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": normalized })
}

/// Model with a tokenizer that has two tokens more than the embedding has rows: 258 and 259.
fn padded() -> Tiny {
    let tiny = Tiny::endless();
    edit(tiny.path(), "tokenizer.json", |json| {
        let tokens = json["added_tokens"].as_array_mut().unwrap();
        tokens.extend([added(258, "<pad>", true, false), added(259, "<tool>", false, false)]);
    });
    tiny
}

/// Model whose tokenizer panics on some texts: its normalizer removes the text of an added token
/// (`tokenizers`, issues 1349 and 1452: "AddedVocabulary bad split").
fn panicking() -> Tiny {
    // A thousand backtraces are of no use.
    std::panic::set_hook(Box::new(|_| {}));
    let tiny = Tiny::endless();
    edit(tiny.path(), "tokenizer.json", |json| {
        json["normalizer"] = json!({ "type": "Strip", "strip_left": true, "strip_right": true });
        json["added_tokens"].as_array_mut().unwrap().push(added(258, "  ", false, true));
    });
    tiny
}

/// Sends each request many times, checks that it is refused with these words, and that the handler
/// answers others as before.
#[track_caller]
fn check_all_refused<H: Servable<K>, K>(
    handler: &Arc<H>,
    (inputs, words): (&[Value], &[&str]),
    good: &Value,
) {
    let erased = H::erase(handler.clone());
    let pieces = || {
        let (pieces, _) = answer(handler, good, 7, &[]).unwrap();
        serde_json::to_value(pieces).unwrap()
    };
    let before = pieces();
    for input in inputs {
        for _ in 0..TIMES {
            let (call, _reader) = call(input);
            check_bad_input(block_on(erased.call(call)), words);
        }
    }
    assert_eq!(pieces(), before);
}

fn chat(content: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 2 })
}

#[test]
fn f1_a_text_with_a_token_that_has_no_row_is_refused() {
    let options = Options { special_tokens_in_messages: Some(true), ..Options::default() };
    let llama = padded().load(options).unwrap();
    let raw = |text: &str| json!({ "prompt": text, "max_tokens": 2 });
    let with = |field: &str, value: Value| {
        let mut input = raw("canary<pad>");
        input[field] = value;
        input
    };
    let inputs = [
        raw("canary<pad>"),
        raw("<tool>canary"),
        // One that is tokenized on a thread of the preparation.
        json!({ "prompt": format!("{}<pad>", "word ".repeat(20)), "n": 12 }),
        chat("canary<pad>"),
        chat("canary<tool>"),
        with("n", json!(3)),
        with("echo", json!(true)),
        with("prompt_logprobs", json!(2)),
        with("response_format", json!({ "type": "json_object" })),
        json!({ "prompt": "canary<pad>", "max_tokens": 0, "echo": true }),
    ];
    check_all_refused(&llama, (&inputs, &NO_ROW), &good());
    check_refused(
        &llama,
        &json!({ "prompt_token_ids": [258] }),
        &["`prompt_token_ids`", "0 to 257"],
    );
}

#[test]
fn f1_a_template_that_writes_a_token_without_a_row_is_refused_and_raw_prompts_are_not() {
    let tiny = padded();
    edit(tiny.path(), "tokenizer_config.json", |json| {
        json["chat_template"] = json!("<pad>{{ messages[0].content }}");
    });
    let llama = tiny.load(Options::default()).unwrap();
    check_all_refused(&llama, (&[chat("canary"), chat("")], &NO_ROW), &good());
    // A message cannot have the token, so its text is no such token.
    let tiny = padded();
    let llama = tiny.load(Options::default()).unwrap();
    answer(&llama, &chat("a<pad>"), 7, &[]).unwrap();
}

#[test]
fn f1_a_start_token_without_a_row_is_refused() {
    let tiny = padded();
    edit(tiny.path(), "tokenizer_config.json", |json| json["bos_token"] = json!("<pad>"));
    let llama = tiny.load(Options::default()).unwrap();
    check_refused(&llama, &json!({ "prompt": "canary", "max_tokens": 2 }), &NO_ROW);
    let ids = json!({ "prompt_token_ids": [1, 2], "max_tokens": 2, "temperature": 0.0 });
    assert_eq!(answer(&llama, &ids, 7, &[]).unwrap().0.len(), 2);
}

#[test]
fn f1_a_gguf_file_with_more_tokens_than_rows_is_served_and_those_tokens_are_refused() {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 64,
        "intermediate_size": 96, "vocab_size": 257, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0, "max_position_embeddings": 200, "tie_word_embeddings": true,
        "eos_token_id": 3
    });
    let dir = tempfile::tempdir().unwrap();
    write_drawn(dir.path(), &config, 5, 0.1);
    let mut others = '\u{100}'..;
    let spelt = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => others.next().unwrap(),
    };
    let mut tokens: Vec<String> = (0..=u8::MAX).map(spelt).map(String::from).collect();
    tokens.extend(["ab", "<pad>", "<tool>"].map(str::to_owned));
    let text = |text: &str| GgufValue::String(text.to_owned());
    let kinds = (0..259).map(|id| GgufValue::I32(if id > 256 { 3 } else { 1 })).collect();
    let more = [
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("gpt-2")),
        (
            "tokenizer.ggml.tokens",
            GgufValue::Array(tokens.iter().map(|token| text(token)).collect()),
        ),
        ("tokenizer.ggml.token_type", GgufValue::Array(kinds)),
        ("tokenizer.ggml.merges", GgufValue::Array(vec![text("a b")])),
    ];
    let (gguf, _) = gguf::converted_with(dir.path(), |_| GgmlDType::F32, &more);
    let llama: Arc<Llama> = load(Options::default(), models(gguf.path())).unwrap();
    let raw = |text: &str| json!({ "prompt": text, "max_tokens": 2 });
    check_all_refused(&llama, (&[raw("canary<pad>"), raw("<tool>")], &NO_ROW), &good());
}

#[test]
fn f2_a_text_that_makes_the_tokenizer_panic_is_refused() {
    let llama = panicking().load(Options::default()).unwrap();
    let long = format!("{}日本語 é canary", "word ".repeat(300));
    let raw = |text: &str| json!({ "prompt": text, "max_tokens": 2 });
    let inputs = [
        raw("日本語 é canary"),
        raw(&long),
        chat("日本語 é canary"),
        // Marks protect the text of the special token.
        chat("</s> 日本語 é canary"),
        json!({ "prompt": "日本語 é canary", "max_tokens": 0, "echo": true }),
        json!({ "prompt": "日本語 é canary", "response_format": { "type": "json_object" } }),
    ];
    check_all_refused(&llama, (&inputs, &["the tokenizer cannot encode the text"]), &good());
}

#[test]
fn f2_a_truncation_that_cannot_be_is_the_failure_of_long_texts_alone() {
    let tiny = Tiny::endless();
    edit(tiny.path(), "tokenizer.json", |json| {
        json["truncation"] = json!({ "direction": "Right", "max_length": 20, "stride": 30,
                                     "strategy": "LongestFirst" });
    });
    let llama = tiny.load(Options::default()).unwrap();
    let long = json!({ "prompt": "canary ".repeat(8), "max_tokens": 2 });
    check_all_refused(&llama, (&[long], &["the tokenizer cannot encode the text"]), &good());
}

#[test]
fn f1_f2_a_text_that_cannot_be_embedded_is_refused() {
    let options = || Options { task: Some(Task::Embed), ..Options::default() };
    for (tiny, text, words) in [
        (padded(), "canary<pad>", ["text 1 of `input`", "0 to 257"]),
        (panicking(), "日本語 é canary", ["the tokenizer", "cannot encode the text"]),
    ] {
        let embedder: Arc<Embedder> = load(options(), models(tiny.path())).unwrap();
        // Texts that are tokenized in place, and on a thread of the preparation.
        let inputs = [json!(["good", text]), json!(["good", text, "word ".repeat(300)])];
        let inputs = inputs.map(|input| json!({ "input": input }));
        check_all_refused(&embedder, (&inputs, &words), &json!({ "input": ["good"] }));
    }
}

/// Chat with a tool whose parameters are nested as deep as JSON may be.
fn deep() -> Value {
    let mut inner = json!({ "type": "string" });
    for _ in 0..115 {
        inner = json!({ "a": inner });
    }
    json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 2,
            "tools": [{ "type": "function", "function": { "name": "f", "parameters": inner } }] })
}

#[test]
fn f2_a_template_that_follows_deep_tools_or_itself_overflows_no_stack() {
    for (template, goes_on) in [
        (
            "{% macro m(v) %}{% for k in v %}{{ k }}{% if v[k] is mapping %}{{ m(v[k]) }}{% endif %}\
          {% endfor %}{% endmacro %}{{ m(tools[0].function) if tools else 'none' }}",
            true,
        ),
        (
            "{% macro m(v) %}{{ m(v) }}{% endmacro %}{% if tools %}{{ m(tools) }}{% else %}x{% endif %}",
            false,
        ),
    ] {
        let tiny = Tiny::endless();
        edit(tiny.path(), "tokenizer_config.json", |json| json["chat_template"] = json!(template));
        edit(tiny.path(), "config.json", |json| json["max_position_embeddings"] = json!(2048));
        let llama = tiny.load(Options::default()).unwrap();
        match answer(&llama, &deep(), 7, &[]) {
            Ok((pieces, _)) => assert!(goes_on && pieces.len() == 2),
            Err(Error::BadInput(why)) => assert!(why.contains("`messages` do not fit"), "{why}"),
            Err(other) => panic!("{other:?}"),
        }
        answer(&llama, &good(), 7, &[]).unwrap();
    }
}
