//! Tests of the same model in GGUF files, with tensors quantized by candle or by this crate.

use nsbridge_checkpoint::Checkpoint;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use nsbridge_llama::{
    Config, Format, LoadError, Mix, RopeScaling, Setup, coarsest_format, mean_width, quantize,
};
use serde_json::json;
use tempfile::TempDir;

use crate::network::{self, distance, logits};
use crate::tiny::write_drawn;

/// Shape with blocks of 256 in every matrix, grouped heads, and a vocabulary that fills no tile.
fn config(family: &str) -> serde_json::Value {
    json!({
        "architectures": [format!("{family}ForCausalLM")], "hidden_act": "silu", "hidden_size": 256,
        "intermediate_size": 512, "vocab_size": 70, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0, "max_position_embeddings": 200, "tie_word_embeddings": false,
        "eos_token_id": 3
    })
}

fn drawn(config: &serde_json::Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_drawn(dir.path(), config, 5, 0.1);
    dir
}

/// Permutes rows of queries and keys of Llama models like llama.cpp's converter
/// (`LlamaModel.permute` in `conversion/llama.py`).
fn permuted(tensor: &Tensor, heads: usize) -> Tensor {
    let (rows, columns) = tensor.dims2().unwrap();
    let halves = tensor.reshape((heads, 2, rows / heads / 2, columns)).unwrap();
    halves.transpose(1, 2).unwrap().contiguous().unwrap().reshape((rows, columns)).unwrap()
}

fn their_name(name: &str) -> String {
    let pairs = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    pairs.iter().fold(name.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs))
}

/// Returns a GGUF file of the model, with each tensor in the type that `kind` returns, and the same
/// weights as f32 after quantization.
fn converted(dir: &Path, kind: impl Fn(&str) -> GgmlDType) -> (TempDir, TempDir) {
    converted_with(dir, kind, &[])
}

/// Returns the files of [`converted`], the GGUF file with more metadata.
pub(crate) fn converted_with(
    dir: &Path,
    kind: impl Fn(&str) -> GgmlDType,
    more: &[(&str, Value)],
) -> (TempDir, TempDir) {
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let llama = config["architectures"][0] == "LlamaForCausalLM";
    let tensors = candle_core::safetensors::load(dir.join("model.safetensors"), &Device::Cpu);
    let (mut theirs, mut back) = (Vec::new(), HashMap::new());
    for (name, tensor) in tensors.unwrap() {
        let kind = if tensor.rank() == 1 { GgmlDType::F32 } else { kind(&name) };
        let stored = |tensor: &Tensor| QTensor::quantize(&tensor.force_contiguous().unwrap(), kind);
        let heads = match name.rsplit('.').nth(1).unwrap() {
            "q_proj" => Some("num_attention_heads"),
            "k_proj" => Some("num_key_value_heads"),
            _ => None,
        };
        let heads = heads.filter(|_| llama).map(|field| config[field].as_u64().unwrap() as usize);
        let moved = heads.map_or_else(|| tensor.clone(), |heads| permuted(&tensor, heads));
        theirs.push((their_name(&name), stored(&moved).unwrap()));
        let read = stored(&tensor).unwrap().dequantize(&Device::Cpu).unwrap();
        back.insert(name, read.to_dtype(DType::F32).unwrap());
    }
    let architecture = if llama { "llama" } else { "qwen3" };
    let text = |text: &str| Value::String(text.to_owned());
    let number = |field: &str| Value::U32(config[field].as_u64().unwrap() as u32);
    let float = |field: &str| Value::F32(config[field].as_f64().unwrap() as f32);
    let metadata: Vec<(String, Value)> = [
        ("embedding_length", number("hidden_size")),
        ("feed_forward_length", number("intermediate_size")),
        ("block_count", number("num_hidden_layers")),
        ("attention.head_count", number("num_attention_heads")),
        ("attention.head_count_kv", number("num_key_value_heads")),
        ("attention.key_length", number("head_dim")),
        ("context_length", number("max_position_embeddings")),
        ("attention.layer_norm_rms_epsilon", float("rms_norm_eps")),
        ("rope.freq_base", float("rope_theta")),
    ]
    .into_iter()
    .map(|(key, value)| (format!("{architecture}.{key}"), value))
    .chain([
        ("general.architecture".to_owned(), text(architecture)),
        ("tokenizer.ggml.eos_token_id".to_owned(), number("eos_token_id")),
    ])
    .collect();
    let metadata = metadata.iter().map(|(key, value)| (key.as_str(), value));
    let metadata: Vec<_> = metadata.chain(more.iter().map(|(key, value)| (*key, value))).collect();
    let tensors: Vec<_> = theirs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let gguf = tempfile::tempdir().unwrap();
    let mut file = File::create(gguf.path().join("model.gguf")).unwrap();
    gguf_file::write(&mut file, &metadata, &tensors).unwrap();
    let floats = tempfile::tempdir().unwrap();
    std::fs::copy(dir.join("config.json"), floats.path().join("config.json")).unwrap();
    candle_core::safetensors::save(&back, floats.path().join("model.safetensors")).unwrap();
    (gguf, floats)
}

