//! Tests of a network on candle's tensors against the engine's own: on the CPU, and on the first
//! GPU if built with `cuda`.

use candle_core::{DType, Device};
use nsbridge_llama::{
    Arithmetic, Backend, CandleDevices, Format, KvFormat, Mix, Model, Options, Setup,
};
use serde_json::json;

use crate::network::{self, distance};
use crate::shapes::{drawn, families, logits, quantized, shape};
use crate::tiny::Tiny;

fn cpu() -> Setup {
    Setup { blocks: 16, ..Setup::default() }
}

/// Returns devices and data types, with the tolerance for their logits against the engine's.
fn devices() -> Vec<(Setup, f64)> {
    let on = |on| Setup { device: Backend::Candle(on), ..cpu() };
    let mut all = vec![(on(CandleDevices::one(Device::Cpu)), 1e-5)];
    if cfg!(feature = "cuda") {
        let Backend::Candle(gpu) =
            Backend::named("cuda:0", 1, Arithmetic::Native, &[Format::Q4_0]).unwrap()
        else {
            panic!("a CPU")
        };
        all.push((on(gpu.clone()), 1e-4));
        // Flash attention, if it is built in.
        let kv = KvFormat::Bf16;
        all.push((Setup { kv, ..on(gpu.clone()) }, 2e-2));
        all.push((Setup { kv, ..on(gpu.with_dtype(DType::BF16)) }, 5e-2));
    }
    all
}

#[test]
fn every_family_gives_the_logits_of_the_engine_on_one_rank_and_on_several() {
    for (family, more) in families() {
        let dir = drawn(&shape(family, &more));
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
