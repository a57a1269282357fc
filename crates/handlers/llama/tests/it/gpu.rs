//! Networks on GPUs against the CPU's, on the emulator.

use std::sync::Arc;
use std::time::Duration;

use nsbridge_gpu::device::Device;
use nsbridge_gpu::emulator::Emulator;
use nsbridge_llama::{
    Arithmetic, Backend, BlockTable, Chunk, Format, GpuDevices, KvFormat, Mix, Model, Setup,
};
use serde_json::json;

use crate::bundled::bundled;
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
    // Each number of ranks with two families and both formats.
    let several = [2, 4, 8].into_iter().cycle();
    for ((family, more), several) in families().into_iter().zip(several) {
        let dir = drawn(&shape(family, &more));
        for format in [None, Some(Format::Q8_0)] {
            let setup = Setup { format, ..cpu() };
            let right = logits(&mut network::open(dir.path(), &setup));
            for ranks in [1, several] {
                let device = emulators(ranks, ranks as u32 - 1, Arithmetic::Portable);
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
            let device = emulators(1, 5, Arithmetic::Portable);
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
            let device = emulators(ranks, 0, Arithmetic::Native);
            let setup = Setup { ranks, device, format, ..cpu() };
            let found = logits(&mut network::open(dir.path(), &setup));
            let distance = distance(&right, &found);
            assert!(distance > 1e-5 && distance < 2e-2, "{family} {more}: {distance}");
            let first = first.get_or_insert_with(|| found.clone());
            assert_bits(first, &found, &format!("{family} {more} {ranks} ranks"));
        }
    }
}

/// Returns the logits of a prompt, run in chunks and then one by one.
fn logits_of_prompt(model: &mut Model) -> Vec<f32> {
    let tokens: Vec<u32> = (0..40).map(|at| (at * at * 37 + 11 * at + 300) % 2000).collect();
    let mut table = BlockTable::default();
    let mut all = Vec::new();
    for (from, to) in [(0, 20), (20, 37), (37, 38), (38, 40)] {
        assert!(model.cache().reserve(&mut table, to - from));
        let tokens = &tokens[from..to];
        let mut chunks = [Chunk { table: &mut table, tokens, logits: 2.min(to - from) }];
        all.extend(model.forward(&mut chunks).unwrap().rows().flatten());
    }
    model.cache().release(table);
    all
}

#[test]
fn the_bundled_pair_has_the_bits_of_the_cpu() {
    for name in ["tale-7m", "tale-1m"] {
        let dir = bundled(name);
        for format in [None, Some(Format::Q8_0)] {
            let setup = Setup { format, ..cpu() };
            let right = logits_of_prompt(&mut network::open(&dir, &setup));
            for ranks in [1, 2] {
                let device = emulators(ranks, 0, Arithmetic::Portable);
                let on_gpu = Setup { device, ranks, ..setup.clone() };
                let found = logits_of_prompt(&mut network::open(&dir, &on_gpu));
                assert_bits(&right, &found, &format!("{name} {format:?} {ranks} ranks"));
            }
        }
        let right = logits_of_prompt(&mut network::open(&dir, &cpu()));
        let device = emulators(1, 0, Arithmetic::Native);
        let found = logits_of_prompt(&mut network::open(&dir, &Setup { device, ..cpu() }));
        let distance = distance(&right, &found);
        assert!(distance > 1e-5 && distance < 2e-2, "{name}: {distance}");
    }
}

#[test]
fn a_layer_takes_no_more_than_twelve_launches() {
    let launches = |layers: usize| {
        let dir = drawn(&shape("Llama", &json!({ "num_hidden_layers": layers })));
        let emulator = Arc::new(Emulator::new());
        let devices = GpuDevices::new(vec![emulator.clone()], Arithmetic::Portable).unwrap();
        let setup = Setup { device: Backend::Gpu(devices), format: Some(Format::Q8_0), ..cpu() };
        let mut model = network::open(dir.path(), &setup);
        let before = emulator.launches();
        network::logits(&mut model, &[1, 2, 3], 3);
        emulator.launches() - before
    };
    let (one, three) = (launches(1), launches(3));
    assert!(three - one <= 2 * 12, "{one} launches with one layer, {three} with three");
}

#[test]
fn recorded_launches_use_the_buffers_of_their_step() {
    let dir = drawn(&shape("Llama", &json!({ "max_position_embeddings": 400 })));
    let of = |setup: &Setup| {
        let mut model = network::open(dir.path(), setup);
        let tokens: Vec<u32> = (0..300).map(|at| (at * 7 + 3) % 70).collect();
        let mut all = Vec::new();
        // Small steps are recorded; a larger one takes larger buffers, and small ones follow again.
        for (chunk, until) in [(1, 4), (130, 130), (1, 4), (200, 300), (1, 4)] {
            all.extend(network::logits(&mut model, &tokens[..until], chunk).concat());
        }
        all
    };
    let setup = Setup { blocks: 16, ..Setup::default() };
    let device = emulators(1, 0, Arithmetic::Portable);
    assert_bits(&of(&setup), &of(&Setup { device, ..setup.clone() }), "steps of all sizes");
}

