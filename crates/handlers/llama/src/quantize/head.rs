//! Header of a GGUF file: metadata, and the location of each tensor.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, version 3.

mod carried;

use nsbridge_checkpoint::{Dtype, GgufValue};

use crate::config::{Config, RopeScaling, usual_attention_factor};

/// Alignment of each tensor in bytes, from the end of the header.
pub(super) const ALIGNMENT: u64 = 32;

/// Version of ggml's block layouts.
const QUANTIZATION: u32 = 2;

/// Tensor of the file.
#[derive(Debug)]
pub(super) struct Entry {
    /// Name of the tensor in GGUF.
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: Dtype,
}

impl Entry {
    /// Returns the number of rows; in a vector each element is a row.
    pub(super) fn rows(&self) -> usize {
        self.shape[0]
    }

    pub(super) fn columns(&self) -> usize {
        self.shape[1..].iter().product()
    }

    pub(super) fn bytes(&self) -> u64 {
        let (count, size) = self.dtype.block();
        (self.rows() * (self.columns() / count * size)) as u64
    }
}

/// Builds the header. The tensors follow it in this order, each [aligned](ALIGNMENT). `vocabulary` is
/// the metadata of the model's own vocabulary, if it has no `tokenizer.json`. `kind` is the file's
/// `llama_ftype` in llama.h.
pub(super) fn head(
    config: &Config,
    kind: u32,
    tensors: &[Entry],
    vocabulary: &[(&str, &GgufValue)],
) -> Vec<u8> {
    let values = values(config, kind, vocabulary);
    let mut head = b"GGUF".to_vec();
    head.extend(3_u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend(values.count.to_le_bytes());
    head.extend(values.bytes);
    let mut start = 0_u64;
    for tensor in tensors {
        text(&mut head, &tensor.name);
        head.extend((tensor.shape.len() as u32).to_le_bytes());
        // GGUF lists the innermost dimension first.
        head.extend(tensor.shape.iter().rev().flat_map(|size| (*size as u64).to_le_bytes()));
        head.extend(tensor.dtype.ggml_type().unwrap_or_default().to_le_bytes());
        head.extend(start.to_le_bytes());
        start += tensor.bytes().next_multiple_of(ALIGNMENT);
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
    head
}

fn values(config: &Config, kind: u32, vocabulary: &[(&str, &GgufValue)]) -> Values {
    let architecture = config.gguf_architecture();
    let mut values = Values::default();
    values.text("general.architecture", architecture);
    values.number("general.file_type", kind);
    values.number("general.quantization_version", QUANTIZATION);
    vocabulary.iter().for_each(|(key, value)| values.value(key, value));
    if vocabulary.is_empty() {
        // The vocabulary is in the model's tokenizer.json.
        values.text("tokenizer.ggml.model", "no_vocab");
        if let Some(eos) = config.eos.first() {
            values.number("tokenizer.ggml.eos_token_id", *eos);
        }
    }
    let of = |key: &str| format!("{architecture}.{key}");
    for (key, value) in [
        ("vocab_size", config.vocab_size),
        ("context_length", config.context),
        ("embedding_length", config.hidden_size),
        ("block_count", config.layers),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.heads),
        ("attention.head_count_kv", config.kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", config.head_dim),
    ] {
        values.number(&of(key), value as u32);
    }
    values.float(&of("attention.layer_norm_rms_epsilon"), config.rms_norm_eps);
    values.float(&of("rope.freq_base"), config.rope.theta as f32);
    let scaling = match config.rope.scaling {
        RopeScaling::Linear { factor } => Some(("linear", factor, None)),
        RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast,
            beta_slow,
            attention_factor,
            truncate: _,
        } => {
            // GGUF has the factor of the usual one.
            let attention = attention_factor / usual_attention_factor(factor);
            if attention != 1.0 {
                values.float(&of("rope.scaling.attn_factor"), attention as f32);
            }
            values.float(&of("rope.scaling.yarn_beta_fast"), beta_fast as f32);
            values.float(&of("rope.scaling.yarn_beta_slow"), beta_slow as f32);
            Some(("yarn", factor, Some(original_context)))
        }
        // Other kinds of scaling are stored as a tensor, or there is none.
        _ => None,
    };
    if let Some((kind, factor, original)) = scaling {
        values.text(&of("rope.scaling.type"), kind);
        values.float(&of("rope.scaling.factor"), factor as f32);
        if let Some(original) = original {
            values.number(&of("rope.scaling.original_context_length"), original as u32);
        }
    }
    // GGUF cannot express a window of only some layers.
    let window = config.windows.first().copied().flatten();
    if let Some(window) = window.filter(|window| config.windows.iter().all(|w| w == &Some(*window)))
    {
        values.number(&of("attention.sliding_window"), window as u32);
    }
    values
}

/// Metadata keys and values in the file's encoding.
#[derive(Default)]
struct Values {
    count: u64,
    bytes: Vec<u8>,
}

impl Values {
    fn push(&mut self, key: &str, kind: u32) {
        self.count += 1;
        text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.push(key, 8);
        text(&mut self.bytes, value);
    }

    fn number(&mut self, key: &str, value: u32) {
        self.push(key, 4);
        self.bytes.extend(value.to_le_bytes());
    }

    /// Adds a value of another file.
    fn value(&mut self, key: &str, value: &GgufValue) {
        let kind = carried::kind(std::slice::from_ref(value));
        self.push(key, kind);
        carried::write(&mut self.bytes, value, kind);
    }

    fn float(&mut self, key: &str, value: f32) {
        self.push(key, 6);
        self.bytes.extend(value.to_le_bytes());
    }
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}
