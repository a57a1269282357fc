//! A device's network beside the engine's own.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::On;
use crate::network::{Chunk, Model, Processor, Setup};
use crate::{Config, Mix, Table, Weights, quantise, tensors};

fn shape(family: &str, more: &Value) -> Value {
    let mut config = json!({
        "architectures": [format!("{family}ForCausalLM")], "hidden_act": "silu", "hidden_size": 256,
        "intermediate_size": 512, "vocab_size": 70, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0, "max_position_embeddings": 200, "tie_word_embeddings": false
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

/// A model with such weights as a trained one might have.
fn drawn(config: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let config = Config::read(&nsbridge_handler::Model::in_dir(dir.path())).unwrap();
    let mut state = 7_u64;
    let mut draw = |scale: f32, middle: f32| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale + middle
    };
    let all: HashMap<String, Tensor> = tensors(&config)
        .map(|(name, shape)| {
            let (scale, middle) =
                if name.ends_with("norm.weight") { (0.25, 1.0) } else { (0.1, 0.0) };
            let count = shape.iter().product::<usize>();
            let values: Vec<f32> = (0..count).map(|_| draw(scale, middle)).collect();
            (name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap())
        })
        .collect();
    candle_core::safetensors::save(&all, dir.path().join("model.safetensors")).unwrap();
    dir
}

fn open(dir: &Path, device: Processor, ranks: usize) -> Model {
    let files = nsbridge_handler::Model::in_dir(dir);
    let config = Config::read(&files).unwrap();
    let weights = Weights::for_ranks(&files, ranks).unwrap();
    let setup = Setup { device, ranks, blocks: 16, ..Setup::default() };
    Model::new(&config, config.context, &weights, &setup).unwrap()
}

fn candle() -> Processor {
    Processor::Candle(On { device: Device::Cpu, dtype: DType::F32 })
}

/// Logits of two sequences of different lengths, in chunks; the second is cut back and goes on
/// otherwise.
fn logits(model: &mut Model) -> Vec<Vec<f32>> {
    let token = |at: usize, of: usize| ((at * at * 7 + 3 * at + of) % 70) as u32;
    let mut tables = [Table::default(), Table::default()];
    let mut all = Vec::new();
    for (lengths, from) in
        [([40, 33], [0, 0]), ([1, 20], [40, 33]), ([1, 1], [41, 21]), ([3, 2], [42, 22])]
    {
        model.cache().truncate(&mut tables[1], from[1]);
        let tokens: Vec<Vec<u32>> = (0..2)
            .map(|of| {
                (from[of]..from[of] + lengths[of]).map(|at| token(at, of * lengths[0])).collect()
            })
            .collect();
        let mut chunks = Vec::new();
        for (table, tokens) in tables.iter_mut().zip(&tokens) {
            assert!(model.cache().reserve(table, tokens.len()));
            chunks.push(Chunk { table, tokens, logits: tokens.len().min(3) });
        }
        all.extend(model.forward(&mut chunks).unwrap().rows().map(<[f32]>::to_vec));
    }
    for table in tables {
        model.cache().release(table);
    }
    all
}

/// How far apart, both as roots of mean squares.
fn distance(right: &[Vec<f32>], found: &[Vec<f32>]) -> f64 {
    assert_eq!(right.len(), found.len());
    let (mut apart, mut all) = (0.0, 0.0);
    for (right, found) in right.iter().flatten().zip(found.iter().flatten()) {
        apart += f64::from(right - found).powi(2);
        all += f64::from(*right).powi(2);
    }
    f64::sqrt(apart / all)
}

#[test]
fn every_family_gives_the_logits_of_the_engine_on_one_rank_and_on_several() {
    let llama3 = json!({ "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32
    }, "attention_bias": true, "mlp_bias": true });
    for (family, more) in [
        ("Llama", &json!({})),
        ("Llama", &llama3),
        ("Llama", &json!({ "tie_word_embeddings": true, "num_key_value_heads": 8 })),
        ("Mistral", &json!({ "sliding_window": 7 })),
        ("Qwen2", &json!({ "num_key_value_heads": 1 })),
        ("Qwen3", &json!({})),
    ] {
        let dir = drawn(&shape(family, more));
        let right = logits(&mut open(dir.path(), Processor::Cpu, 1));
        for ranks in [1, 2, 4, 8] {
            let found = logits(&mut open(dir.path(), candle(), ranks));
            let distance = distance(&right, &found);
            assert!(distance < 1e-5, "{family} {more} on {ranks}: {distance}");
        }
    }
}

#[test]
fn blocks_of_a_gguf_file_give_nearly_the_logits_of_the_engine() {
    let dir = drawn(&shape("Llama", &json!({})));
    for (mix, ranks) in [
        (Mix::F16, 1),
        (Mix::Q8_0, 1),
        (Mix::Q8_0, 2),
        (Mix::Q4KM, 1),
        (Mix::Q5KM, 1),
        (Mix::Q6K, 1),
    ] {
        let to = tempfile::tempdir().unwrap();
        let model = nsbridge_handler::Model::in_dir(dir.path());
        quantise(&model, mix, &to.path().join("model.gguf"), |_| {}).unwrap();
        let right = logits(&mut open(to.path(), Processor::Cpu, 1));
        let found = logits(&mut open(to.path(), candle(), ranks));
        // Both round activations to eight bits, each in its way.
        let tolerance = if mix == Mix::F16 { 1e-5 } else { 4e-2 };
        let distance = distance(&right, &found);
        assert!(distance < tolerance, "{mix} on {ranks}: {distance}");
    }
}
