//! What transformers writes is read, and what cannot be served is refused by name.

use serde_json::{Value, json};

use super::{Advice, Config, Rope, RopeScaling};
use crate::LoadError;

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
    Config::new(serde_json::from_value(file).unwrap(), advice)
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
fn the_generation_config_decides_which_tokens_end_a_reply() {
    assert_eq!(read(&json!({}), &json!({})).unwrap().eos, [2]);
    let advice = json!({ "eos_token_id": [7, 9], "temperature": 0.6 });
    let config = read(&json!({}), &advice).unwrap();
    assert_eq!((config.eos, config.advice.temperature), (vec![7, 9], Some(0.6)));
}

#[test]
fn what_cannot_be_served_is_refused_with_its_field() {
    check_refused(&json!({ "architectures": ["GemmaForCausalLM"] }), "architectures");
    check_refused(&json!({ "hidden_act": "gelu" }), "hidden_act");
    check_refused(&json!({ "attention_bias": true }), "attention_bias");
    check_refused(&json!({ "mlp_bias": true }), "mlp_bias");
    check_refused(&json!({ "quantization_config": {} }), "quantization_config");
    check_refused(&json!({ "num_key_value_heads": 3 }), "num_key_value_heads");
    check_refused(&json!({ "head_dim": 15 }), "head_dim");
    check_refused(&json!({ "rope_scaling": { "type": "yarn" } }), "rope_scaling.rope_type");
    check_refused(&json!({ "rope_parameters": { "rope_type": "llama3" } }), "factor");
}
