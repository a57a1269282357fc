//! Reproducible models of random parameters.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// Shape of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Name of the model's folder.
    pub(crate) name: &'static str,
    hidden: usize,
    inner: usize,
    heads: usize,
    kv_heads: usize,
    layers: usize,
    vocabulary: usize,
    context: usize,
}

/// 1.1 billion parameters. At this size the cost of a decode step is the cost to read the weights.
pub(crate) const LARGE_SHAPE: Shape = Shape {
    name: "random-1b1",
    hidden: 2048,
    inner: 5632,
    heads: 32,
    kv_heads: 4,
    layers: 22,
    vocabulary: 32_000,
    context: 2048,
};

/// Six layers of the shape of SmolLM2-135M, with room for long contexts. There the cost is that of
/// attention, and a context of 32,768 tokens is computed in a minute.
pub(crate) const LONG_SHAPE: Shape = Shape {
    name: "random-long",
    hidden: 576,
    inner: 1536,
    heads: 9,
    kv_heads: 3,
    layers: 6,
    vocabulary: 8192,
    context: 65_536,
};

/// Name and shape of a tensor.
type Tensor = (String, Vec<usize>);

/// Writes the model into a folder, unless it exists.
pub(crate) fn make(folder: &Path, shape: Shape) -> Result<()> {
    let weights = folder.join("model.safetensors");
    if weights.exists() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": shape.hidden, "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocabulary,
        "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "max_position_embeddings": shape.context,
        "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    });
    fs::write(folder.join("config.json"), config.to_string())?;
    // The file has a temporary name until it is complete, because a run may be interrupted.
    let new = folder.join("model.new");
    write(&new, shape).with_context(|| format!("writing {}", new.display()))?;
    fs::rename(new, weights)?;
    Ok(())
}

fn tensors(shape: Shape) -> Vec<Tensor> {
    let Shape { hidden, inner, vocabulary, .. } = shape;
    let keys = hidden / shape.heads * shape.kv_heads;
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocabulary, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
        ("lm_head.weight".to_owned(), vec![vocabulary, hidden]),
    ];
    for layer in 0..shape.layers {
        for (name, shape) in [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![hidden, hidden]),
            ("self_attn.k_proj", vec![keys, hidden]),
            ("self_attn.v_proj", vec![keys, hidden]),
            ("self_attn.o_proj", vec![hidden, hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    tensors
}

/// Writes a safetensors file: length of the header, header, tensors.
fn write(path: &Path, shape: Shape) -> Result<()> {
    let (tensors, mut header, mut end) = (tensors(shape), Map::new(), 0);
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    for (name, shape) in &tensors {
        let start = end;
        end += shape.iter().product::<usize>() * 2;
        let about = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, end] });
        header.insert(name.clone(), about);
    }
    let mut header = Value::from(header).to_string();
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for (_, shape) in &tensors {
        for _ in 0..shape.iter().product() {
            let number = if shape.len() == 1 { 1.0 } else { 0.02 * normal(&mut state) };
            file.write_all(&half::bf16::from_f32(number).to_le_bytes())?;
        }
    }
    Ok(file.flush()?)
}

/// Returns an approximately normal number with mean 0 and deviation 1, the scaled sum of four
/// uniform 16-bit numbers.
fn normal(state: &mut u64) -> f32 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let sum: u64 = (0..4).map(|part| *state >> (16 * part) & 0xffff).sum();
    // A uniform number in 0..1 has variance 1/12.
    (sum as f32 / 65_536.0 - 2.0) * 3_f32.sqrt()
}
