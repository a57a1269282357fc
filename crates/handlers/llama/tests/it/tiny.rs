//! Tiny models with random weights, in the file format of transformers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use nsbridge_handler::{Model, Models, testing};
use nsbridge_llama::{Config, Llama, Options, tensors};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

/// End token of a [`vocabulary`] model, and its start token.
pub(crate) const EOS: u32 = 257;
pub(crate) const BOS: u32 = 256;

/// Bytes of the longer tokens in a [literate](Tiny::literate) model.
pub(crate) const PIECES: &[&[u8]] = &[
    b"{\"",
    b"\":",
    b"\",\"",
    b"\"}",
    b"},",
    b"[]",
    b"{}",
    b"],\"",
    b":[",
    b"true",
    b"false",
    b"null",
    b"ue",
    b"\"a",
    b"name",
    b"12",
    b"100",
    b"-1",
    b", ",
    b"\\u00",
    b"\\\"",
    b"the ",
    b"\n\n",
    "灯".as_bytes(),
    "の朝\"".as_bytes(),
    "灯台".as_bytes(),
    b"\xe7\x81",
    b"\xaf\xe5",
    b"\xe3\x81",
    b"\x82\xe3\x81",
    b"\xf0\x9f",
    b"\x9f\x98\x80",
    b"a\xe3",
];

/// Model whose tokens are the 256 bytes, a start token and an end token.
pub(crate) struct Tiny {
    dir: TempDir,
}

impl Tiny {
    pub(crate) fn new() -> Self {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 32,
            "intermediate_size": 48, "vocab_size": 258, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0, "max_position_embeddings": 160, "tie_word_embeddings": true,
            "eos_token_id": EOS
        });
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path(), &config, 5);
        write_vocabulary(dir.path(), &[]);
        Self { dir }
    }

    /// Creates a model with a longer context and longer tokens: parts of JSON, characters and parts
    /// of characters. Token `258 + n` is piece `n`.
    pub(crate) fn literate() -> Self {
        let size = 258 + PIECES.len();
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 32,
            "intermediate_size": 48, "vocab_size": size, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0, "max_position_embeddings": 2048, "tie_word_embeddings": true,
            "eos_token_id": EOS
        });
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path(), &config, 11);
        write_vocabulary(dir.path(), PIECES);
        Self { dir }
    }

    /// Creates a model whose replies only end at the length limit.
    pub(crate) fn endless() -> Self {
        Self::new().without_end()
    }

    /// Removes the end tokens.
    pub(crate) fn without_end(self) -> Self {
        let path = self.dir.path().join("tokenizer_config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        config.as_object_mut().unwrap().remove("eos_token");
        self.with("tokenizer_config.json", &config)
            .with("generation_config.json", &json!({ "eos_token_id": [] }))
    }

    /// Replaces a file of the model.
    pub(crate) fn with(self, file: &str, content: &Value) -> Self {
        std::fs::write(self.dir.path().join(file), content.to_string()).unwrap();
        self
    }

    /// Makes every weight NaN.
    pub(crate) fn break_weights(&self) {
        let path = self.path().join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[8 + header..].fill(0xff);
        std::fs::write(path, bytes).unwrap();
    }

    /// Draws the weights again with this scale. A scale close to a quarter gives a similar model.
    pub(crate) fn draw_again(&self, scale: f32) {
        let config = std::fs::read(self.path().join("config.json")).unwrap();
        write_drawn(self.path(), &serde_json::from_slice(&config).unwrap(), 5, scale);
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn load_with_draft(
        &self,
        draft: &Self,
        options: Options,
    ) -> nsbridge_handler::Result<Arc<Llama>> {
        let models = [("target", self), ("draft", draft)];
        let models = models.map(|(name, tiny)| (name.to_owned(), Model::in_dir(tiny.path())));
        testing::load(options, models.into_iter().collect())
    }

    pub(crate) fn load(&self, options: Options) -> nsbridge_handler::Result<Arc<Llama>> {
        testing::load(options, models(self.path()))
    }
}

pub(crate) fn models(dir: &Path) -> Models {
    [("target".to_owned(), Model::in_dir(dir))].into_iter().collect()
}

/// Writes `config.json` and random weights as described in `reference.py`.
pub(crate) fn write_model(dir: &Path, config: &Value, seed: u64) {
    write_drawn(dir, config, seed, 0.25);
}

/// Writes a model with `scale` instead of a quarter for all weights except norms, as described in
/// `families.py`.
pub(crate) fn write_drawn(dir: &Path, config: &Value, seed: u64, scale: f32) {
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let config = Config::read(&Model::in_dir(dir)).unwrap();
    let mut state = seed;
    let mut draw = |norm: bool| {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        let value = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
        if norm { value / 4.0 + 1.0 } else { value * scale }
    };
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = tensors(&config)
        .map(|(name, shape)| {
            let norm = name.ends_with("norm.weight");
            let values = (0..shape.iter().product()).map(|_: usize| draw(norm));
            let bytes = values.flat_map(f32::to_le_bytes).collect();
            (name, shape, bytes)
        })
        .collect();
    let views: HashMap<_, _> = tensors
        .iter()
        .map(|(name, shape, bytes)| {
            (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
        })
        .collect();
    safetensors::serialize_to_file(&views, None, &dir.join("model.safetensors")).unwrap();
}

/// Writes a byte-level tokenizer without merges: token `n` is byte `n`, and the pieces follow the
/// two special tokens.
fn write_vocabulary(dir: &Path, pieces: &[&[u8]]) {
    let mut others = '\u{100}'..;
    let spelt = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => others.next().unwrap(),
    };
    let spelt: Vec<char> = (0..=u8::MAX).map(spelt).collect();
    let mut vocabulary: serde_json::Map<String, Value> =
        (0..256).map(|byte| (spelt[byte].to_string(), json!(byte))).collect();
    for (piece, id) in pieces.iter().zip(EOS + 1..) {
        let piece = piece.iter().map(|&byte| spelt[usize::from(byte)]).collect();
        vocabulary.insert(piece, json!(id));
    }
    let special = |id: u32, content: &str| {
        json!({ "id": id, "content": content, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false })
    };
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [special(BOS, "<s>"), special(EOS, "</s>")],
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [], "ignore_merges": false,
                   "byte_fallback": false, "fuse_unk": false, "dropout": null, "unk_token": null,
                   "continuing_subword_prefix": null, "end_of_word_suffix": null }
    });
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = json!({ "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true, "chat_template":
        "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}" });
    std::fs::write(dir.join("tokenizer_config.json"), config.to_string()).unwrap();
}