fn tokens() -> Vec<u32> {
    (0..90).map(|i| (i * i * 7 + 3 * i) % 70).collect()
}

fn run(dir: &Path, ranks: usize) -> Vec<Vec<f32>> {
    let setup = Setup { ranks, ..Setup::default() };
    logits(&mut network::open(dir, &setup), &tokens(), 16)
}

#[test]
fn a_file_tells_the_same_shape_as_its_config() {
    for family in ["Llama", "Qwen3"] {
        let dir = drawn(&config(family));
        let (gguf, _) = converted(dir.path(), |_| GgmlDType::F16);
        let read = |dir: &Path| Config::read(&nsbridge_handler::Model::in_dir(dir)).unwrap();
        let (right, mut found) = (read(dir.path()), read(gguf.path()));
        // The GGUF file stores this number as f32.
        assert!((found.rms_norm_eps - right.rms_norm_eps).abs() < 1e-12);
        found.rms_norm_eps = right.rms_norm_eps;
        assert_eq!(found, right, "{family}");
    }
}

/// Reads the configuration of a file with these fields.
fn told(fields: &[(&str, Value)]) -> Result<Config, LoadError> {
    told_with(fields, &[])
}

/// Reads the configuration of a file with these fields and biases.
fn told_with(fields: &[(&str, Value)], biases: &[&str]) -> Result<Config, LoadError> {
    let text = |text: &str| Value::String(text.to_owned());
    let mut metadata = vec![
        ("general.architecture", text("llama")),
        ("llama.embedding_length", Value::U32(64)),
        ("llama.feed_forward_length", Value::U32(96)),
        ("llama.block_count", Value::U32(2)),
        ("llama.attention.head_count", Value::U32(4)),
        ("llama.context_length", Value::U32(128)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.rope.freq_base", Value::F32(1e4)),
    ];
    metadata.extend(fields.iter().cloned());
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let zeros = |shape: &[usize]| {
        let zeros = Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
        QTensor::quantize(&zeros, GgmlDType::F32).unwrap()
    };
    let (words, bias) = (zeros(&[70, 64]), zeros(&[64]));
    let tensors = [("token_embd.weight", &words)].into_iter();
    let tensors: Vec<_> = tensors.chain(biases.iter().map(|name| (*name, &bias))).collect();
    let dir = tempfile::tempdir().unwrap();
    let mut file = File::create(dir.path().join("model.gguf")).unwrap();
    gguf_file::write(&mut file, &metadata, &tensors).unwrap();
    Config::read(&nsbridge_handler::Model::in_dir(dir.path()))
}

#[test]
fn what_a_file_does_not_say_is_what_llama_cpp_takes() {
    let (kind, factor) = ("llama.rope.scaling.type", "llama.rope.scaling.factor");
    let older = "llama.rope.scale_linear";
    let named = |name: &str| (kind, Value::String(name.to_owned()));
    let by = |key, factor| (key, Value::F32(factor));
    let linear = RopeScaling::Linear { factor: 4.0 };
    for (fields, scaling) in [
        (vec![], RopeScaling::None),
        (vec![by(factor, 4.0)], linear.clone()),
        (vec![by(older, 4.0)], linear.clone()),
        (vec![named("linear"), by(older, 4.0)], linear.clone()),
        (vec![named("linear"), by(factor, 4.0), by(older, 9.0)], linear),
        (vec![named("linear")], RopeScaling::None),
        (vec![by(factor, 0.0)], RopeScaling::None),
        (vec![by(older, 1.0)], RopeScaling::None),
        (vec![named("none"), by(factor, 4.0)], RopeScaling::None),
    ] {
        assert_eq!(told(&fields).unwrap().rope.scaling, scaling, "{fields:?}");
    }
    for factor in [vec![], vec![by(factor, 0.0)], vec![by(factor, 1.0)]] {
        let fields = [vec![named("yarn")], factor].concat();
        assert_eq!(told(&fields).unwrap().rope.scaling, RopeScaling::None, "{fields:?}");
    }
    let yarn = told(&[named("yarn"), by(factor, 4.0)]).unwrap();
    assert!(matches!(yarn.rope.scaling, RopeScaling::Yarn { .. }), "{:?}", yarn.rope);

    for (window, windows) in [(0, None), (24, Some(24))] {
        let config = told(&[("llama.attention.sliding_window", Value::U32(window))]).unwrap();
        assert_eq!(config.windows, [windows; 2]);
    }

    // The rotary dimension must be that of a whole head, and fields of another family are ignored.
    let others = ("qwen2.rope.dimension_count", Value::U32(8));
    assert!(told(&[others]).is_ok());
    let turned = |dimensions| told(&[("llama.rope.dimension_count", Value::U32(dimensions))]);
    assert!(turned(16).is_ok());
    let why = turned(8).unwrap_err().to_string();
    assert!(["llama.rope.dimension_count", "is 8", "all 16"].iter().all(|word| why.contains(word)));
}

#[test]
fn biases_that_no_family_has_alone_are_refused_by_name() {
    let [queries, output] = ["blk.0.attn_q.bias", "blk.0.attn_output.bias"];
    let window = [("llama.attention.sliding_window", Value::U32(24))];
    for (fields, biases, words) in [
        (&[][..], &[queries][..], [queries, "one beside blk.0.attn_output.bias"]),
        (&[], &[output], [output, "one beside blk.0.attn_q.bias"]),
        (&window, &[queries, output], [queries, "one without a sliding window"]),
    ] {
        let why = told_with(fields, biases).unwrap_err().to_string();
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    }
    let both = told_with(&[], &[queries, output]).unwrap();
    assert!(both.qkv_bias && both.output_bias);
    let neither = told_with(&window, &[]).unwrap();
    assert!(!neither.qkv_bias && !neither.output_bias);
}

#[test]
fn what_changes_the_numbers_is_applied_or_refused_by_name() {
    for (key, value, supported) in [
        ("expert_count", Value::U32(8), "only 0 is"),
        ("attention.causal", Value::Bool(false), "only true is"),
        ("attention.temperature_scale", Value::F32(0.1), "only 0 is"),
        ("attn_logit_softcapping", Value::F32(50.0), "only 0 is"),
        ("final_logit_softcapping", Value::F32(30.0), "only 0 is"),
        ("logit_scale", Value::F32(0.5), "only 0 or 1 is"),
        ("rope.scaling.attn_factor", Value::F32(1.5), "only 1 is"),
        ("rope.scaling.type", Value::String("longrope".to_owned()), "only one of none, linear"),
        ("rope.scaling.yarn_attn_factor", Value::F32(1.5), "only 1 is"),
        ("rope.scaling.yarn_ext_factor", Value::F32(0.5), "only 1 is"),
        ("rope.scaling.yarn_log_multiplier", Value::F32(0.1), "only 0 is"),
    ] {
        let key = format!("llama.{key}");
        let why = told(&[(key.as_str(), value)]).unwrap_err().to_string();
        assert!(why.contains(&key) && why.contains(supported), "{why}");
    }
    let neutral = [
        ("llama.expert_count", Value::U32(0)),
        ("llama.attention.causal", Value::Bool(true)),
        ("llama.logit_scale", Value::F32(1.0)),
        ("llama.rope.scaling.attn_factor", Value::F32(1.0)),
    ];
    assert!(told(&neutral).is_ok());
    for tensor in ["blk.0.attn_norm.bias", "blk.0.attn_q_norm.weight", "blk.0.ffn_gate.bias"] {
        let why = told_with(&[], &[tensor]).unwrap_err().to_string();
        assert!(why.contains(tensor) && why.contains("architecture llama alone"), "{why}");
    }
}

#[test]
fn yarns_scaling_is_the_same_in_a_file() {
    let mut config = config("Qwen3");
    config["rope_parameters"] = json!({
        "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 2.0,
        "original_max_position_embeddings": 48, "attention_factor": 1.5
    });
    let dir = drawn(&config);
    let gguf = written(dir.path(), Mix::F32);
    let read = |dir: &Path| Config::read(&nsbridge_handler::Model::in_dir(dir)).unwrap().rope;
    let (found, right) = (read(gguf.path()), read(dir.path()));
    assert_eq!(found.frequencies(32), right.frequencies(32));
    assert_eq!(right.attention_scaling(), 1.5);
    assert!((found.attention_scaling() - 1.5).abs() < 1e-6, "{found:?}");
    let (found, right) = (run(gguf.path(), 1), run(dir.path(), 1));
    let distance = distance(right.iter().flatten(), found.iter().flatten());
    assert!(distance < 1e-4, "{distance}");
}

#[test]
fn floats_from_a_gguf_file_give_the_bits_of_the_same_floats_from_safetensors() {
    for (family, kind) in [
        ("Llama", GgmlDType::F32),
        ("Llama", GgmlDType::F16),
        ("Llama", GgmlDType::BF16),
        ("Qwen3", GgmlDType::F16),
    ] {
        let dir = drawn(&config(family));
        let (gguf, floats) = converted(dir.path(), |_| kind);
        assert_eq!(run(gguf.path(), 1), run(floats.path(), 1), "{family} {kind:?}");
    }
}

#[test]
fn quantized_weights_give_nearly_the_logits_of_what_they_stand_for() {
    // A mix like llama.cpp's: values and outputs of some layers have more bits.
    let mixed = |name: &str| match name {
        name if name.contains("layers.0") && name.contains("v_proj") => GgmlDType::Q6K,
        name if name.contains("layers.1") && name.contains("down_proj") => GgmlDType::Q6K,
        "lm_head.weight" => GgmlDType::Q6K,
        name if name.contains("layers.1") && name.contains("gate_proj") => GgmlDType::Q5K,
        _ => GgmlDType::Q4K,
    };
    let dir = drawn(&config("Llama"));
    for (name, (gguf, floats)) in [
        ("q8_0", converted(dir.path(), |_| GgmlDType::Q8_0)),
        ("q4_0", converted(dir.path(), |_| GgmlDType::Q4_0)),
        ("q4_1", converted(dir.path(), |_| GgmlDType::Q4_1)),
        ("q5_0", converted(dir.path(), |_| GgmlDType::Q5_0)),
        ("q5_1", converted(dir.path(), |_| GgmlDType::Q5_1)),
        ("q2_k", converted(dir.path(), |_| GgmlDType::Q2K)),
        ("q3_k", converted(dir.path(), |_| GgmlDType::Q3K)),
        ("q4_k", converted(dir.path(), |_| GgmlDType::Q4K)),
        ("q5_k", converted(dir.path(), |_| GgmlDType::Q5K)),
        ("q6_k", converted(dir.path(), |_| GgmlDType::Q6K)),
        ("mixed", converted(dir.path(), mixed)),
    ] {
        let (found, right) = (run(gguf.path(), 1), run(floats.path(), 1));
        let distance = distance(right.iter().flatten(), found.iter().flatten());
        // Activations have eight bits, so there is a small error, but none from the weights.
        assert!(distance > 1e-6 && distance < 0.04, "{name}: {distance}");
    }
}

#[test]
fn ranks_share_blocks_of_32_and_not_wide_ones_that_are_too_few() {
    use GgmlDType::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    let dir = drawn(&config("Llama"));
    for kind in [Q8_0, Q4_0, Q4_1, Q5_0, Q5_1] {
        let (small, _) = converted(dir.path(), |_| kind);
        assert_eq!(run(small.path(), 4), run(small.path(), 1), "{kind:?}");
    }
    let (wide, _) = converted(dir.path(), |_| GgmlDType::Q4K);
    let files = nsbridge_handler::Model::in_dir(wide.path());
    let config = Config::read(&files).unwrap();
    let weights = nsbridge_llama::Weights::for_ranks(&files, 2).unwrap();
    let setup = Setup { ranks: 2, ..Setup::default() };
    let refused = nsbridge_llama::Model::new(&config, 64, &weights, &setup).unwrap_err();
    let why = refused.to_string();
    for word in ["tensor_parallel_degree is 2", "256-column blocks", "256 columns", "one of [1]"] {
        assert!(why.contains(word), "{why}");
    }
}

/// Writes a GGUF file with this crate, in a folder of its own.
fn written(dir: &Path, mix: Mix) -> TempDir {
    let gguf = tempfile::tempdir().unwrap();
    let model = nsbridge_handler::Model::in_dir(dir);
    let file = File::create(gguf.path().join("model.gguf")).unwrap();
    quantize(&model, mix, &file, |_| {}).unwrap();
    gguf
}

#[test]
fn what_is_in_memory_is_told_by_the_matrices_and_not_by_the_file() {
    let mut config = config("Llama");
    config["tie_word_embeddings"] = json!(true);
    let dir = drawn(&config);
    let of = |mix| {
        let gguf = written(dir.path(), mix);
        let checkpoint = Checkpoint::open(&nsbridge_handler::Model::in_dir(gguf.path())).unwrap();
        let tensors = checkpoint.tensors();
        (coarsest_format(tensors), mean_width(tensors))
    };
    // The norms are in f32, and one of them is the last tensor.
    let (format, width) = of(Mix::Bf16);
    assert!(format == Format::Bf16 && width > 2.0 && width < 2.01, "{format:?} {width}");
    // In the file, the weights are of 0.71 bytes.
    let (format, width) = of(Mix::Q5KM);
    assert!(matches!(format, Format::Q5K) && width > 0.72 && width < 0.74, "{format:?} {width}");
}

#[test]
fn a_file_alone_tells_windows_of_all_layers() {
    for (family, more) in [
        ("Mistral", json!({ "sliding_window": 24 })),
        (
            "Qwen3",
            json!({ "sliding_window": 24, "use_sliding_window": true, "max_window_layers": 0 }),
        ),
        ("Llama", json!({})),
    ] {
        let mut config = config(family);
        for (field, value) in more.as_object().unwrap() {
            config[field] = value.clone();
        }
        let dir = drawn(&config);
        let gguf = written(dir.path(), Mix::F32);
        let read = |dir: &Path| Config::read(&nsbridge_handler::Model::in_dir(dir)).unwrap();
        assert_eq!(read(gguf.path()).windows, read(dir.path()).windows, "{family}");
        assert_eq!(run(gguf.path(), 1), run(dir.path(), 1), "{family}");
    }
}

/// Shape with enough heads and columns for eight ranks in blocks of 256.
#[test]
fn any_number_of_ranks_and_threads_gives_the_bits_of_one_in_blocks_of_256() {
    let mut config = config("Llama");
    config["num_attention_heads"] = json!(32);
    config["head_dim"] = json!(64);
    config["num_key_value_heads"] = json!(2);
    config["intermediate_size"] = json!(4096);
    config["num_hidden_layers"] = json!(1);
    let dir = drawn(&config);
    let tokens: Vec<u32> = (0..23).map(|i| (i * i * 7 + 3 * i) % 70).collect();
    let mut all = Vec::new();
    for mix in [Mix::Q4KM, Mix::Q5KM, Mix::Q6K] {
        let gguf = written(dir.path(), mix);
        let run = |ranks: usize, threads: usize| {
            let setup = Setup { ranks, threads: Some(threads), ..Setup::default() };
            logits(&mut network::open(gguf.path(), &setup), &tokens, 5)
        };
        let right = run(1, 1);
        for (ranks, threads) in [(1, 3), (2, 2), (4, 8), (8, 8)] {
            assert_eq!(run(ranks, threads), right, "{mix} on {ranks} ranks and {threads} threads");
        }
        let mixed = right.iter().flatten().fold(0u64, |mixed, logit| {
            (mixed ^ u64::from(logit.to_bits())).wrapping_mul(0x100_0000_01b3).rotate_left(29)
        });
        all.push(mixed);
    }
    // A change to these requires a higher `ARITHMETIC_VERSION`, or stems from a change in
    // quantization.
    assert_eq!(
        all,
        [0x3133_a555_6b0b_7cfe, 0xe25b_549d_424b_c46f, 0xd4ea_483b_ba81_2edc],
        "{all:#x?}"
    );
}
