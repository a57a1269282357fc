//! Tokenizers from the metadata of GGUF files, against the ids of the `tokenizers` package.
//!
//! `vocabularies.json` has two small vocabularies, texts, and a hash of the ids of each text in each
//! family; `vocabularies/small.py` writes it. `cargo xtask vocabularies` compares the ids of many more
//! texts with those of real vocabularies.

use std::collections::BTreeMap;

use nsbridge_handler::{ChatMessage, Model, TextInput};
use nsbridge_llama::Config;
use nsbridge_llama::testing::Tokens;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::metadata::Metadata;

const CONTEXT: usize = 1 << 20;

#[derive(Deserialize)]
struct Cases {
    texts: Vec<String>,
    byte_level: Vocabulary,
    pieces: Vocabulary,
}

#[derive(Deserialize)]
struct Vocabulary {
    tokens: Vec<String>,
    types: Vec<i32>,
    #[serde(default)]
    merges: Vec<String>,
    #[serde(default)]
    scores: Vec<f32>,
    /// First 32 bits of the SHA-256 of each text's ids, as hexadecimal digits.
    families: BTreeMap<String, String>,
}

impl Vocabulary {
    fn metadata(&self, kind: &str) -> Metadata {
        let common = Metadata::default()
            .text("general.architecture", "llama")
            .text("tokenizer.ggml.model", kind)
            .texts("tokenizer.ggml.tokens", &self.tokens)
            .integers("tokenizer.ggml.token_type", &self.types);
        match kind {
            "llama" => common.floats("tokenizer.ggml.scores", &self.scores),
            _ => common.texts("tokenizer.ggml.merges", &self.merges),
        }
    }
}

fn cases() -> Cases {
    serde_json::from_str(include_str!("../vocabularies.json")).unwrap()
}

fn open(metadata: &Metadata) -> nsbridge_handler::Result<Tokens> {
    Tokens::read(&metadata.model().1, 3000)
}

fn raw(tokens: &Tokens, text: &str) -> Vec<u32> {
    let input = TextInput { prompt: Some(text.to_owned()), ..TextInput::default() };
    tokens.of(&input, CONTEXT).unwrap()
}

/// Checks the ids of all texts.
#[track_caller]
fn check(metadata: &Metadata, texts: &[String], hashes: &str, family: &str) {
    let tokens = open(metadata).unwrap();
    assert_eq!(hashes.len(), 8 * texts.len());
    for (index, text) in texts.iter().enumerate() {
        let ids = raw(&tokens, text);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let hash: String =
            Sha256::digest(bytes)[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, hashes[8 * index..][..8], "{family}, text {index}: {text:?} is {ids:?}");
        assert!(tokens.least(text) <= ids.len(), "{family}, text {index}: {text:?}");
    }
}

#[test]
fn each_byte_level_family_has_the_ids_of_its_own_tokenizer() {
    let Cases { texts, byte_level, .. } = cases();
    assert!(byte_level.families.len() >= 18, "{:?}", byte_level.families.keys());
    for (family, hashes) in &byte_level.families {
        let metadata = byte_level
            .metadata("gpt2")
            .text("tokenizer.ggml.pre", family)
            .number("tokenizer.ggml.bos_token_id", 0);
        check(&metadata, &texts, hashes, family);
    }
}

#[test]
fn pieces_with_scores_have_the_ids_of_transformers_merges() {
    let Cases { texts, pieces, .. } = cases();
    for (name, prefixed) in [("prefixed", true), ("plain", false)] {
        let metadata = pieces.metadata("llama");
        // A prefix is the default.
        let metadata = match prefixed {
            true => metadata,
            false => metadata.flag("tokenizer.ggml.add_space_prefix", false),
        };
        check(&metadata, &texts, &pieces.families[name], name);
    }
}

/// A small vocabulary of bytes: `a`, `b`, `ab`, and special tokens.
fn small() -> Metadata {
    let tokens = ["<s>", "a", "b", "ab", "<|im_end|>", "<think>", "[PAD6]", "</s>"];
    Metadata::default()
        .text("general.architecture", "llama")
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "gpt-2")
        .texts("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &[3, 1, 1, 1, 3, 4, 5, 3])
        .texts("tokenizer.ggml.merges", &["a b"])
        .number("tokenizer.ggml.bos_token_id", 0)
        .number("tokenizer.ggml.eos_token_id", 7)
}

