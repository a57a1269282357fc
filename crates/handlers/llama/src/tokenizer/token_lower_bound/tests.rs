//! Tests that the bound never exceeds the number of tokens, and is close to it where it matters.

use proptest::prelude::{prop, proptest};
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::{Cover, Kind};
use crate::detokenize::TokenBytes;

/// Returns GPT-2's character for each byte.
fn spelt() -> Vec<char> {
    let mut others = '\u{100}'..;
    let spelt = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => others.next().unwrap(),
    };
    (0..=u8::MAX).map(spelt).collect()
}

/// Returns a byte-level tokenizer with `merges` and this normalizer.
fn byte_level(merges: &[(&str, &str)], normalizer: &Value) -> Value {
    let mut vocabulary: serde_json::Map<String, Value> = spelt()
        .iter()
        .zip(0..)
        .map(|(spelt, id): (_, u32)| (spelt.to_string(), json!(id)))
        .collect();
    for (left, right) in merges {
        vocabulary.insert(format!("{left}{right}"), json!(vocabulary.len()));
    }
    let merges: Vec<String> =
        merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer,
        "added_tokens": [{ "id": vocabulary.len(), "content": "<|a special one|>", "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false }],
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": merges }
    })
}

fn merges() -> [(&'static str, &'static str); 6] {
    [("1", "1"), ("11", "1"), ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("t", "h"), ("th", "e")]
}

fn read(json: &Value) -> (Tokenizer, Cover) {
    let tokenizer = Tokenizer::from_bytes(json.to_string()).unwrap();
    let bytes = TokenBytes::new(&tokenizer, json, 300, "tokenizer.json").unwrap();
    let cover = Cover::new(&tokenizer, json, &bytes);
    (tokenizer, cover)
}

fn count(tokenizer: &Tokenizer, text: &str) -> usize {
    tokenizer.encode_fast(text, false).unwrap().len()
}

#[test]
fn m2_what_takes_long_to_tokenize_is_counted_near_enough() {
    let (tokenizer, cover) = read(&byte_level(&merges(), &Value::Null));
    for (text, most) in
        [("1".repeat(3000), 1000), (" ".repeat(3000), 750), ("the".repeat(900), 900)]
    {
        let (least, tokens) = (cover.least(&text), count(&tokenizer, &text));
        assert!(least <= tokens && least >= most, "{least} of {tokens}");
    }
    assert_eq!(cover.least("<|a special one|>"), 1);
    assert_eq!(cover.least(""), 0);
}

#[test]
fn where_bytes_may_get_lost_there_is_no_bound() {
    let with = |path: &str, value: Value| {
        let mut json = byte_level(&merges(), &Value::Null);
        *json.pointer_mut(path).unwrap() = value;
        read(&json).1.kind
    };
    assert_eq!(read(&byte_level(&merges(), &Value::Null)).1.kind, Kind::Plain);
    assert_eq!(with("/normalizer", json!({ "type": "NFC" })), Kind::Nfc);
    for (path, value) in [
        ("/normalizer", json!({ "type": "NFKC" })),
        (
            "/normalizer",
            json!({ "type": "Sequence", "normalizers": [{ "type": "NFC" }, { "type": "Lowercase" }] }),
        ),
        ("/pre_tokenizer", json!({ "type": "WhitespaceSplit" })),
        ("/added_tokens/0/lstrip", json!(true)),
        (
            "/truncation",
            json!({ "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0 }),
        ),
    ] {
        assert_eq!(with(path, value), Kind::Unknown, "{path}");
    }
    let mut json = byte_level(&merges(), &Value::Null);
    json["model"]["vocab"].as_object_mut().unwrap().remove("a");
    assert_eq!(read(&json).1.kind, Kind::Unknown);
}

proptest! {
    #[test]
    fn no_text_has_fewer_tokens_than_its_bound(
        parts in prop::collection::vec("[1 theあe\u{301}한▁]{0,8}|<\\|a special one\\|>| {0,30}|1{0,30}", 0..12),
    ) {
        let text = parts.concat();
        for normalizer in [Value::Null, json!({ "type": "NFC" })] {
            let (tokenizer, cover) = read(&byte_level(&merges(), &normalizer));
            assert!(cover.least(&text) <= count(&tokenizer, &text));
        }
    }
}
