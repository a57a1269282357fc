//! Tests of parsing transformers' configurations, and of errors that name the unsupported field.

use serde_json::{Value, json};

use super::{Advice, Config, Rope, RopeScaling, tensors};
use crate::capacity::{Memory, Need, parameters};
use crate::error::LoadError;
use crate::kv::KvFormat;
use nsbridge_kernels::Format;

fn tiny() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
        "vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "torch_dtype": "bfloat16", "eos_token_id": 2
    })
}

fn read(changes: &Value, advice: &Value) -> Result<Config, LoadError> {
    let mut file = tiny();
    for (field, value) in changes.as_object().unwrap() {
        file[field] = value.clone();
    }
    let advice: Advice = serde_json::from_value(advice.clone()).unwrap();
    Config::new(&serde_json::from_value(file).unwrap(), advice)
}

#[track_caller]
fn check_refused(changes: &Value, field: &str) {
    let error = read(changes, &json!({})).unwrap_err().to_string();
    assert!(error.contains(field), "{error}");
}

#[test]
fn transformers_4_and_5_describe_the_same_positions() {
    let four = json!({ "rope_theta": 5e5, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64
    }});
    let mut parameters = four["rope_scaling"].clone();
    parameters["rope_theta"] = json!(5e5);
    let five = json!({ "rope_parameters": parameters, "dtype": "bfloat16" });
    let expected = Rope {
        theta: 5e5,
        scaling: RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 64.0,
        },
    };
    assert_eq!(read(&four, &json!({})).unwrap().rope, expected);
    assert_eq!(read(&five, &json!({})).unwrap().rope, expected);
}

#[test]
fn what_is_absent_follows_from_the_rest() {
    let config = read(&json!({}), &json!({})).unwrap();
    assert_eq!((config.kv_heads, config.head_dim, config.tied), (4, 16, false));
    assert_eq!(config.rope, Rope { theta: 10_000.0, scaling: RopeScaling::None });
    let config = read(&json!({ "head_dim": 32, "num_key_value_heads": 2 }), &json!({})).unwrap();
    assert_eq!((config.kv_heads, config.head_dim), (2, 32));
}

#[test]
fn tokens_of_either_file_end_a_reply_unless_the_generation_config_says_that_none_does() {
    let eos = |advice: Value| read(&json!({}), &advice).unwrap().eos;
    assert_eq!(eos(json!({})), [2]);
    assert_eq!(eos(json!({ "eos_token_id": [7, 9] })), [7, 9, 2]);
    assert_eq!(eos(json!({ "eos_token_id": [2, 7] })), [2, 7]);
    assert_eq!(eos(json!({ "eos_token_id": [] })), [0; 0]);
    let advice = json!({ "eos_token_id": 7, "temperature": 0.6 });
    assert_eq!(read(&json!({}), &advice).unwrap().advice.temperature, Some(0.6));
}

fn family(name: &str, changes: &Value) -> Result<Config, LoadError> {
    let mut changes = changes.clone();
    changes["architectures"] = json!([format!("{name}ForCausalLM")]);
    read(&changes, &json!({}))
}

#[test]
fn each_family_has_the_biases_and_norms_of_its_own_class() {
    let of = |name: &str, changes: Value| {
        let config = family(name, &changes).unwrap();
        (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm)
    };
    let kv = json!({ "num_key_value_heads": 2 });
    let asked = json!({ "num_key_value_heads": 2, "attention_bias": true });
    assert_eq!(of("Llama", json!({})), (false, false, false, false));
    assert_eq!(of("Llama", json!({ "mlp_bias": true })), (false, false, true, false));
    assert_eq!(of("Llama", asked.clone()), (true, true, false, false));
    assert_eq!(of("Mistral", kv.clone()), (false, false, false, false));
    assert_eq!(of("Qwen2", kv.clone()), (true, false, false, false));
    assert_eq!(of("Qwen2", asked.clone()), (true, false, false, false));
    assert_eq!(of("Qwen3", kv), (false, false, false, true));
    assert_eq!(of("Qwen3", asked), (true, true, false, true));
}

#[test]
fn what_a_family_takes_for_granted_is_what_its_class_does() {
    let heads = json!({ "num_attention_heads": 32, "hidden_size": 64 });
    let of = |name: &str| {
        let config = family(name, &heads).unwrap();
        (config.kv_heads, config.head_dim)
    };
    assert_eq!([of("Llama"), of("Mistral"), of("Qwen2")], [(32, 2), (8, 2), (32, 2)]);
    assert_eq!(of("Qwen3"), (32, 128));
    let null = json!({ "num_key_value_heads": null, "head_dim": null });
    let config = family("Qwen3", &null).unwrap();
    assert_eq!((config.kv_heads, config.head_dim), (4, 16));
}