/// The smallest vocabulary of pieces.
fn small_pieces() -> Metadata {
    small()
        .text("tokenizer.ggml.model", "llama")
        .without("tokenizer.ggml.merges")
        .texts("tokenizer.ggml.tokens", &["<unk>", "<s>", "</s>", "<0x0A>", "a", "b", "ab", "▁"])
        .integers("tokenizer.ggml.token_type", &[2, 3, 3, 6, 1, 1, 1, 1])
        .floats("tokenizer.ggml.scores", &[0., 0., 0., 0., -2., -3., -1., -4.])
}

/// Shape of a model with this metadata.
fn config(metadata: &Metadata) -> Result<Config, nsbridge_llama::LoadError> {
    let key = |name: &str| format!("llama.{name}");
    let metadata = [
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("block_count", 1),
        ("attention.head_count", 4),
        ("context_length", 128),
    ]
    .into_iter()
    .fold(metadata.clone(), |metadata, (name, value)| metadata.number(&key(name), value))
    .float(&key("attention.layer_norm_rms_epsilon"), 1e-5);
    Config::read(&metadata.model().1)
}

#[test]
fn texts_start_with_the_start_token_where_the_family_or_the_metadata_says_so() {
    let adds = |metadata: Metadata| raw(&open(&metadata).unwrap(), "ab");
    assert_eq!(adds(small()), [3]);
    assert_eq!(adds(small().text("tokenizer.ggml.pre", "llama-bpe")), [0, 3]);
    assert_eq!(adds(small().flag("tokenizer.ggml.add_bos_token", true)), [0, 3]);
    let never = small().flag("tokenizer.ggml.add_bos_token", false);
    assert_eq!(adds(never.text("tokenizer.ggml.pre", "llama-bpe")), [3]);
    let both = small().flag("tokenizer.ggml.add_bos_token", true);
    assert_eq!(adds(both.flag("tokenizer.ggml.add_eos_token", true)), [0, 3, 7]);
    assert_eq!(adds(small_pieces().number("tokenizer.ggml.bos_token_id", 1)), [1, 7, 6]);
    // -1, written as an unsigned number, is none.
    assert_eq!(adds(small().number("tokenizer.ggml.bos_token_id", u32::MAX)), [3]);
}

#[test]
fn only_special_tokens_and_rows_without_a_token_have_no_bytes() {
    let tokens = open(&small()).unwrap();
    let bytes: Vec<&[u8]> = (0..8).map(|id| tokens.bytes(id)).collect();
    let expected: [&[u8]; 8] = [b"", b"a", b"b", b"ab", b"", b"<think>", b"", b""];
    assert_eq!(bytes, expected);
    // The letters of a filler are no tokens here.
    assert_eq!(raw(&tokens, "a<think>b<|im_end|>[PAD6]"), [1, 5, 2, 4]);
}

#[test]
fn the_chat_template_of_the_file_is_rendered_and_its_special_tokens_are_tokens() {
    let template = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}";
    let chat = |metadata: Metadata| {
        let message = |content: &str| ChatMessage::new("user", content);
        let messages = vec![message("ab"), message("a<|im_end|>b")];
        open(&metadata)?.of(&TextInput { messages, ..TextInput::default() }, CONTEXT)
    };
    let with = |key: &str| small().text(key, template);
    // A special token in a message is text, of which this vocabulary has two letters.
    let expected = [0, 3, 4, 1, 2, 4];
    assert_eq!(chat(with("tokenizer.chat_template")).unwrap(), expected);
    assert_eq!(chat(with("tokenizer.chat_template.default")).unwrap(), expected);
    let error = chat(with("tokenizer.chat_template.tool_use")).unwrap_err().to_string();
    assert!(error.contains("with tools alone"), "{error}");
    let error = open(&small().text("tokenizer.chat_template", "{% if %}")).unwrap_err().to_string();
    assert!(error.contains("model.gguf"), "{error}");
}

