//! The same model as llama.cpp reads it.
//!
//! Source: the GGUF specification, version 3 (`docs/gguf.md` of ggml), and llama.cpp's converter:
//! rows of queries and keys are put into another order, for its rotation takes neighbours for pairs.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use half::{bf16, f16};
use memmap2::Mmap;
use nsbridge_llama::Format;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;

const ALIGNMENT: usize = 32;

/// Numbers of types, from the specification.
const U32: u32 = 4;
const F32: u32 = 6;
const TEXT: u32 = 8;

/// Writes a GGUF of the model in a folder, unless it is there already.
pub(crate) fn convert(folder: &Path, format: Format, to: &Path) -> Result<()> {
    if to.exists() {
        return Ok(());
    }
    let config: Value = serde_json::from_slice(&fs::read(folder.join("config.json"))?)?;
    let map = map(&File::open(folder.join("model.safetensors"))?)?;
    let tensors = SafeTensors::deserialize(&map)?;
    let new = to.with_extension("new");
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&new)?);
    write(&mut file, &config, &tensors, format)
        .with_context(|| format!("converting {} into {}", folder.display(), new.display()))?;
    file.flush()?;
    Ok(fs::rename(new, to)?)
}

#[expect(unsafe_code, reason = "two gigabytes are mapped rather than read")]
fn map(file: &File) -> Result<Mmap> {
    // SAFETY: a file of the bench's own, which nobody writes again.
    Ok(unsafe { Mmap::map(file) }?)
}