#[test]
fn windows_are_where_the_family_puts_them() {
    let of = |name: &str, mut changes: Value| {
        changes["num_key_value_heads"] = json!(2);
        family(name, &changes).unwrap().windows
    };
    assert_eq!(of("Llama", json!({ "sliding_window": 8 })), [None, None]);
    assert_eq!(of("Mistral", json!({ "sliding_window": 8 })), [Some(8), Some(8)]);
    assert_eq!(of("Mistral", json!({ "sliding_window": null })), [None, None]);
    assert_eq!(of("Mistral", json!({})), [Some(4096), Some(4096)]);
    assert_eq!(of("Qwen2", json!({ "sliding_window": 8, "max_window_layers": 0 })), [None, None]);
    let sliding = json!({ "use_sliding_window": true, "sliding_window": 8 });
    assert_eq!(of("Qwen2", sliding.clone()), [None, None]);
    let mut first = sliding;
    first["max_window_layers"] = json!(1);
    assert_eq!(of("Qwen3", first.clone()), [None, Some(8)]);
    first["layer_types"] = json!(["sliding_attention", "full_attention"]);
    assert_eq!(of("Qwen3", first), [Some(8), None]);
}

#[test]
fn tensors_and_memory_follow_from_the_shape() {
    let changes = json!({ "num_key_value_heads": 2, "head_dim": 24, "tie_word_embeddings": true });
    let config = family("Qwen3", &changes).unwrap();
    let listed: Vec<_> = tensors(&config).collect();
    let shape = |name: &str| listed.iter().find(|(n, _)| n == name).map(|(_, s)| &s[..]);
    assert_eq!(shape("model.layers.1.self_attn.q_proj.weight"), Some(&[96, 64][..]));
    assert_eq!(shape("model.layers.1.self_attn.k_norm.weight"), Some(&[24][..]));
    assert_eq!(shape("model.layers.0.self_attn.q_proj.bias"), None);
    assert_eq!(shape("lm_head.weight"), None);
    assert_eq!(listed.len(), 1 + 2 * 11 + 1);

    let layer = 2 * 96 * 64 + 2 * 48 * 64 + 3 * 64 * 96 + 2 * 64 + 2 * 24;
    let weights = 50 * 64 + 2 * layer + 64;
    assert_eq!(parameters(&config), weights);
    let memory = Memory::new(&config, 1, 4.0, KvFormat::Bf16, 1000);
    assert_eq!((memory.weights, memory.position), (4 * weights, 2 * 2 * 2 * 24 * 2));
    assert_eq!(memory.bytes(), 4 * weights + 1000 * 384);
    let sum = "0.3 MiB of weights + 1000 positions x 384 B of keys and values = 0.7 MiB";
    assert_eq!(memory.to_string(), sum);
}