#[test]
fn tools_have_the_template_of_the_file_that_is_for_them() {
    let metadata = small().text("tokenizer.chat_template", "a");
    let tokens = open(&metadata.text("tokenizer.chat_template.tool_use", "b")).unwrap();
    let chat = |tools: Vec<serde_json::Value>| {
        let messages = vec![ChatMessage::new("user", "x")];
        tokens.of(&TextInput { messages, tools, ..TextInput::default() }, CONTEXT).unwrap()
    };
    assert_eq!(chat(Vec::new()), [1]);
    let tool = serde_json::json!({ "type": "function", "function": { "name": "f" } });
    assert_eq!(chat(vec![tool]), [2]);
}

#[test]
fn files_beside_a_gguf_file_win() {
    let (dir, model) = small().text("tokenizer.chat_template", "b").model();
    let write = |name: &str, json: &str| std::fs::write(dir.path().join(name), json).unwrap();
    let chat = || {
        let message = ChatMessage::new("user", "x");
        let input = TextInput { messages: vec![message], ..TextInput::default() };
        Tokens::read(&Model::in_dir(dir.path()), 8).unwrap().of(&input, CONTEXT).unwrap()
    };
    drop(model);
    assert_eq!(chat(), [2]);
    write("tokenizer_config.json", r#"{ "chat_template": "ab", "add_bos_token": true }"#);
    assert_eq!(chat(), [3]);
    write("chat_template.jinja", "a");
    assert_eq!(chat(), [1]);
    let byte_level = r#"{ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true }"#;
    let json = format!(
        r#"{{ "version": "1.0", "added_tokens": [], "decoder": {byte_level},
        "pre_tokenizer": {byte_level}, "model": {{ "type": "BPE", "vocab": {{ "a": 5 }}, "merges": [] }} }}"#
    );
    write("tokenizer.json", &json);
    assert_eq!(chat(), [5]);
}

#[test]
fn replies_end_with_the_tokens_that_the_metadata_names_and_with_known_control_tokens() {
    let eos = |metadata: Metadata| config(&metadata).unwrap().eos;
    assert_eq!(eos(small()), [7, 4]);
    assert_eq!(eos(small().number("tokenizer.ggml.eos_token_id", 4)), [4, 7]);
    let all = small().number("tokenizer.ggml.eot_token_id", 3);
    assert_eq!(eos(all.number("tokenizer.ggml.eom_token_id", 1)), [7, 3, 1, 4]);
    // A token of text ends no reply, whatever its name.
    let text = small().integers("tokenizer.ggml.token_type", &[3, 1, 1, 1, 1, 4, 5, 3]);
    assert_eq!(eos(text), [7]);
    assert_eq!(eos(small_pieces().without("tokenizer.ggml.eos_token_id")), [2]);
    // Where other tokens end a turn, `<|end|>` ends a part of it.
    let harmony = |names: [&str; 4]| {
        small()
            .texts("tokenizer.ggml.tokens", &names)
            .integers("tokenizer.ggml.token_type", &[3; 4])
            .number("tokenizer.ggml.eos_token_id", 0)
    };
    assert_eq!(eos(harmony(["<|return|>", "<|call|>", "<|end|>", "a"])), [0, 1]);
    assert_eq!(eos(harmony(["<|return|>", "x", "<|end|>", "a"])), [0, 2]);
    let alone = small().without("tokenizer.ggml.token_type");
    assert_eq!(eos(alone), [7]);
}

#[track_caller]
fn check_refused(metadata: &Metadata, reason: &str) {
    let error = open(metadata).unwrap_err().to_string();
    assert!(error.contains("model.gguf") && error.contains(reason), "{error}");
    assert!(!error.contains(char::is_control) && error.len() < 1000, "{error:?}");
}

#[test]
fn vocabularies_of_other_kinds_are_refused_by_name() {
    for kind in ["bert", "t5", "rwkv", "plamo2", "gemma4"] {
        let reason = format!("tokenizer.ggml.model in model.gguf is {kind}");
        check_refused(&small().text("tokenizer.ggml.model", kind), &reason);
    }
    for kind in ["none", "no_vocab"] {
        let metadata = small().text("tokenizer.ggml.model", kind);
        check_refused(&metadata, "has no vocabulary; add the tokenizer.json");
    }
    check_refused(&small().without("tokenizer.ggml.model"), "has no vocabulary");
    for pre in ["bloom", "viking", "gpt-2\n", ""] {
        check_refused(&small().text("tokenizer.ggml.pre", pre), "tokenizer.ggml.pre in model.gguf");
    }
}

