//! Tests of a network on candle's tensors against the engine's own: on the CPU, and on the first
//! GPU if built with `cuda`.

use std::fs::File;
use std::path::Path;

use candle_core::{DType, Device};
use nsbridge_llama::{
    Backend, BlockTable, CandleDevices, Chunk, Format, KvFormat, Mix, Model, Options, Setup,
    quantize,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::network::{self, distance};
use crate::tiny::{Tiny, write_drawn};

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

fn drawn(config: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_drawn(dir.path(), config, 7, 0.1);
    dir
}

fn quantized(dir: &Path, mix: Mix) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    let model = nsbridge_handler::Model::in_dir(dir);
    let file = File::create(to.path().join("model.gguf")).unwrap();
    quantize(&model, mix, &file, |_| {}).unwrap();
    to
}

fn cpu() -> Setup {
    Setup { blocks: 16, ..Setup::default() }
}

/// Returns devices and data types, with the tolerance for their logits against the engine's.
fn devices() -> Vec<(Setup, f64)> {
    let on = |on| Setup { device: Backend::Candle(on), ..cpu() };
    let mut all = vec![(on(CandleDevices::one(Device::Cpu)), 1e-5)];
    if cfg!(feature = "cuda") {
        let Backend::Candle(gpu) = Backend::named("cuda:0", 1).unwrap() else { panic!("a CPU") };
        all.push((on(gpu.clone()), 1e-4));
        // Flash attention, if it is built in.
        let kv = KvFormat::Bf16;
        all.push((Setup { kv, ..on(gpu.clone()) }, 2e-2));
        all.push((Setup { kv, ..on(gpu.with_dtype(DType::BF16)) }, 5e-2));
    }
    all
}

/// Returns the logits of two sequences of different lengths, run in chunks. The second one is
/// truncated, and the first one continues twice from the middle of a block.
fn logits(model: &mut Model) -> Vec<f32> {
    let token = |at: usize, of: usize| ((at * at * 7 + 3 * at + of) % 70) as u32;
    let mut tables = vec![BlockTable::default(), BlockTable::default()];
    let mut all = Vec::new();
    let steps: [&[(usize, usize)]; 5] = [
        &[(0, 40), (0, 33)],
        &[(40, 1), (33, 20)],
        &[(41, 1), (21, 1)],
        &[(42, 3), (22, 2), (41, 4)],
        &[(45, 1), (24, 1), (45, 1)],
    ];
    for (number, places) in steps.into_iter().enumerate() {
        if places.len() > tables.len() {
            let twin = model.cache().fork(&tables[0]);
            tables.push(twin);
        }
        let run = |of: usize, (from, count): (usize, usize)| -> Vec<u32> {
            (from..from + count).map(|at| token(at, of * 40 + number)).collect()
        };
        let tokens: Vec<_> = places.iter().enumerate().map(|(of, place)| run(of, *place)).collect();
        let mut chunks = Vec::new();
        for ((table, tokens), (from, _)) in tables.iter_mut().zip(&tokens).zip(places) {
            model.cache().truncate(table, *from);
            assert!(table.len() == *from && model.cache().reserve(table, tokens.len()));
            chunks.push(Chunk { table, tokens, logits: tokens.len().min(3) });
        }
        all.extend(model.forward(&mut chunks).unwrap().rows().flatten());
    }
    for table in tables {
        model.cache().release(table);
    }
    all
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
        let right = logits(&mut network::open(dir.path(), &cpu()));
        for (setup, tolerance) in devices() {
            for ranks in [1, 2, 4, 8] {
                let setup = Setup { ranks, ..setup.clone() };
                let found = logits(&mut network::open(dir.path(), &setup));
                let distance = distance(&right, &found);
                assert!(distance < tolerance, "{family} {more} on {setup:?}: {distance}");
            }
        }
    }
}

#[test]
fn keys_and_values_in_sixteen_bits_give_nearly_the_same_logits() {
    let dir = drawn(&shape("Llama", &json!({})));
    let right = logits(&mut network::open(dir.path(), &cpu()));
    let halved = Setup { kv: KvFormat::Bf16, ..devices()[0].0.clone() };
    let distance = distance(&right, &logits(&mut network::open(dir.path(), &halved)));
    assert!(distance > 1e-4 && distance < 1e-2, "{distance}");
}

#[test]
fn blocks_of_a_gguf_file_give_nearly_the_logits_of_the_engine() {
    let tied = json!({ "tie_word_embeddings": true });
    for (mix, more, ranks) in [
        (Mix::F16, &json!({}), 1),
        (Mix::Q8_0, &json!({}), 1),
        (Mix::Q8_0, &json!({}), 2),
        (Mix::Q8_0, &tied, 1),
        (Mix::Q4KM, &json!({}), 1),
        (Mix::Q5KM, &json!({}), 1),
        (Mix::Q6K, &tied, 1),
    ] {
        let dir = quantized(drawn(&shape("Llama", more)).path(), mix);
        let right = logits(&mut network::open(dir.path(), &cpu()));
        for (number, (setup, tolerance)) in devices().into_iter().enumerate() {
            // The engine computes f16 weights in f32; a GPU computes them in f16.
            let setup = Setup { ranks, ..setup };
            let in_f32 = |on: CandleDevices| Setup {
                device: Backend::Candle(on.with_dtype(DType::F32)),
                ..setup.clone()
            };
            let setup = match &setup.device {
                Backend::Candle(on) if mix == Mix::F16 => in_f32(on.clone()),
                _ => setup,
            };
            let found = logits(&mut network::open(dir.path(), &setup));
            // Both round activations to eight bits, in different ways. The first device is a CPU.
            let rounding = if number == 0 { 4e-2 } else { 5e-2 };
            let tolerance = if mix == Mix::F16 { tolerance } else { tolerance.max(rounding) };
            let distance = distance(&right, &found);
            assert!(distance < tolerance, "{mix} {more} on {setup:?}: {distance}");
        }
    }
}

#[test]
fn a_device_keeps_no_other_blocks_than_the_checkpoint_has() {
    let dir = drawn(&shape("Llama", &json!({})));
    let files = nsbridge_handler::Model::in_dir(dir.path());
    let config = nsbridge_llama::Config::read(&files).unwrap();
    let weights = nsbridge_llama::Weights::read(&files).unwrap();
    let setup = Setup { format: Some(Format::Q8_0), ..devices()[0].0.clone() };
    let why = Model::new(&config, 64, &weights, &setup).unwrap_err().to_string();
    assert!(why.contains("the option quantize is for CPUs"), "{why}");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let tiny = Tiny::new();
    for name in ["gpu", "cuda:9999"] {
        let options = Options { device: Some(name.to_owned()), ..Options::default() };
        let why = tiny.load(options).unwrap_err().to_string();
        assert!(
            why.contains("the option device") && why.contains(&name[name.len() - 3..]),
            "{why}"
        );
    }
}
