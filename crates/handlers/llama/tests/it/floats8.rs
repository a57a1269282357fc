//! Tests of safetensors with eight-bit floats and their scales, and of other quantized safetensors.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use nsbridge_handler::Model;
use nsbridge_llama::{Arithmetic, Config, Setup, Weights, tensors};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gpu::emulators;
use crate::network::{self, logits};

type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

fn config(quantization: &Value) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 96,
        "intermediate_size": 160, "vocab_size": 70, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0, "max_position_embeddings": 64, "tie_word_embeddings": false,
        "eos_token_id": 3, "quantization_config": quantization
    })
}

fn write(config: &Value, tensors: &[Tensor]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let views: HashMap<_, _> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        })
        .collect();
    safetensors::serialize_to_file(&views, None, &dir.path().join("model.safetensors")).unwrap();
    dir
}

/// Decodes E4M3, or E5M2.
fn float(dtype: Dtype, bits: u8) -> f32 {
    let (width, bias) = if dtype == Dtype::F8_E4M3 { (3, 7) } else { (2, 15) };
    let (exponent, mantissa) = (i32::from(bits & 0x7f) >> width, bits & ((1 << width) - 1));
    let mantissa = f32::from(mantissa) / f32::from(1u8 << width);
    let magnitude = match exponent {
        0 => mantissa * 2f32.powi(1 - bias),
        _ => (1.0 + mantissa) * 2f32.powi(exponent - bias),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Scales of a matrix: name, dtype and shape of their tensor, and the place of an element's scale.
struct Scheme {
    name: &'static str,
    dtype: Dtype,
    shape: fn(usize, usize) -> Vec<usize>,
    place: fn(usize, usize, usize) -> usize,
}

const WHOLE: Scheme =
    Scheme { name: "_scale", dtype: Dtype::F32, shape: |_, _| vec![], place: |_, _, _| 0 };
const OF_ROWS: Scheme = Scheme {
    name: "_scale",
    dtype: Dtype::BF16,
    shape: |rows, _| vec![rows, 1],
    place: |row, _, _| row,
};
const OF_128: Scheme = Scheme {
    name: "_scale_inv",
    dtype: Dtype::F32,
    shape: |rows, columns| vec![rows.div_ceil(128), columns.div_ceil(128)],
    place: |row, column, columns| row / 128 * columns.div_ceil(128) + column / 128,
};
const OF_BLOCKS: Scheme = Scheme {
    name: "_scale_inv",
    dtype: Dtype::BF16,
    shape: |rows, columns| vec![rows.div_ceil(32), columns.div_ceil(20)],
    place: |row, column, columns| row / 32 * columns.div_ceil(20) + column / 20,
};

/// Writes a model with projections of this dtype, and the same weights as f32.
fn drawn(quantization: &Value, dtype: Dtype, scheme: &Scheme) -> (TempDir, TempDir) {
    drawn_as(&config(quantization), dtype, scheme)
}

/// Writes such a model with this configuration.
fn drawn_as(config: &Value, dtype: Dtype, scheme: &Scheme) -> (TempDir, TempDir) {
    let mut of_wide = config.clone();
    of_wide["quantization_config"] = Value::Null;
    let plain = write(&of_wide, &[]);
    let shape = Config::read(&Model::in_dir(plain.path())).unwrap();
    let mut state = 9u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let (mut small, mut wide) = (Vec::new(), Vec::new());
    for (name, shape) in tensors(&shape) {
        let count = shape.iter().product();
        if !name.ends_with("_proj.weight") {
            let numbers = (0..count).map(|_: usize| f32::from(draw()) / 128.0 - 0.9);
            let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
            for all in [&mut small, &mut wide] {
                all.push((name.clone(), Dtype::F32, shape.clone(), bytes.clone()));
            }
            continue;
        }
        let (rows, columns) = (shape[0], shape[1]);
        let of_scales = (scheme.shape)(rows, columns);
        let scales: Vec<f32> = (0..of_scales.iter().product::<usize>())
            .map(|_| half::bf16::from_f32(0.01 + f32::from(draw()) / 16_384.0).to_f32())
            .collect();
        // Exponents below those of infinities and NaN.
        let most = if dtype == Dtype::F8_E4M3 { 0x4f } else { 0x47 };
        let floats: Vec<u8> =
            (0..count).map(|_| draw()).map(|b| (b & 0x80) | ((b & 0x7f) % most)).collect();
        let product = |(at, bits): (usize, &u8)| {
            let scale = scales[(scheme.place)(at / columns, at % columns, columns)];
            float(dtype, *bits) * scale
        };
        let products = floats.iter().enumerate().map(product);
        wide.push((
            name.clone(),
            Dtype::F32,
            shape.clone(),
            products.flat_map(f32::to_le_bytes).collect(),
        ));
        let scale_bytes = |scale: &f32| match scheme.dtype {
            Dtype::BF16 => half::bf16::from_f32(*scale).to_le_bytes().to_vec(),
            _ => scale.to_le_bytes().to_vec(),
        };
        let bytes = scales.iter().flat_map(scale_bytes).collect();
        small.push((format!("{name}{}", scheme.name), scheme.dtype, of_scales, bytes));
        small.push((name, dtype, shape, floats));
    }
    (write(config, &small), write(&of_wide, &wide))
}

fn tokens() -> Vec<u32> {
    (0..20).map(|i| (i * i * 7 + 3 * i) % 70).collect()
}

fn run(dir: &Path, ranks: usize) -> Vec<Vec<f32>> {
    let setup = Setup { ranks, ..Setup::default() };
    logits(&mut network::open(dir, &setup), &tokens(), 8)
}

#[test]
fn floats_of_eight_bits_give_the_bits_of_their_products_with_their_scales() {
    let fp8 = json!({ "quant_method": "fp8", "activation_scheme": "dynamic" });
    let other = json!({ "quant_method": "fp8", "weight_block_size": [32, 20] });
    let tensors = json!({ "quant_method": "compressed-tensors", "format": "float-quantized" });
    for (quantization, dtype, scheme) in [
        (&fp8, Dtype::F8_E4M3, &WHOLE),
        (&tensors, Dtype::F8_E4M3, &OF_ROWS),
        (&fp8, Dtype::F8_E4M3, &OF_128),
        (&other, Dtype::F8_E4M3, &OF_BLOCKS),
        (&fp8, Dtype::F8_E5M2, &WHOLE),
    ] {
        let (small, wide) = drawn(quantization, dtype, scheme);
        let right = run(wide.path(), 1);
        for ranks in [1, 2, 4] {
            assert_eq!(run(small.path(), ranks), right, "{quantization} {dtype:?} {ranks}");
        }
    }
}

#[test]
fn a_gpu_multiplies_floats_of_eight_bits_as_they_are_where_it_can() {
    let fp8 = json!({ "quant_method": "fp8", "activation_scheme": "dynamic" });
    let other = json!({ "quant_method": "fp8", "weight_block_size": [32, 20] });
    for (quantization, dtype, scheme, kept) in [
        (&fp8, Dtype::F8_E4M3, &WHOLE, "F8_E4M3 by bf16"),
        (&fp8, Dtype::F8_E4M3, &OF_ROWS, "F8_E4M3 by bf16"),
        (&fp8, Dtype::F8_E4M3, &OF_128, "F8_E4M3 by bf16"),
        (&other, Dtype::F8_E4M3, &OF_BLOCKS, "Bf16 by bf16"),
        (&fp8, Dtype::F8_E5M2, &WHOLE, "Bf16 by bf16"),
    ] {
        let mut config = config(quantization);
        (config["hidden_size"], config["intermediate_size"]) = (json!(256), json!(512));
        config["head_dim"] = json!(64);
        let (small, wide) = drawn_as(&config, dtype, scheme);
        let right = run(wide.path(), 1);
        let on_gpu = |ranks: usize, arithmetic| {
            let device = emulators(ranks, 7, arithmetic);
            let mut model =
                network::open(small.path(), &Setup { ranks, device, ..Setup::default() });
            (logits(&mut model, &tokens(), 8), model.arithmetic().to_owned())
        };
        let (exact, _) = on_gpu(1, Arithmetic::Portable);
        assert_eq!(exact, right, "{quantization} {dtype:?}");
        let (one, names) = on_gpu(1, Arithmetic::Native);
        assert!(names.contains(&format!("{kept} ")), "{quantization} {dtype:?}: {names}");
        let apart = network::distance(right.iter().flatten(), one.iter().flatten());
        assert!(apart > 1e-5 && apart < 2e-2, "{quantization} {dtype:?}: {apart}");
        let (two, _) = on_gpu(2, Arithmetic::Native);
        assert_eq!(one, two, "{quantization} {dtype:?}");
    }
}

#[test]
fn a_matrix_of_eight_bits_beside_one_of_bf16_is_bf16_on_a_gpu() {
    let mut config = config(&json!({ "quant_method": "fp8" }));
    (config["hidden_size"], config["intermediate_size"]) = (json!(256), json!(512));
    let (small, _) = drawn_as(&config, Dtype::F8_E4M3, &WHOLE);
    let mut mixed = tensors_of(small.path());
    for tensor in mixed.iter_mut().filter(|tensor| tensor.0.ends_with("up_proj.weight")) {
        let wide = |bits: &u8| half::bf16::from_f32(float(tensor.1, *bits) * 0.01).to_le_bytes();
        (tensor.1, tensor.3) = (Dtype::BF16, tensor.3.iter().flat_map(wide).collect());
    }
    let mixed = write(&config, &mixed);
    let right = run(mixed.path(), 1);
    let device = emulators(1, 0, Arithmetic::Native);
    let mut model = network::open(mixed.path(), &Setup { device, ..Setup::default() });
    let found = logits(&mut model, &tokens(), 8);
    let apart = network::distance(right.iter().flatten(), found.iter().flatten());
    assert!(apart > 1e-5 && apart < 2e-2, "{apart}");
    let names = model.arithmetic();
    assert!(names.contains("F8_E4M3 by bf16+Bf16 by bf16+F8_E4M3 by bf16"), "{names}");
}

/// Reads the tensors of a model.
fn tensors_of(dir: &Path) -> Vec<Tensor> {
    let bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let owned = |(name, view): (&str, TensorView<'_>)| {
        (name.to_owned(), view.dtype(), view.shape().to_vec(), view.data().to_vec())
    };
    read.iter().map(owned).collect()
}

/// Returns the error of a model with these tensors.
fn refused(tensors: &[Tensor]) -> String {
    refused_as(&config(&json!({ "quant_method": "fp8" })), tensors, &Setup::default())
}

/// Returns the error of a model with this configuration and setup.
fn refused_as(config: &Value, tensors: &[Tensor], setup: &Setup) -> String {
    let dir = write(config, tensors);
    let files = Model::in_dir(dir.path());
    let config = Config::read(&files).unwrap();
    let opened = Weights::read(&files)
        .and_then(|weights| nsbridge_llama::Model::new(&config, 64, &weights, setup));
    opened.unwrap_err().to_string()
}

#[test]
fn floats_without_a_scale_or_without_a_number_are_named() {
    let scheme =
        Scheme { name: "_scale", dtype: Dtype::F32, shape: |_, _| vec![1], place: |_, _, _| 0 };
    let (small, _) = drawn(&json!({ "quant_method": "fp8" }), Dtype::F8_E4M3, &scheme);
    let all = tensors_of(small.path());
    let name = "model.layers.1.mlp.down_proj.weight";
    let without = all.iter().filter(|tensor| tensor.0 != format!("{name}_scale")).cloned();
    let why = refused(&without.collect::<Vec<_>>());
    assert!(why.contains(&format!("{name} has no scale")), "{why}");

    let mut changed = all.clone();
    changed
        .iter_mut()
        .filter(|tensor| tensor.0 == name)
        .for_each(|tensor| tensor.3[3 * 160] = 0x7f);
    let why = refused(&changed);
    assert!(why.contains(&format!("row 3 of {name} is a weight that is no number")), "{why}");

    // The same where a GPU multiplies the floats as they are.
    let mut wide = config(&json!({ "quant_method": "fp8" }));
    (wide["hidden_size"], wide["intermediate_size"]) = (json!(256), json!(512));
    let (small, _) = drawn_as(&wide, Dtype::F8_E4M3, &scheme);
    let mut changed = tensors_of(small.path());
    changed
        .iter_mut()
        .filter(|tensor| tensor.0 == name)
        .for_each(|tensor| tensor.3[3 * 512] = 0xff);
    let device = emulators(1, 0, Arithmetic::Native);
    let why = refused_as(&wide, &changed, &Setup { device, ..Setup::default() });
    assert!(why.contains(&format!("row 3 of {name} is a weight that is no number")), "{why}");

    let mut changed = all;
    let scale = changed.iter_mut().find(|tensor| tensor.0 == format!("{name}_scale")).unwrap();
    (scale.2, scale.3) = (vec![5], vec![0; 20]);
    let why = refused(&changed);
    assert!(why.contains(&format!("the shape of {name}_scale is [5]")), "{why}");
}

#[test]
fn tensors_of_awq_and_gptq_are_refused_with_what_to_do() {
    for kind in ["qweight", "qzeros"] {
        let name = format!("model.layers.0.self_attn.q_proj.{kind}");
        let why = refused(&[(name.clone(), Dtype::I32, vec![2, 2], vec![0; 16])]);
        assert!(why.contains(&format!("the tensor {name} is one of AWQ or GPTQ")), "{why}");
        assert!(why.contains("`nsbridge model quantize`") && why.contains("a GGUF file"), "{why}");
    }
}
