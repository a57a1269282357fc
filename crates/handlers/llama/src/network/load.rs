//! From a checkpoint's tensors to the matrices of the network.

use nsbridge_handler::Dtype;

use super::Layer;
use crate::kernel::{LANES, Tier};
use crate::matrix::{Format, Matrix, Source};
use crate::pool::Pool;
use crate::{Config, LoadError, Weights};

/// A model whose layers are smaller than this is computed by one thread: others cost more than
/// they bring.
const SMALL: usize = 32 << 20;

pub(super) fn threads(bytes: usize) -> usize {
    if bytes < SMALL { 1 } else { cores() }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A model's tensors on their way into matrices, on all threads.
pub(super) struct Loader<'a> {
    config: &'a Config,
    weights: &'a Weights,
    format: Option<Format>,
    tier: Tier,
    pool: Pool,
}

/// A tensor that a matrix is made of.
struct Part {
    name: String,
    rows: usize,
}

impl<'a> Loader<'a> {
    /// With these threads, or as many as there are cores.
    pub(super) fn new(
        config: &'a Config,
        weights: &'a Weights,
        format: Option<Format>,
        (threads, tier): (Option<usize>, Tier),
    ) -> Self {
        let pool = Pool::new(threads.unwrap_or_else(cores));
        Self { config, weights, format, tier, pool }
    }

    pub(super) fn embedding(&mut self) -> Result<Matrix, LoadError> {
        self.whole("model.embed_tokens", self.config.vocab_size, self.config.hidden_size)
    }

    /// `None` if it is the embedding.
    pub(super) fn output(&mut self) -> Result<Option<Matrix>, LoadError> {
        if self.config.tied {
            return Ok(None);
        }
        self.whole("lm_head", self.config.vocab_size, self.config.hidden_size).map(Some)
    }

    pub(super) fn layer(&mut self, index: usize) -> Result<Layer, LoadError> {
        let config = self.config;
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let part = |part: &str, rows| Part { name: name(part), rows };
        let (hidden, wide, dim) = (config.hidden_size, config.intermediate_size, config.head_dim);
        let (queries, keys) = (config.heads * dim, config.kv_heads * dim);
        let norm_of = |part: &str, len| norm(self.weights, &name(&format!("{part}.weight")), len);
        let head_norms = config.qk_norm.then(|| {
            let norms = (norm_of("self_attn.q_norm", dim)?, norm_of("self_attn.k_norm", dim)?);
            Ok::<_, LoadError>(norms)
        });
        Ok(Layer {
            attention_norm: norm_of("input_layernorm", hidden)?,
            qkv: self.matrix(
                hidden,
                &[
                    part("self_attn.q_proj", queries),
                    part("self_attn.k_proj", keys),
                    part("self_attn.v_proj", keys),
                ],
                config.qkv_bias,
                |row| one_after_another(row, [queries, keys, keys]),
            )?,
            head_norms: head_norms.transpose()?,
            output: self.matrix(
                queries,
                &[part("self_attn.o_proj", hidden)],
                config.output_bias,
                |row| one_after_another(row, [hidden]),
            )?,
            window: config.windows[index],
            feed_forward_norm: norm_of("post_attention_layernorm", hidden)?,
            gate_up: self.matrix(
                hidden,
                &[part("mlp.gate_proj", wide), part("mlp.up_proj", wide)],
                config.mlp_bias,
                |row| tiles_in_turn(row, wide),
            )?,
            down: self.matrix(wide, &[part("mlp.down_proj", hidden)], config.mlp_bias, |row| {
                one_after_another(row, [hidden])
            })?,
        })
    }

    /// A matrix without a bias, of one tensor.
    fn whole(&mut self, name: &str, rows: usize, columns: usize) -> Result<Matrix, LoadError> {
        let part = Part { name: name.to_owned(), rows };
        self.matrix(columns, &[part], false, |row| one_after_another(row, [rows]))
    }

    /// Packs tensors into one matrix; `place` says which row of which part a row is.
    fn matrix(
        &mut self,
        columns: usize,
        parts: &[Part],
        bias: bool,
        place: impl Fn(usize) -> Option<(usize, usize)> + Sync,
    ) -> Result<Matrix, LoadError> {
        let take = |part: &Part| {
            let name = format!("{}.weight", part.name);
            let weight = self.weights.take(&name, &[part.rows, columns])?;
            Ok((name, weight))
        };
        let tensors = parts.iter().map(take).collect::<Result<Vec<_>, LoadError>>()?;
        let bytes: Vec<_> = tensors.iter().map(|(_, weight)| weight.contiguous()).collect();
        let sources: Vec<_> = tensors
            .iter()
            .zip(&bytes)
            .map(|((name, weight), bytes)| Source { name, dtype: weight.dtype(), bytes })
            .collect();
        let all = |dtype| sources.iter().all(|source| source.dtype == dtype);
        let stored = if all(Dtype::BF16) {
            Format::Bf16
        } else if all(Dtype::F16) {
            Format::F16
        } else {
            Format::F32
        };
        // Parts that take turns do so by whole tiles.
        let padded = |part: &Part| part.rows.next_multiple_of(LANES);
        let rows = match parts {
            [part] => part.rows,
            _ => parts.iter().map(padded).sum(),
        };
        let mut matrix = Matrix::zeroed(self.format.unwrap_or(stored), rows, columns)?;
        matrix.pack((&mut self.pool, self.tier), &sources, &place)?;
        if bias {
            let of = |part: &Part| norm(self.weights, &format!("{}.bias", part.name), part.rows);
            let biases = parts.iter().map(of).collect::<Result<Vec<_>, _>>()?;
            let at = |row| place(row).map_or(0.0, |(part, row)| biases[part][row]);
            matrix.bias = Some((0..matrix.padded()).map(at).collect());
        }
        Ok(matrix)
    }
}

/// Parts that follow each other without a gap.
fn one_after_another<const N: usize>(mut row: usize, parts: [usize; N]) -> Option<(usize, usize)> {
    for (part, rows) in parts.into_iter().enumerate() {
        if row < rows {
            return Some((part, row));
        }
        row -= rows;
    }
    None
}

/// A tile of one part, the same of the other, and so on.
fn tiles_in_turn(row: usize, rows: usize) -> Option<(usize, usize)> {
    let (tile, lane) = (row / LANES, row % LANES);
    let from = tile / 2 * LANES + lane;
    (from < rows).then_some((tile % 2, from))
}

/// A vector of f32, whatever it is stored as.
pub(super) fn norm(weights: &Weights, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
    let weight = weights.take(name, &[len])?;
    let mut out = vec![0.0; len];
    let bytes = weight.contiguous();
    Source { name, dtype: weight.dtype(), bytes: &bytes }.read(0, &mut out);
    Ok(out)
}