#[test]
fn a_rank_that_fails_or_does_not_come_ends_the_model() {
    let dir = drawn(&shape("Llama", &json!({})));
    let patience = Duration::from_millis(400);
    for broken in [0, 1] {
        let emulators = [Arc::new(Emulator::new()), Arc::new(Emulator::new())];
        let devices = emulators.iter().map(|emulator| emulator.clone() as Arc<dyn Device>);
        let device = GpuDevices::new(devices.collect(), Arithmetic::Portable).unwrap();
        let setup = Setup { device: Backend::Gpu(device), ranks: 2, patience, ..cpu() };
        let mut model = network::open(dir.path(), &setup);
        network::logits(&mut model, &[1, 2, 3], 3);
        emulators[broken].break_after(10);
        let mut table = BlockTable::default();
        assert!(model.cache().reserve(&mut table, 1));
        let mut run = || {
            let chunk = Chunk { table: &mut table, tokens: &[5], logits: 1 };
            model.forward(&mut [chunk]).map(drop).unwrap_err().to_string()
        };
        let why = run();
        assert!(why.contains("the emulator was told to fail") || why.contains("in vain"), "{why}");
        assert_eq!(run(), why);
    }
}

/// Workers with the device `emulator`.
#[cfg(feature = "emulator")]
mod workers {
    use nsbridge_handler::AsyncHandler;
    use nsbridge_handler::testing::answer;
    use nsbridge_llama::Options;

    use serde_json::Value;

    use super::{Arithmetic, json};
    use crate::replies::uncached;
    use crate::tiny::Tiny;

    fn on(device: &str) -> Options {
        let arithmetic = (device == "emulator").then_some(Arithmetic::Portable);
        Options { device: Some(device.to_owned()), arithmetic, ..Options::default() }
    }

    #[test]
    fn a_reply_of_a_cpu_goes_on_on_a_gpu_and_back() {
        let (target, draft) = (Tiny::endless(), Tiny::endless());
        draft.draw_again(0.242);
        let cpu = target.load(on("cpu")).unwrap();
        let gpu = target.load(on("emulator")).unwrap();
        let drafted = target.load_with_draft(&draft, on("emulator")).unwrap();
        assert_eq!(cpu.fingerprint(), gpu.fingerprint());
        for temperature in [0.0, 0.8] {
            let input = json!({
                "prompt": "a long enough prompt, so that its products have many rows: 灯台守の朝",
                "temperature": temperature, "max_tokens": 24, "repetition_penalty": 1.2
            });
            let whole = answer(&cpu, &input, 7, &[]).unwrap();
            for worker in [&cpu, &gpu, &drafted] {
                for at in [0, 1, 11, 23] {
                    let again = answer(worker, &input, 7, &whole.0[..at]).unwrap();
                    assert_eq!(uncached(again), uncached(whole.clone()), "at {at}");
                }
            }
        }
    }

    /// Inputs with each parameter of sampling.
    fn inputs() -> Vec<Value> {
        let all = json!({
            "temperature": 0.9, "top_k": 100, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2,
            "frequency_penalty": 0.4, "presence_penalty": 0.3, "logit_bias": { "70": 1.5 },
            "bad_token_ids": [71], "bad_token_sequences": [[65, 66], [73, 74, 75], [120]],
            "stop_token_ids": [72], "min_tokens": 10, "ignore_eos": true
        });
        let told = json!({ "temperature": 0.7, "top_p": 0.9, "logprobs": true, "top_logprobs": 3 });
        let several = json!({ "temperature": 1.2, "n": 3, "logprobs": true });
        let grammar = json!({
            "temperature": 0.8, "response_format": { "type": "json_object" }, "max_tokens": 40
        });
        let scored = json!({ "temperature": 0.0, "prompt_logprobs": 2, "max_tokens": 4 });
        [json!({ "temperature": 0.0 }), all, told, several, grammar, scored]
            .into_iter()
            .map(|more| {
                let mut input = json!({ "prompt": "灯台守の朝, and the ", "max_tokens": 16 });
                input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                input
            })
            .collect()
    }

    #[test]
    fn tokens_sampled_on_a_gpu_are_those_of_the_cpu_with_every_parameter() {
        let (target, draft) = (Tiny::literate(), Tiny::literate());
        draft.draw_again(0.242);
        let cpu = target.load(on("cpu")).unwrap();
        let gpu = target.load(on("emulator")).unwrap();
        let drafted = target.load_with_draft(&draft, on("emulator")).unwrap();
        let two = Options { tensor_parallel_degree: Some(2), ..on("emulator") };
        let on_two = target.load(two).unwrap();
        for input in inputs() {
            let expected = answer(&cpu, &input, 7, &[]);
            for worker in [&gpu, &drafted, &on_two] {
                let made = answer(worker, &input, 7, &[]);
                match (&expected, made) {
                    (Ok(expected), Ok(made)) => {
                        assert_eq!(uncached(made), uncached(expected.clone()), "{input}");
                    }
                    (expected, made) => panic!("{input}: {expected:?} and {made:?}"),
                }
            }
        }
    }
}