#[test]
fn what_cannot_be_served_is_refused_with_its_field() {
    check_refused(&json!({ "architectures": ["GemmaForCausalLM"] }), "architectures");
    check_refused(&json!({ "hidden_act": "gelu" }), "hidden_act");
    check_refused(&json!({ "quantization_config": {} }), "quantization_config");
    for method in ["awq", "gptq", "bitsandbytes"] {
        let config = json!({ "quantization_config": { "quant_method": method, "bits": 4 } });
        check_refused(&config, &format!("in config.json is {method}, not fp8; quantize the model"));
    }
    let packed = json!({ "quant_method": "compressed-tensors", "format": "pack-quantized" });
    check_refused(&json!({ "quantization_config": packed }), "in the format pack-quantized");
    check_refused(&json!({ "num_key_value_heads": 3 }), "num_key_value_heads");
    check_refused(&json!({ "num_hidden_layers": 0 }), "num_hidden_layers");
    check_refused(&json!({ "num_hidden_layers": 1_u64 << 40 }), "num_hidden_layers");
    check_refused(&json!({ "vocab_size": 1_u64 << 40 }), "vocab_size");
    check_refused(&json!({ "head_dim": 15 }), "head_dim");
    check_refused(&json!({ "num_attention_heads": 5 }), "head_dim");
    check_refused(&json!({ "rms_norm_eps": -1e-5 }), "rms_norm_eps");
    check_refused(&json!({ "layer_types": ["full_attention"] }), "layer_types");
    let chunked = json!({ "layer_types": ["full_attention", "chunked_attention"] });
    check_refused(&chunked, "chunked_attention");
    for (name, field, value) in [
        ("Mistral", "mlp_bias", json!(true)),
        ("Mistral", "attention_bias", json!(true)),
        ("Mistral", "sliding_window", json!(0)),
        ("Mistral", "layer_types", json!(["full_attention", "sliding_attention"])),
        ("Qwen2", "layer_types", json!(["full_attention", "sliding_attention"])),
    ] {
        let error = family(name, &json!({ field: value })).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}

#[test]
fn positions_that_cannot_be_served_are_refused_with_their_field() {
    let scaling = |value: Value| json!({ "rope_scaling": value });
    check_refused(&scaling(json!({ "type": "longrope" })), "rope_scaling.rope_type");
    check_refused(&scaling(json!({ "type": "mrope" })), "mrope");
    check_refused(&scaling(json!({ "type": "linear", "factor": 0 })), "rope_scaling.factor");
    check_refused(&json!({ "rope_parameters": { "rope_type": "llama3" } }), "factor");
    check_refused(&json!({ "rope_parameters": { "partial_rotary_factor": 0.5 } }), "partial");
    check_refused(&json!({ "partial_rotary_factor": 0.5 }), "partial_rotary_factor");
    check_refused(&json!({ "rope_theta": 1.0 }), "rope_theta");
    let nested = json!({ "full_attention": { "rope_type": "default" } });
    check_refused(&json!({ "rope_parameters": nested }), "rope_parameters.full_attention");
    let flat = json!({ "rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                       "high_freq_factor": 4 });
    check_refused(&scaling(flat), "high_freq_factor");
}

#[test]
fn dynamic_positions_are_plain_ones_up_to_the_context() {
    let dynamic = json!({ "rope_scaling": { "type": "dynamic", "factor": 4.0 } });
    assert_eq!(read(&dynamic, &json!({})).unwrap().rope.scaling, RopeScaling::None);
}

#[test]
fn yarn_takes_its_defaults_from_the_file_and_the_paper() {
    let of = |changes: Value| {
        let mut scaling = json!({ "rope_type": "yarn" });
        for (field, value) in changes.as_object().unwrap() {
            scaling[field] = value.clone();
        }
        read(&json!({ "rope_scaling": scaling }), &json!({})).unwrap().rope
    };
    let plain = of(json!({ "factor": 4.0 }));
    let expected = RopeScaling::Yarn {
        factor: 4.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 128.0,
        truncate: true,
        attention_factor: 0.1 * libm::log(4.0) + 1.0,
    };
    assert_eq!(plain.scaling, expected);
    let original = json!({ "original_max_position_embeddings": 32 });
    let both = json!({ "factor": 4.0, "original_max_position_embeddings": 32 });
    assert_eq!(of(original), of(both));
    assert_eq!(of(json!({ "factor": 4.0, "attention_factor": 2.0 })).attention_scaling(), 2.0);
    let cancelled = json!({ "factor": 4.0, "mscale": 1, "mscale_all_dim": 1 });
    assert_eq!(of(cancelled).attention_scaling(), 1.0);
}

#[test]
fn degrees_are_those_of_heads_and_segments_and_others_are_refused_with_the_reason() {
    let shape = |heads: usize, kv: usize, dim: usize, wide: usize| {
        let shape = json!({
            "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim,
            "intermediate_size": wide
        });
        read(&shape, &json!({})).unwrap()
    };
    // Shapes of Llama 2 70B, Llama 3.2 1B and TinyLlama.
    let large = shape(64, 8, 128, 28_672);
    let small = shape(32, 4, 64, 5632);
    for (config, format, legal) in [
        (&large, Format::Q4K, vec![1, 2, 4, 8]),
        (&small, Format::Bf16, vec![1, 2, 4, 8]),
        (&small, Format::Q8_0, vec![1, 2, 4, 8]),
        (&small, Format::Q4K, vec![1, 2]),
        (&shape(12, 12, 64, 3072), Format::F32, vec![1, 2, 4]),
        (&shape(24, 3, 64, 3072), Format::F32, vec![1]),
    ] {
        assert_eq!(config.degrees(format), legal, "{format:?}");
    }
    for (config, ranks, format, words) in [
        (&large, 3, Format::F32, "is no power of two up to 8"),
        (&large, 0, Format::F32, "is no power of two up to 8"),
        (&large, 16, Format::F32, "is no power of two up to 8"),
        (&shape(12, 12, 64, 3072), 8, Format::F32, "does not divide the 12 attention heads"),
        (&shape(24, 3, 64, 3072), 2, Format::F32, "a multiple of the 3 key-value heads"),
        (
            &small,
            8,
            Format::Q4K,
            "does not divide 2, the number of equal segments of whole 256-column blocks",
        ),
    ] {
        let why = config.refuses(ranks, format).unwrap();
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn ranks_hold_a_model_between_them_and_keys_twice_where_there_are_too_few() {
    let changes = json!({
        "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "hidden_size": 8192, "intermediate_size": 28_672, "vocab_size": 32_000,
        "max_position_embeddings": 4096, "tie_word_embeddings": false
    });
    let large = read(&changes, &json!({})).unwrap();
    let need = |ranks| large.need(ranks, Format::Bf16, 2.0, KvFormat::Bf16).unwrap();
    // Llama 2 70B: 68,976,648,192 parameters; 2 x 80 layers x 8 heads x 128 x 2 bytes.
    assert_eq!(need(1), Need { weights: 137_953_296_384, position: 327_680 });
    // Everything except 161 norms of 8192 is divided.
    let norms = 161 * 8192 * 2;
    for ranks in [2, 4, 8] {
        let (one, whole) = (need(ranks), need(1));
        assert_eq!((one.weights - norms) * ranks as u64, whole.weights - norms);
        assert_eq!(one.position * ranks as u64, whole.position);
    }
    let few = read(&json!({ "num_key_value_heads": 1 }), &json!({})).unwrap();
    let position = |ranks| few.need(ranks, Format::F32, 4.0, KvFormat::F32).unwrap().position;
    assert_eq!(position(4), position(1));
    assert!(
        few.need(8, Format::F32, 4.0, KvFormat::F32).unwrap_err().contains("4 attention heads")
    );
}
