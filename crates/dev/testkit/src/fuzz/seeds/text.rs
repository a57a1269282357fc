//! Seeds of shapes, tokenizers and formats.

use serde_json::{Map, Value, json};

/// A good `config.json`.
pub(in crate::fuzz) const CONFIG: &[u8] =
    br#"{"architectures":["LlamaForCausalLM"],"hidden_size":64,
"intermediate_size":128,"vocab_size":300,"num_hidden_layers":2,"num_attention_heads":4,
"num_key_value_heads":2,"max_position_embeddings":512,"rms_norm_eps":1e-5,"eos_token_id":[2,3]}"#;

/// A good `tokenizer_config.json`.
pub(in crate::fuzz) const TOKENIZER_CONFIG: &[u8] = br#"{"bos_token":"<s>","eos_token":{"content":
"<|end|>"},"chat_template":"{{ bos_token }}{% for message in messages %}<s>{{ message.role }}
{{ message.content | trim }}<|end|>{% endfor %}"}"#;

pub(in crate::fuzz) fn config() -> Vec<Vec<u8>> {
    let with = |fields: Value| {
        let mut config: Map<String, Value> = serde_json::from_slice(CONFIG).expect("a good one");
        config.extend(fields.as_object().expect("an object").clone());
        serde_json::to_vec(&config).expect("JSON")
    };
    let llama3 = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192 });
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6,
        "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1, "truncate": false });
    let linear = json!({ "type": "linear", "factor": 2.0 });
    vec![
        CONFIG.to_vec(),
        with(json!({ "rope_scaling": llama3, "rope_theta": 500_000.0, "tie_word_embeddings": true })),
        with(json!({ "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true,
            "sliding_window": 64, "max_window_layers": 1, "rope_parameters": yarn })),
        with(json!({ "architectures": ["Qwen3ForCausalLM"], "head_dim": 32, "attention_bias": true,
            "layer_types": ["full_attention", "full_attention"], "sliding_window": null })),
        with(json!({ "architectures": ["MistralForCausalLM"], "sliding_window": 256,
            "num_key_value_heads": null, "rope_scaling": linear })),
        br#"{"temperature":0.6,"top_p":0.9,"top_k":40,"min_p":0.05,"repetition_penalty":1.1,"eos_token_id":7}"#
            .to_vec(),
    ]
}

/// A tokenizer of bytes, as GPT-2's.
pub(in crate::fuzz) fn byte_level() -> Vec<u8> {
    let mut others = '\u{100}'..;
    let spelt = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => Some(char::from(byte)),
        _ => others.next(),
    };
    let words = (0..=u8::MAX).filter_map(spelt).map(String::from);
    let words = words.chain(["th", "the", "11", "ĠĠ"].map(str::to_owned));
    let parts = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true });
    written(json!({
        "added_tokens": added(&["<s>", "<|end|>"], 260),
        "normalizer": { "type": "NFC" }, "pre_tokenizer": parts, "decoder": parts,
        "model": { "type": "BPE", "vocab": numbered(words),
            "merges": ["t h", "th e", ["1", "1"], ["Ġ", "Ġ"]] },
    }))
}

pub(in crate::fuzz) fn tokenizer() -> Vec<Vec<u8>> {
    let words = ["<unk>", "<s>", "</s>", "▁", "t", "h", "e", "th", "the", "▁the", "あ", "1"];
    let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
    let blanks = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let sentence_piece = json!({
        "added_tokens": added(&["<unk>", "<s>", "</s>"], 0),
        "normalizer": { "type": "Sequence",
            "normalizers": [{ "type": "Prepend", "prepend": "▁" }, blanks] },
        "post_processor": { "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } },
                { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } },
                { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] } } },
        "decoder": { "type": "Sequence", "decoders": [{ "type": "ByteFallback" }, { "type": "Fuse" }] },
        "model": { "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": numbered(words.map(str::to_owned).into_iter().chain(bytes)),
            "merges": ["t h", "th e", "▁ the"] },
    });
    let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
        "split": true });
    let unigram = json!({
        "added_tokens": added(&["<unk>", "<s>"], 0), "normalizer": { "type": "NFKC" },
        "pre_tokenizer": metaspace, "decoder": metaspace,
        "model": { "type": "Unigram", "unk_id": 0, "byte_fallback": false,
            "vocab": [["<unk>", 0.0], ["<s>", 0.0], ["▁", -2.5], ["the", -3.0], ["e", -4.5]] },
    });
    let split = json!({ "type": "Split", "pattern": { "Regex": "\\p{L}+|\\s+(?!\\S)|\\p{N}{1,3}" },
        "behavior": "Isolated", "invert": false });
    let pieces = json!({
        "truncation": { "direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 1 },
        "padding": { "strategy": { "Fixed": 4 }, "direction": "Left", "pad_to_multiple_of": 2,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>" },
        "added_tokens": added(&["<s>"], 0),
        "normalizer": { "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [split, { "type": "Whitespace" },
            { "type": "Digits", "individual_digits": true }] },
        "decoder": metaspace,
        "model": { "type": "WordPiece", "unk_token": "<s>", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": { "<s>": 0, "the": 1, "##r": 2, "o": 3 } },
    });
    let mut seeds = vec![byte_level(), TOKENIZER_CONFIG.to_vec()];
    seeds.extend([sentence_piece, unigram, pieces].map(written));
    seeds
}

fn added(contents: &[&str], first: usize) -> Value {
    let token = |(id, content): (usize, &&str)| {
        json!({ "id": id, "content": content, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false })
    };
    (first..).zip(contents).map(token).collect()
}

fn numbered(words: impl Iterator<Item = String>) -> Value {
    words.zip(0..).map(|(word, id): (_, u32)| (word, json!(id))).collect::<Map<_, _>>().into()
}

fn written(mut tokenizer: Value) -> Vec<u8> {
    tokenizer["version"] = json!("1.0");
    serde_json::to_vec(&tokenizer).expect("JSON")
}

pub(in crate::fuzz) fn format() -> Vec<Vec<u8>> {
    let person = json!({ "type": "object", "required": ["name", "age"], "additionalProperties": false,
        "properties": { "name": { "type": "string", "minLength": 1, "maxLength": 8 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150, "multipleOf": 5 },
            "tags": { "type": "array", "items": { "enum": ["a", "b", null] }, "maxItems": 2 } } });
    let tree = json!({ "$defs": { "tree": { "anyOf": [{ "type": "null" },
            { "type": "array", "items": { "$ref": "#/$defs/tree" }, "minItems": 1, "maxItems": 2 }] } },
        "allOf": [{ "$ref": "#/$defs/tree" }, { "not": { "const": 1 } }] });
    let names = json!({ "patternProperties": { "^a+$": { "type": "number", "exclusiveMinimum": 0.5 } },
        "type": "object", "minProperties": 1 });
    let texts = json!({ "oneOf": [{ "type": "string", "format": "date" },
        { "type": "string", "pattern": "^x[0-9]{2}$" }, { "type": "boolean" }] });
    let schema = |schema: Value| json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema, "strict": true } });
    let regex = |regex: &str| json!({ "type": "regex", "regex": regex });
    let formats = [
        json!({ "type": "json_object" }),
        schema(person),
        schema(tree),
        schema(names),
        schema(texts),
        regex("(?i)[a-c]{2,4}(あ|12)*\\d+|\\p{Lu}x?"),
        regex("^(true|false)(,(true|false)){0,3}$"),
        regex("(?x) a b # and more\n [^\\s\"]+?"),
    ];
    formats.map(|format| serde_json::to_vec(&format).expect("JSON")).into()
}
