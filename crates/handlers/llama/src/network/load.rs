//! From a checkpoint's tensors to the matrices of the network.

use nsbridge_handler::Dtype;

use super::Layer;
use crate::kernel::LANES;
use crate::matrix::{Format, Matrix, Source};
use crate::{Config, LoadError, Weights};

/// A model whose layers are smaller than this is computed by one thread: others cost more than
/// they bring.
const SMALL: usize = 32 << 20;

pub(super) fn threads(bytes: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if bytes < SMALL { 1 } else { cores }
}

/// A tensor's part in a matrix: its rows come after those before it.
struct Part {
    name: String,
    rows: usize,
}

pub(super) fn embedding(
    config: &Config,
    weights: &Weights,
    format: Option<Format>,
) -> Result<Matrix, LoadError> {
    let part = Part { name: "model.embed_tokens".to_owned(), rows: config.vocab_size };
    matrix(weights, format, config.hidden_size, &[part], false, |_, row| row)
}

pub(super) fn output(
    config: &Config,
    weights: &Weights,
    format: Option<Format>,
) -> Result<Option<Matrix>, LoadError> {
    if config.tied {
        return Ok(None);
    }
    let part = Part { name: "lm_head".to_owned(), rows: config.vocab_size };
    matrix(weights, format, config.hidden_size, &[part], false, |_, row| row).map(Some)
}

pub(super) fn layer(
    config: &Config,
    index: usize,
    weights: &Weights,
    format: Option<Format>,
) -> Result<Layer, LoadError> {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let (hidden, wide, dim) = (config.hidden_size, config.intermediate_size, config.head_dim);
    let (queries, keys) = (config.heads * dim, config.kv_heads * dim);
    let starts = [0, queries, queries + keys];
    let part = |part: &str, rows| Part { name: name(part), rows };
    let qkv = [
        part("self_attn.q_proj", queries),
        part("self_attn.k_proj", keys),
        part("self_attn.v_proj", keys),
    ];
    let gate_up = [part("mlp.gate_proj", wide), part("mlp.up_proj", wide)];
    let in_turn = |which: usize, row: usize| (2 * (row / LANES) + which) * LANES + row % LANES;
    let norm_of = |part: &str, len| norm(weights, &format!("{}.weight", name(part)), len);
    let head_norms = config.qk_norm.then(|| {
        Ok::<_, LoadError>((norm_of("self_attn.q_norm", dim)?, norm_of("self_attn.k_norm", dim)?))
    });
    Ok(Layer {
        attention_norm: norm_of("input_layernorm", hidden)?,
        qkv: matrix(weights, format, hidden, &qkv, config.qkv_bias, |which, row| {
            starts[which] + row
        })?,
        head_norms: head_norms.transpose()?,
        output: matrix(
            weights,
            format,
            queries,
            &[part("self_attn.o_proj", hidden)],
            config.output_bias,
            |_, row| row,
        )?,
        window: config.windows[index],
        feed_forward_norm: norm_of("post_attention_layernorm", hidden)?,
        gate_up: matrix(weights, format, hidden, &gate_up, config.mlp_bias, in_turn)?,
        down: matrix(
            weights,
            format,
            wide,
            &[part("mlp.down_proj", hidden)],
            config.mlp_bias,
            |_, row| row,
        )?,
    })
}

/// A vector of f32, whatever it is stored as.
pub(super) fn norm(weights: &Weights, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
    let weight = weights.take(name, &[len])?;
    let mut out = vec![0.0; len];
    let bytes = weight.contiguous();
    Source { name, dtype: weight.dtype(), bytes: &bytes, rows: 1 }.read(0, &mut out)?;
    Ok(out)
}

/// Packs tensors into one matrix; `place` says in which row a tensor's row goes.
fn matrix(
    weights: &Weights,
    format: Option<Format>,
    columns: usize,
    parts: &[Part],
    bias: bool,
    place: impl Fn(usize, usize) -> usize,
) -> Result<Matrix, LoadError> {
    let mut packed: Option<Matrix> = None;
    let last = |(which, part): (usize, &Part)| place(which, part.rows - 1) + 1;
    let rows = parts.iter().enumerate().map(last).max().unwrap_or(0);
    for (which, part) in parts.iter().enumerate() {
        let name = format!("{}.weight", part.name);
        let weight = weights.take(&name, &[part.rows, columns])?;
        let matrix = match &mut packed {
            Some(matrix) => matrix,
            none => {
                let format = format.unwrap_or(match weight.dtype() {
                    Dtype::BF16 => Format::Bf16,
                    _ => Format::F32,
                });
                none.insert(Matrix::zeroed(format, rows, columns)?)
            }
        };
        let (bytes, dtype) = (weight.contiguous(), weight.dtype());
        let source = Source { name: &name, dtype, bytes: &bytes, rows: part.rows };
        matrix.pack(&source, |row| place(which, row))?;
    }
    let mut packed = packed.ok_or_else(|| LoadError::Missing("a matrix has no rows".to_owned()))?;
    if bias {
        let mut all = vec![0.0; packed.padded()];
        for (which, part) in parts.iter().enumerate() {
            let values = norm(weights, &format!("{}.bias", part.name), part.rows)?;
            for (row, value) in values.into_iter().enumerate() {
                all[place(which, row)] = value;
            }
        }
        packed.bias = Some(all);
    }
    Ok(packed)
}
