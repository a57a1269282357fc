//! Model configuration from the metadata of a GGUF file, where there is no `config.json`.
//!
//! Metadata keys: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::collections::HashSet;

use nsbridge_checkpoint::{Checkpoint, GgufValue, Order};
use serde_json::{Map, Value, json};

use super::{Config, RopeScaling, gguf_name, tensors, usual_attention_factor};
use crate::error::LoadError;
use crate::metadata::{Facts, stop_ids};

/// Tensor with the divisors of the rotary frequencies.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Scalings of the rotary embedding that a file may name.
const SCALINGS: [&str; 3] = ["none", "linear", "yarn"];

/// Key of the factor by which the usual one of yarn's scaling is multiplied. Only with yarn it is read.
const ATTENTION_FACTOR: &str = "rope.scaling.attn_factor";

/// Keys of an architecture that change what a model computes, with the values that change nothing. This
/// engine computes no other.
const NEUTRAL: [(&str, &[f64]); 18] = [
    ("attention.causal", &[1.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.scale", &[0.0]),
    ("attention.sliding_window_pattern", &[0.0, 1.0]),
    ("attention.temperature_length", &[0.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("expert_count", &[0.0]),
    ("expert_used_count", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    (ATTENTION_FACTOR, &[1.0]),
    ("rope.scaling.yarn_attn_factor", &[1.0]),
    ("rope.scaling.yarn_ext_factor", &[1.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
];

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
    let is_done = |kind: &Value| kind.as_str().is_some_and(|kind| SCALINGS.contains(&kind));
    if let Some(kind) = value("rope.scaling.type").filter(|kind| !is_done(kind)) {
        let field = format!("{architecture}.rope.scaling.type in the GGUF file");
        let found = kind.as_str().map_or_else(|| kind.to_string(), str::to_owned);
        return Err(LoadError::unsupported(field, found, "one of none, linear and yarn"));
    }
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

/// Refuses a file with a key or a tensor that changes what the model computes and is not read: heads
/// that use the rotary embedding only in part, or tensors that the architecture does not have.
pub(super) fn check(checkpoint: &Checkpoint, config: &Config) -> Result<(), LoadError> {
    let value = |key: &str| {
        let key = format!("{}.{key}", config.gguf_architecture());
        let value = checkpoint.metadata().get(&key).and_then(json_of)?;
        Some((format!("{key} in the GGUF file"), value))
    };
    for key in ["rope.dimension_count", "attention.value_length"] {
        let head_dim = config.head_dim;
        if let Some((field, found)) = value(key).filter(|(_, found)| *found != json!(head_dim)) {
            return Err(LoadError::unsupported(
                field,
                found.to_string(),
                format!("all {head_dim}"),
            ));
        }
    }
    let is_yarn = matches!(config.rope.scaling, RopeScaling::Yarn { .. });
    for (key, neutral) in NEUTRAL {
        let is_read = is_yarn && key == ATTENTION_FACTOR;
        let Some((field, found)) = value(key).filter(|_| !is_read) else { continue };
        let number = found.as_bool().map(|flag| f64::from(u8::from(flag)));
        let number = number.or_else(|| found.as_f64());
        if number.is_some_and(|number| !neutral.contains(&number)) {
            let supported = match found.is_boolean() {
                true => (neutral[0] != 0.0).to_string(),
                false => neutral.iter().map(f64::to_string).collect::<Vec<_>>().join(" or "),
            };
            return Err(LoadError::unsupported(field, found.to_string(), supported));
        }
    }
    let known: HashSet<String> = tensors(config).filter_map(|(name, _)| gguf_name(&name)).collect();
    let is_known = |name: &str| known.contains(name) || name == ROPE_FACTORS;
    match checkpoint.tensors().iter().find(|tensor| !is_known(&tensor.name)) {
        Some(tensor) => Err(LoadError::unsupported(
            "a tensor of the GGUF file",
            tensor.name.clone(),
            format!("those of the architecture {} alone", config.gguf_architecture()),
        )),
        None => Ok(()),
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
    for (field, key) in [
        ("original_max_position_embeddings", "rope.scaling.original_context_length"),
        ("beta_fast", "rope.scaling.yarn_beta_fast"),
        ("beta_slow", "rope.scaling.yarn_beta_slow"),
    ] {
        if let Some(value) = value(key) {
            scaling[field] = value;
        }
    }
    let attention = value(ATTENTION_FACTOR).filter(|_| kind == "yarn");
    let numbers = attention.and_then(|value| value.as_f64()).zip(factor.and_then(|it| it.as_f64()));
    if let Some((attention, factor)) = numbers {
        scaling["attention_factor"] = json!(attention * usual_attention_factor(factor));
    }
    Some(scaling)
}

pub(super) fn json_of(value: &GgufValue) -> Option<Value> {
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
    if checkpoint.find(ROPE_FACTORS).is_none() {
        return Ok(None);
    }
    let weights = checkpoint.load(&Order::of([ROPE_FACTORS])).map_err(LoadError::read)?;
    let factors = weights.tensor(ROPE_FACTORS).and_then(|weight| weight.into_vec::<f32>());
    let factors = factors.map_err(LoadError::read)?;
    if let Some(wrong) = factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
        let found = format!("{wrong} for a pair of dimensions");
        return Err(LoadError::unsupported(ROPE_FACTORS, found, "a number above 0"));
    }
    Ok(Some(RopeScaling::Factors { factors }))
}