#[test]
fn malformed_vocabularies_are_refused_with_what_is_wrong() {
    let merges = |merges: &[&str]| small().texts("tokenizer.ggml.merges", merges);
    check_refused(
        &merges(&["a b", "b x"]),
        "element 1 of tokenizer.ggml.merges, `b x`, has a part",
    );
    check_refused(&merges(&["b a"]), "makes a text that is no token");
    check_refused(&merges(&["ab"]), "is not two tokens");
    check_refused(&merges(&["a b a"]), "is not two tokens");
    check_refused(&merges(&["a b", "a b"]), "is there twice");
    check_refused(&small().without("tokenizer.ggml.merges"), "has no tokenizer.ggml.merges");
    let tokens: [&[u8]; 8] = [b"<s>", b"a", b"b", b"\xff", b"e", b"f", b"g", b"h"];
    check_refused(
        &small().texts("tokenizer.ggml.tokens", &tokens),
        "element 3 of tokenizer.ggml.tokens is not a text in UTF-8",
    );
    let twice = ["<s>", "a", "b", "ab", "a", "f", "g", "h"];
    check_refused(&small().texts("tokenizer.ggml.tokens", &twice), "tokens 1 and 4 are both `a`");
    let wrong = small().integers("tokenizer.ggml.tokens", &[1]);
    check_refused(&wrong, "element 0 of tokenizer.ggml.tokens is not a text");
    check_refused(&small().number("tokenizer.ggml.tokens", 1), "tokens is not an array");
    check_refused(&small().without("tokenizer.ggml.tokens"), "has no tokenizer.ggml.tokens");
    check_refused(&small().without("tokenizer.ggml.token_type"), "no tokenizer.ggml.token_type");
    let types = |types: &[i32]| small().integers("tokenizer.ggml.token_type", types);
    check_refused(&types(&[3, 1, 1]), "has 3 elements");
    check_refused(&types(&[3, 1, 1, 1, 3, 4, 5, 7]), "element 7 of tokenizer.ggml.token_type");
    for key in ["bos", "eos"] {
        let key = format!("tokenizer.ggml.{key}_token_id");
        check_refused(&small().number(&key, 8), &format!("{key} is 8, and there are 8 tokens"));
        check_refused(&small().text(&key, "a"), "is not a token's id");
    }
    let error = config(&small().number("tokenizer.ggml.eot_token_id", 8)).unwrap_err();
    assert!(error.to_string().contains("model.gguf"), "{error}");
    let lost = small().without("tokenizer.ggml.bos_token_id");
    check_refused(
        &lost.flag("tokenizer.ggml.add_bos_token", true),
        "no tokenizer.ggml.bos_token_id",
    );
}

#[test]
fn malformed_pieces_are_refused_with_what_is_wrong() {
    let pieces = || small_pieces().number("tokenizer.ggml.eos_token_id", 2);
    assert!(open(&pieces()).is_ok());
    check_refused(&pieces().without("tokenizer.ggml.scores"), "has no tokenizer.ggml.scores");
    let scores = |scores: &[f32]| pieces().floats("tokenizer.ggml.scores", scores);
    check_refused(&scores(&[0.0; 7]), "has 7 elements");
    check_refused(&scores(&[f32::NAN; 8]), "element 0 of tokenizer.ggml.scores");
    let long = "a".repeat(513);
    let tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "a", "b", "ab", &long];
    check_refused(&pieces().texts("tokenizer.ggml.tokens", &tokens), "token 7 in model.gguf");
    // All runs of a letter: each piece of n letters has n - 1 pairs.
    let runs: Vec<String> = (1..=200).map(|length| "a".repeat(length)).collect();
    let runs = pieces()
        .texts("tokenizer.ggml.tokens", &runs)
        .integers("tokenizer.ggml.token_type", &[1; 200])
        .floats("tokenizer.ggml.scores", &[0.0; 200]);
    check_refused(&runs, "pieces with more");
}
