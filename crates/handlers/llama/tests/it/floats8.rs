//! Tests of safetensors with eight-bit floats and their scales, and of other quantized safetensors.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use nsbridge_handler::Model;
use nsbridge_llama::{Config, Setup, Weights, tensors};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

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

/// Writes a model with projections of this dtype, and the same weights as f32.
fn drawn(quantization: &Value, dtype: Dtype, scheme: &Scheme) -> (TempDir, TempDir) {
    let plain = write(&config(&Value::Null), &[]);
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
    (write(&config(quantization), &small), write(&config(&Value::Null), &wide))
}

fn run(dir: &Path, ranks: usize) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = (0..20).map(|i| (i * i * 7 + 3 * i) % 70).collect();
    let setup = Setup { ranks, ..Setup::default() };
    logits(&mut network::open(dir, &setup), &tokens, 8)
}

#[test]
fn floats_of_eight_bits_give_the_bits_of_their_products_with_their_scales() {
    let whole =
        Scheme { name: "_scale", dtype: Dtype::F32, shape: |_, _| vec![], place: |_, _, _| 0 };
    let of_rows = Scheme {
        name: "_scale",
        dtype: Dtype::BF16,
        shape: |rows, _| vec![rows, 1],
        place: |row, _, _| row,
    };
    let of_128 = Scheme {
        name: "_scale_inv",
        dtype: Dtype::F32,
        shape: |rows, columns| vec![rows.div_ceil(128), columns.div_ceil(128)],
        place: |row, column, columns| row / 128 * columns.div_ceil(128) + column / 128,
    };
    let of_blocks = Scheme {
        name: "_scale_inv",
        dtype: Dtype::BF16,
        shape: |rows, columns| vec![rows.div_ceil(32), columns.div_ceil(20)],
        place: |row, column, columns| row / 32 * columns.div_ceil(20) + column / 20,
    };
    let fp8 = json!({ "quant_method": "fp8", "activation_scheme": "dynamic" });
    let other = json!({ "quant_method": "fp8", "weight_block_size": [32, 20] });
    let tensors = json!({ "quant_method": "compressed-tensors", "format": "float-quantized" });
    for (quantization, dtype, scheme) in [
        (&fp8, Dtype::F8_E4M3, &whole),
        (&tensors, Dtype::F8_E4M3, &of_rows),
        (&fp8, Dtype::F8_E4M3, &of_128),
        (&other, Dtype::F8_E4M3, &of_blocks),
        (&fp8, Dtype::F8_E5M2, &whole),
    ] {
        let (small, wide) = drawn(quantization, dtype, scheme);
        let right = run(wide.path(), 1);
        for ranks in [1, 2, 4] {
            assert_eq!(run(small.path(), ranks), right, "{quantization} {dtype:?} {ranks}");
        }
    }
}

/// Returns the error of a model with these tensors.
fn refused(tensors: &[Tensor]) -> String {
    let dir = write(&config(&json!({ "quant_method": "fp8" })), tensors);
    let files = Model::in_dir(dir.path());
    let config = Config::read(&files).unwrap();
    let opened = Weights::read(&files)
        .and_then(|weights| nsbridge_llama::Model::new(&config, 64, &weights, &Setup::default()));
    opened.unwrap_err().to_string()
}

#[test]
fn floats_without_a_scale_or_without_a_number_are_named() {
    let scheme =
        Scheme { name: "_scale", dtype: Dtype::F32, shape: |_, _| vec![1], place: |_, _, _| 0 };
    let (small, _) = drawn(&json!({ "quant_method": "fp8" }), Dtype::F8_E4M3, &scheme);
    let bytes = fs::read(small.path().join("model.safetensors")).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let all: Vec<Tensor> = read
        .iter()
        .map(|(name, view)| {
            (name.to_owned(), view.dtype(), view.shape().to_vec(), view.data().to_vec())
        })
        .collect();
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
