//! Networks on GPUs against the CPU's, on the emulator.

use std::sync::Arc;

use nsbridge_gpu::device::Device;
use nsbridge_gpu::emulator::Emulator;
use nsbridge_llama::{Arithmetic, Backend, Format, GpuDevices, KvFormat, Mix, Setup};
use serde_json::json;

use crate::network::{self, distance};
use crate::shapes::{drawn, families, logits, quantized, shape};

/// Returns a backend with an emulated GPU for each rank. `order` is that of the threads of a block.
pub(crate) fn emulators(ranks: usize, order: u32, arithmetic: Arithmetic) -> Backend {
    let device = |rank: usize| -> Arc<dyn Device> {
        let emulator = Emulator::new();
        emulator.set_order(order + rank as u32);
        Arc::new(emulator)
    };
    Backend::Gpu(GpuDevices::new((0..ranks).map(device).collect(), arithmetic).unwrap())
}

fn cpu() -> Setup {
    Setup { blocks: 16, ..Setup::default() }
}

#[track_caller]
fn assert_bits(right: &[f32], found: &[f32], what: &str) {
    let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(bits(right) == bits(found), "{what}: {}", distance(right, found));
}

#[test]
fn every_family_has_the_bits_of_the_cpu_on_any_number_of_ranks() {
    for (family, more) in families() {
        let dir = drawn(&shape(family, &more));
        for format in [None, Some(Format::Q8_0)] {
            let setup = Setup { format, ..cpu() };
            let right = logits(&mut network::open(dir.path(), &setup));
            for (ranks, order) in [(1, 0), (2, 1), (4, 2), (8, 3)] {
                let device = emulators(ranks, order, Arithmetic::Exact);
                let setup = Setup { ranks, device, ..setup.clone() };
                let found = logits(&mut network::open(dir.path(), &setup));
                assert_bits(&right, &found, &format!("{family} {more} {format:?} {ranks} ranks"));
            }
        }
    }
}

#[test]
fn blocks_of_a_gguf_file_have_the_bits_of_the_cpu() {
    let tied = json!({ "tie_word_embeddings": true });
    for (mix, more) in
        [(Mix::F16, &json!({})), (Mix::Q8_0, &tied), (Mix::Q4KM, &json!({})), (Mix::Q6K, &tied)]
    {
        let dir = quantized(drawn(&shape("Llama", more)).path(), mix);
        for kv in [KvFormat::F32, KvFormat::Bf16] {
            let right = logits(&mut network::open(dir.path(), &Setup { kv, ..cpu() }));
            let device = emulators(1, 5, Arithmetic::Exact);
            let found = logits(&mut network::open(dir.path(), &Setup { kv, device, ..cpu() }));
            assert_bits(&right, &found, &format!("{mix} {more} {kv:?}"));
        }
    }
}

#[test]
fn bf16_on_tensor_cores_is_near_the_logits_of_the_cpu_on_any_number_of_ranks() {
    for (family, more) in families() {
        let dir = drawn(&shape(family, &more));
        let format = Some(Format::Bf16);
        let right = logits(&mut network::open(dir.path(), &Setup { format, ..cpu() }));
        let mut first = None;
        for ranks in [1, 2, 4] {
            let device = emulators(ranks, 0, Arithmetic::Bf16);
            let setup = Setup { ranks, device, format, ..cpu() };
            let found = logits(&mut network::open(dir.path(), &setup));
            let distance = distance(&right, &found);
            assert!(distance > 1e-5 && distance < 2e-2, "{family} {more}: {distance}");
            let first = first.get_or_insert_with(|| found.clone());
            assert_bits(first, &found, &format!("{family} {more} {ranks} ranks"));
        }
    }
}