fn write(
    out: &mut impl Write,
    config: &Value,
    tensors: &SafeTensors<'_>,
    format: Format,
) -> Result<()> {
    let number = |field: &str| {
        let value = config.get(field).and_then(Value::as_u64);
        value.with_context(|| format!("config.json has no {field}"))
    };
    let (hidden, heads) = (number("hidden_size")?, number("num_attention_heads")?);
    let kv_heads = number("num_key_value_heads")?;
    let dim = number("head_dim").unwrap_or(hidden / heads);
    let float = |field: &str| config.get(field).and_then(Value::as_f64).unwrap_or_default() as f32;

    let mut values = Values::default();
    values.text("general.architecture", "llama");
    values.text("tokenizer.ggml.model", "no_vocab");
    for (name, value) in [
        ("llama.vocab_size", number("vocab_size")?),
        ("llama.context_length", number("max_position_embeddings")?),
        ("llama.embedding_length", hidden),
        ("llama.block_count", number("num_hidden_layers")?),
        ("llama.feed_forward_length", number("intermediate_size")?),
        ("llama.attention.head_count", heads),
        ("llama.attention.head_count_kv", kv_heads),
        ("llama.attention.key_length", dim),
        ("llama.attention.value_length", dim),
        ("llama.rope.dimension_count", dim),
    ] {
        values.number(name, value as u32);
    }
    values.float("llama.attention.layer_norm_rms_epsilon", float("rms_norm_eps"));
    values.float("llama.rope.freq_base", float("rope_theta"));

    let mut names: Vec<&str> = tensors.names().into_iter().collect();
    names.sort_unstable();
    let (mut infos, mut end) = (Vec::new(), 0);
    for name in &names {
        let view = tensors.tensor(name)?;
        let kind = Kind::of(&view, format);
        text(&mut infos, &renamed(name)?);
        infos.extend((view.shape().len() as u32).to_le_bytes());
        // The axis that lies together comes first.
        infos.extend(view.shape().iter().rev().flat_map(|size| (*size as u64).to_le_bytes()));
        infos.extend(kind.number().to_le_bytes());
        infos.extend((end as u64).to_le_bytes());
        end += kind.bytes(view.shape().iter().product()).next_multiple_of(ALIGNMENT);
    }

    let mut head = b"GGUF".to_vec();
    head.extend(3_u32.to_le_bytes());
    head.extend((names.len() as u64).to_le_bytes());
    head.extend(values.count.to_le_bytes());
    head.extend(values.bytes);
    head.extend(infos);
    head.resize(head.len().next_multiple_of(ALIGNMENT), 0);
    out.write_all(&head)?;
    for name in names {
        let view = tensors.tensor(name)?;
        let heads = match name {
            _ if name.ends_with("q_proj.weight") => Some(heads as usize),
            _ if name.ends_with("k_proj.weight") => Some(kv_heads as usize),
            _ => None,
        };
        let mut bytes = Kind::of(&view, format).encode(&rows(&view, heads)?);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// What is said before the tensors.
#[derive(Default)]
struct Values {
    count: u64,
    bytes: Vec<u8>,
}

impl Values {
    fn push(&mut self, name: &str, kind: u32) {
        self.count += 1;
        text(&mut self.bytes, name);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn text(&mut self, name: &str, value: &str) {
        self.push(name, TEXT);
        text(&mut self.bytes, value);
    }

    fn number(&mut self, name: &str, value: u32) {
        self.push(name, U32);
        self.bytes.extend(value.to_le_bytes());
    }

    fn float(&mut self, name: &str, value: f32) {
        self.push(name, F32);
        self.bytes.extend(value.to_le_bytes());
    }
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// llama.cpp's name for a tensor.
fn renamed(name: &str) -> Result<String> {
    let whole = match name {
        "model.embed_tokens.weight" => Some("token_embd.weight"),
        "model.norm.weight" => Some("output_norm.weight"),
        "lm_head.weight" => Some("output.weight"),
        _ => None,
    };
    if let Some(whole) = whole {
        return Ok(whole.to_owned());
    }
    let of_layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let part = of_layer.and_then(|(layer, part)| {
        let part = match part.strip_suffix(".weight")? {
            "input_layernorm" => "attn_norm",
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.o_proj" => "attn_output",
            "post_attention_layernorm" => "ffn_norm",
            "mlp.gate_proj" => "ffn_gate",
            "mlp.up_proj" => "ffn_up",
            "mlp.down_proj" => "ffn_down",
            _ => return None,
        };
        Some(format!("blk.{layer}.{part}.weight"))
    });
    part.with_context(|| format!("no name for the tensor {name}"))
}

/// The numbers, with the rows of heads that are rotated in llama.cpp's order.
fn rows(view: &TensorView<'_>, heads: Option<usize>) -> Result<Vec<f32>> {
    if view.dtype() != Dtype::BF16 {
        bail!("a tensor of {:?}, and only BF16 is converted", view.dtype());
    }
    let (pairs, _) = view.data().as_chunks::<2>();
    let numbers: Vec<f32> = pairs.iter().map(|pair| bf16::from_le_bytes(*pair).to_f32()).collect();
    let Some(heads) = heads else { return Ok(numbers) };
    let [rows, columns] = view.shape() else { bail!("queries or keys that are no matrix") };
    let half = rows / heads / 2;
    let order = (0..*rows).map(|row| {
        let (head, inside) = (row / (2 * half), row % (2 * half));
        head * 2 * half + inside % 2 * half + inside / 2
    });
    Ok(order.flat_map(|row| &numbers[row * columns..(row + 1) * columns]).copied().collect())
}

/// How a tensor is kept.
#[derive(Clone, Copy)]
enum Kind {
    F32,
    Bf16,
    Q8,
}

impl Kind {
    fn of(view: &TensorView<'_>, format: Format) -> Self {
        match format {
            _ if view.shape().len() == 1 => Self::F32,
            Format::Q8_0 => Self::Q8,
            _ => Self::Bf16,
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::Q8 => 8,
            Self::Bf16 => 30,
        }
    }

    fn bytes(self, numbers: usize) -> usize {
        match self {
            Self::F32 => numbers * 4,
            Self::Bf16 => numbers * 2,
            Self::Q8 => numbers / 32 * 34,
        }
    }

    fn encode(self, numbers: &[f32]) -> Vec<u8> {
        match self {
            Self::F32 => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Self::Bf16 => {
                numbers.iter().flat_map(|number| bf16::from_f32(*number).to_le_bytes()).collect()
            }
            Self::Q8 => numbers.as_chunks::<32>().0.iter().flat_map(block).collect(),
        }
    }
}

/// A block of Q8_0, as ggml's reference makes it: a scale in f16, and 32 bytes.
fn block(numbers: &[f32; 32]) -> [u8; 34] {
    let largest = numbers.iter().fold(0_f32, |largest, number| largest.max(number.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut bytes = [0; 34];
    bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    for (byte, number) in bytes[2..].iter_mut().zip(numbers) {
        *byte = (number * inverse).round() as i8 as u8;
    }
    bytes
}
