//! Model configuration from the metadata of a GGUF file, where there is no `config.json`.
//!
//! Metadata keys: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use nsbridge_checkpoint::{Checkpoint, GgufValue, Order};
use serde_json::{Map, Value, json};

use super::{Config, RopeScaling};
use crate::error::LoadError;
use crate::metadata::{Facts, stop_ids};

/// Builds the equivalent of a `config.json` from the metadata.
///
/// # Errors
///
/// Returns an error if the architecture is missing or unknown, or if the tokens that end a reply are
/// malformed.
pub(super) fn config(checkpoint: &Checkpoint) -> Result<Value, LoadError> {
    let metadata = checkpoint.metadata();
    let Some(GgufValue::Text(architecture)) = metadata.get("general.architecture") else {
        let why = "the GGUF file does not say what it is, its general.architecture";
        return Err(LoadError::Missing(why.to_owned()));
    };
    let architecture = architecture.as_str();
    let value = |key: &str| metadata.get(&format!("{architecture}.{key}")).and_then(json_of);
    // A width of 0 means no window.
    let window = value("attention.sliding_window").filter(|window| *window != json!(0));
    let windowed = window.is_some();
    let class = match architecture {
        // GGUF calls Mistral `llama` too; only the window tells them apart.
        "llama" if windowed => "MistralForCausalLM",
        "llama" => "LlamaForCausalLM",
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        other => {
            let field = "general.architecture in the GGUF file";
            return Err(LoadError::unsupported(field, other, "one of llama, qwen2 and qwen3"));
        }
    };
    let has = |name: &str| checkpoint.find(name).is_some();
    let mut config = Map::new();
    config.insert("architectures".to_owned(), json!([class]));
    let words = match metadata.get("tokenizer.ggml.tokens") {
        Some(GgufValue::Array(words)) => Some(json!(words.len())),
        _ => None,
    };
    let rows = checkpoint.find("token_embd.weight").and_then(|tensor| tensor.shape.first());
    let stops = Facts::of(checkpoint).map(|facts| stop_ids(&facts)).transpose()?;
    // Without any, a reply ends at its limit.
    let stops = stops.filter(|stops| !stops.is_empty()).map(|stops| json!(stops));
    for (field, value) in [
        ("hidden_size", value("embedding_length")),
        ("intermediate_size", value("feed_forward_length")),
        ("num_hidden_layers", value("block_count")),
        ("num_attention_heads", value("attention.head_count")),
        // Default: as many as query heads.
        (
            "num_key_value_heads",
            value("attention.head_count_kv").or_else(|| value("attention.head_count")),
        ),
        ("head_dim", value("attention.key_length")),
        ("max_position_embeddings", value("context_length")),
        ("rms_norm_eps", value("attention.layer_norm_rms_epsilon")),
        ("rope_theta", value("rope.freq_base")),
        ("sliding_window", window),
        ("vocab_size", rows.map(|rows| json!(rows)).or(words)),
        ("eos_token_id", stops),
        ("rope_scaling", scaling(&value)),
    ] {
        if let Some(value) = value {
            config.insert(field.to_owned(), value);
        }
    }
    if windowed {
        // GGUF has a single window for all layers.
        config.insert("use_sliding_window".to_owned(), json!(true));
        config.insert("max_window_layers".to_owned(), json!(0));
    }
    if architecture != "qwen2" {
        refuse_what_is_not_done(&has, windowed)?;
    }
    let flags = [
        ("tie_word_embeddings", !has("output.weight")),
        ("attention_bias", has("blk.0.attn_output.bias")),
        ("mlp_bias", has("blk.0.ffn_down.bias")),
    ];
    config.extend(flags.map(|(field, flag)| (field.to_owned(), flag.into())));
    Ok(Value::Object(config))
}

/// Refuses combinations of biases that no family has.
fn refuse_what_is_not_done(has: &impl Fn(&str) -> bool, windowed: bool) -> Result<(), LoadError> {
    let [queries, output] = ["blk.0.attn_q.bias", "blk.0.attn_output.bias"];
    let (one, supported) = match (has(queries), has(output)) {
        (true, false) => (queries, format!("one beside {output}")),
        (false, true) => (output, format!("one beside {queries}")),
        (true, true) if windowed => (queries, "one without a sliding window".to_owned()),
        _ => return Ok(()),
    };
    Err(LoadError::unsupported("a tensor of the GGUF file", one, supported))
}

/// Refuses a file whose heads use the rotary embedding only in part.
pub(super) fn check_turned(checkpoint: &Checkpoint, config: &Config) -> Result<(), LoadError> {
    let (key, head_dim) =
        (format!("{}.rope.dimension_count", config.gguf_architecture()), config.head_dim);
    match checkpoint.metadata().get(&key).and_then(json_of) {
        Some(turned) if turned != json!(head_dim) => Err(LoadError::unsupported(
            format!("{key} in the GGUF file"),
            turned.to_string(),
            format!("all {head_dim}"),
        )),
        _ => Ok(()),
    }
}

/// Reads the RoPE scaling with llama.cpp's defaults: a missing type means linear, and a missing
/// factor is read from the older key or means 1.
fn scaling(value: &impl Fn(&str) -> Option<Value>) -> Option<Value> {
    let kind = value("rope.scaling.type").unwrap_or_else(|| json!("linear"));
    let factor = value("rope.scaling.factor").or_else(|| value("rope.scale_linear"));
    let scales = |factor: &Value| ![Some(0.0), Some(1.0)].contains(&factor.as_f64());
    let by_factor = kind == "linear" || kind == "yarn";
    if kind == "none" || by_factor && !factor.as_ref().is_some_and(scales) {
        return None;
    }
    let mut scaling = json!({ "rope_type": kind, "factor": factor });
    if let Some(original) = value("rope.scaling.original_context_length") {
        scaling["original_max_position_embeddings"] = original;
    }
    Some(scaling)
}

fn json_of(value: &GgufValue) -> Option<Value> {
    Some(match value {
        GgufValue::Unsigned(n) => json!(n),
        GgufValue::Signed(n) => json!(n),
        GgufValue::Float(x) => json!(x),
        GgufValue::Text(text) => json!(text),
        GgufValue::Bool(flag) => json!(flag),
        _ => return None,
    })
}

/// Reads the divisors of the frequencies, if the file has them. GGUF stores Llama 3's scaling in
/// this form.
pub(super) fn rope_factors(checkpoint: &Checkpoint) -> Result<Option<RopeScaling>, LoadError> {
    const NAME: &str = "rope_freqs.weight";
    if checkpoint.find(NAME).is_none() {
        return Ok(None);
    }
    let weights = checkpoint.load(&Order::of([NAME])).map_err(LoadError::read)?;
    let factors = weights.tensor(NAME).and_then(|weight| weight.into_vec::<f32>());
    let factors = factors.map_err(LoadError::read)?;
    if let Some(wrong) = factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
        let found = format!("{wrong} for a pair of dimensions");
        return Err(LoadError::unsupported(NAME, found, "a number above 0"));
    }
    Ok(Some(RopeScaling::Factors { factors }))
}
