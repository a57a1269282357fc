//! Loads a checkpoint's tensors into the matrices of the network.

use super::Setup;
use super::arithmetic::Arithmetic;
use super::part::{Layer, Packed, Part, Partial, Tokens};
use nsbridge_kernels::ThreadPool;
use nsbridge_kernels::matrix::{Matrix, Source, segments};
use nsbridge_kernels::simd::{Bf16Order, LANES};

use crate::config::Config;
use crate::error::LoadError;
use crate::weights::{self, Cut, Floats8, Stored, Weights};
use nsbridge_kernels::{Format, Tier};

/// Bytes of layers below which a model runs on one thread: more threads would cost more than they
/// gain.
const MIN_PARALLEL_BYTES: usize = 32 << 20;

/// Returns the number of threads of a rank with `bytes` of layers. `all` is the total, if it is
/// configured.
pub(super) fn threads(all: Option<usize>, bytes: usize, ranks: usize) -> usize {
    let enough = if bytes < MIN_PARALLEL_BYTES { 1 } else { cores() / ranks };
    all.map_or(enough, |all| all / ranks).max(1)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Packer of the matrices of a backend.
pub(super) trait Pack {
    type Matrix: Packed;

    /// Number of rows of the gate, and then of the up projection, that lie together.
    const GATE_ROWS: usize;

    /// Packs tensors into one matrix. `place` maps each of its rows to a source and a row of that
    /// source.
    fn pack(
        &mut self,
        shape: Packing,
        sources: &[Source<'_>],
        place: &(impl Fn(usize) -> Option<(usize, usize)> + Sync),
        bias: Option<&dyn Fn(usize) -> f32>,
    ) -> Result<Self::Matrix, LoadError>;

    /// Packs tensors of eight-bit floats as they are. Returns `None` if the backend does not multiply
    /// them.
    fn pack_floats8(
        &mut self,
        _shape: Packing,
        _sources: &[Floats8],
        _place: &(impl Fn(usize) -> Option<(usize, usize)> + Sync),
        _bias: Option<&dyn Fn(usize) -> f32>,
    ) -> Result<Option<Self::Matrix>, LoadError> {
        Ok(None)
    }

    /// Returns the format of the products of eight-bit floats with their scales.
    fn of_floats8(&self) -> Format {
        Format::F32
    }
}

/// Shape and format of a matrix to pack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packing {
    pub(super) format: Format,
    pub(super) rows: usize,
    /// Columns of this rank.
    pub(super) columns: usize,
    /// Columns of all ranks that have a part of them: `ranks` of them.
    pub(super) all_columns: usize,
    pub(super) ranks: usize,
}

impl Packing {
    /// Returns the number of segments of this rank.
    pub(super) fn segments(&self) -> usize {
        segments(self.format, self.all_columns) / self.ranks
    }
}

/// Packer of the CPU's matrices, on all threads.
pub(super) struct CpuPack {
    /// Order of products in bf16, if there are any.
    bf16_order: Option<Bf16Order>,
    tier: Tier,
    pool: ThreadPool,
}

impl CpuPack {
    /// Uses the number of threads of all ranks in `setup`, or one for each core.
    pub(super) fn new(setup: &Setup, ranks: usize, tier: Tier) -> Self {
        let threads = setup.threads.unwrap_or_else(cores) / ranks;
        let bf16_order = (setup.arithmetic == Arithmetic::Native).then(|| {
            let order = setup.bf16_order.or_else(|| Tier::best().bf16_order());
            order.unwrap_or(Bf16Order::Pairs)
        });
        Self { bf16_order, tier, pool: ThreadPool::new(threads) }
    }
}

impl Pack for CpuPack {
    type Matrix = Matrix;

    const GATE_ROWS: usize = LANES;

    fn pack(
        &mut self,
        shape: Packing,
        sources: &[Source<'_>],
        place: &(impl Fn(usize) -> Option<(usize, usize)> + Sync),
        bias: Option<&dyn Fn(usize) -> f32>,
    ) -> Result<Matrix, LoadError> {
        let Packing { format, rows, columns, .. } = shape;
        let matrix = Matrix::zeroed(format, rows, columns, shape.segments())?;
        let mut matrix = matrix.for_tier(self.tier);
        if let Some(order) = self.bf16_order {
            matrix = matrix.in_bf16(order);
        }
        matrix.pack((&mut self.pool, self.tier), sources, place)?;
        if let Some(bias) = bias {
            matrix.set_bias((0..matrix.padded()).map(bias).collect());
        }
        Ok(matrix)
    }
}

/// Converts a model's tensors to the matrices of a backend.
pub(super) struct Loader<'a, P> {
    config: &'a Config,
    weights: &'a Weights,
    part: Part,
    format: Option<Format>,
    pack: P,
}

/// Tensor that goes into a matrix, and this rank's cut of it.
struct Piece {
    name: String,
    shape: [usize; 2],
    cut: Cut,
}

impl Piece {
    fn rows(&self) -> usize {
        if let Cut::Rows(rows) = &self.cut { rows.len() } else { self.shape[0] }
    }
}

impl<'a, P: Pack> Loader<'a, P> {
    /// Converts to `format`, if there is one.
    pub(super) fn new(
        config: &'a Config,
        weights: &'a Weights,
        part: Part,
        format: Option<Format>,
        pack: P,
    ) -> Self {
        Self { config, weights, part, format, pack }
    }

    pub(super) fn embedding(&mut self) -> Result<P::Matrix, LoadError> {
        self.of_tokens("model.embed_tokens")
    }

    /// Returns `None` if the output is tied to the embedding.
    pub(super) fn output(&mut self) -> Result<Option<P::Matrix>, LoadError> {
        if self.config.tied {
            return Ok(None);
        }
        self.of_tokens("lm_head").map(Some)
    }

    pub(super) fn layer(&mut self, index: usize) -> Result<Layer<P::Matrix>, LoadError> {
        let (config, part) = (self.config, self.part);
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let (hidden, wide, dim) = (config.hidden_size, config.intermediate_size, config.head_dim);
        // Projections from the residual stream (q, k, v, gate, up) are split by rows; those back
        // into it (o, down) by columns.
        let rows = |part: &str, rows, own| Piece {
            name: name(part),
            shape: [rows, hidden],
            cut: Cut::Rows(own),
        };
        let (queries, keys) = (config.heads * dim, config.kv_heads * dim);
        let (own_keys, own_wide) = (part.keys(config), part.share(wide));
        let norm_of = |part: &str, len| norm(self.weights, &name(&format!("{part}.weight")), len);
        let head_norms = config.qk_norm.then(|| {
            let norms = (norm_of("self_attn.q_norm", dim)?, norm_of("self_attn.k_norm", dim)?);
            Ok::<_, LoadError>(norms)
        });
        Ok(Layer {
            attention_norm: norm_of("input_layernorm", hidden)?,
            qkv: self.qkv(&[
                rows("self_attn.q_proj", queries, part.queries(config)),
                rows("self_attn.k_proj", keys, own_keys.clone()),
                rows("self_attn.v_proj", keys, own_keys),
            ])?,
            head_norms: head_norms.transpose()?,
            output: self.partial(name("self_attn.o_proj"), queries, config.output_bias)?,
            window: config.windows[index],
            feed_forward_norm: norm_of("post_attention_layernorm", hidden)?,
            // Padded to whole groups.
            gate_up: self.matrix(
                2 * own_wide.len().next_multiple_of(P::GATE_ROWS),
                &[
                    rows("mlp.gate_proj", wide, own_wide.clone()),
                    rows("mlp.up_proj", wide, own_wide.clone()),
                ],
                config.mlp_bias,
                |row| in_turn(row, own_wide.len(), P::GATE_ROWS),
            )?,
            down: self.partial(name("mlp.down_proj"), wide, config.mlp_bias)?,
        })
    }

    /// Packs q, k and v into as few matrices as their formats allow.
    fn qkv(&mut self, pieces: &[Piece; 3]) -> Result<Vec<P::Matrix>, LoadError> {
        let mut formats = Vec::new();
        for piece in pieces {
            formats.push(self.weights.format(&format!("{}.weight", piece.name))?);
        }
        let (dim, interleaved) = (self.config.head_dim, self.weights.are_interleaved());
        let (mut matrices, mut first) = (Vec::new(), 0);
        while first < pieces.len() {
            let same = formats[first..].iter().take_while(|format| **format == formats[first]);
            let alike = &pieces[first..first + same.count()];
            let place = |mut row: usize| {
                for (piece, index) in alike.iter().zip(0..) {
                    if row < piece.rows() {
                        // The rotary embedding applies to queries and keys only, so values are not
                        // reordered.
                        let turned = interleaved && first + index < 2;
                        return Some((
                            index,
                            if turned { weights::interleaved(row, dim) } else { row },
                        ));
                    }
                    row -= piece.rows();
                }
                None
            };
            let rows = alike.iter().map(Piece::rows).sum();
            matrices.push(self.matrix(rows, alike, self.config.qkv_bias, place)?);
            first += alike.len();
        }
        Ok(matrices)
    }

    /// Loads a matrix that has a row for each token and no bias.
    fn of_tokens(&mut self, name: &str) -> Result<P::Matrix, LoadError> {
        let Config { vocab_size, hidden_size, .. } = *self.config;
        let Tokens { first, each } = self.part.tokens(vocab_size);
        let own = first..vocab_size.min(first + each);
        let count = own.len();
        let piece =
            Piece { name: name.to_owned(), shape: [vocab_size, hidden_size], cut: Cut::Rows(own) };
        self.matrix(count, &[piece], false, |row| (row < count).then_some((0, row)))
    }

    /// Loads a projection from `columns` to the residual stream.
    fn partial(
        &mut self,
        name: String,
        columns: usize,
        bias: bool,
    ) -> Result<Partial<P::Matrix>, LoadError> {
        let rows = self.config.hidden_size;
        let bias = bias.then(|| norm(self.weights, &format!("{name}.bias"), rows)).transpose()?;
        let cut = Cut::Columns(self.part.share(columns));
        let piece = Piece { name, shape: [rows, columns], cut };
        let matrix = self.matrix(rows, &[piece], false, |row| (row < rows).then_some((0, row)))?;
        Ok(Partial { matrix, bias })
    }

    /// Packs tensors into one matrix. `place` maps each of its rows to a piece and a row of that
    /// piece.
    fn matrix(
        &mut self,
        rows: usize,
        pieces: &[Piece],
        bias: bool,
        place: impl Fn(usize) -> Option<(usize, usize)> + Sync,
    ) -> Result<P::Matrix, LoadError> {
        let biases = match bias {
            true => pieces.iter().map(|piece| self.bias(piece)).collect::<Result<Vec<_>, _>>()?,
            false => Vec::new(),
        };
        let at = |row| place(row).map_or(0.0, |(piece, row)| biases[piece][row]);
        let bias = bias.then_some(&at as &dyn Fn(usize) -> f32);
        let names: Vec<_> = pieces.iter().map(|piece| format!("{}.weight", piece.name)).collect();
        let (all_columns, part) = (pieces[0].shape[1], self.part);
        let (columns, ranks) = match &pieces[0].cut {
            Cut::Columns(own) => (own.len(), part.of),
            Cut::Rows(_) => (all_columns, 1),
        };
        let packing = |format| Packing { format, rows, columns, all_columns, ranks };
        let weights = self.weights;
        let are_floats8 = names.iter().map(|name| weights.is_floats8(name));
        let are_floats8 = are_floats8.collect::<Result<Vec<_>, _>>()?;
        let mut given = self.format;
        if are_floats8.contains(&true) {
            given = given.or(Some(self.pack.of_floats8()));
        }
        let named = names.iter().zip(pieces);
        let tensors: Result<Vec<_>, LoadError> =
            if self.format.is_none() && !are_floats8.contains(&false) {
                let take = |(name, piece): (&String, &Piece)| {
                    weights.take_floats8(name, &piece.shape, &piece.cut)
                };
                let floats8 = named.map(take).collect::<Result<Vec<_>, _>>()?;
                let shape = packing(self.pack.of_floats8());
                if let Some(matrix) = self.pack.pack_floats8(shape, &floats8, &place, bias)? {
                    return Ok(matrix);
                }
                floats8.iter().map(Floats8::widened).collect()
            } else {
                let take =
                    |(name, piece): (&String, &Piece)| weights.take(name, &piece.shape, &piece.cut);
                named.map(take).collect()
            };
        let tensors = tensors?;
        let bytes: Vec<_> = tensors.iter().map(Stored::bytes).collect();
        let sources: Vec<_> =
            tensors.iter().zip(&bytes).map(|(tensor, bytes)| tensor.source(bytes)).collect();
        let first = sources[0].format;
        let alike = |format: Format| {
            format.in_memory() == first.in_memory() && format.unit() == first.unit()
        };
        let same = sources.iter().all(|source| alike(source.format));
        let mixed = if sources.iter().any(|source| source.format.block_in_file().0 > 1) {
            Format::Q8_0
        } else {
            Format::F32
        };
        let format = given.unwrap_or(if same { first } else { mixed });
        self.pack.pack(packing(format), &sources, &place, bias)
    }

    /// Loads the bias of a piece's rows.
    fn bias(&self, piece: &Piece) -> Result<Vec<f32>, LoadError> {
        let all = norm(self.weights, &format!("{}.bias", piece.name), piece.shape[0])?;
        let Cut::Rows(own) = &piece.cut else { return Ok(all) };
        Ok(all[own.clone()].to_vec())
    }
}

/// Maps a row to alternating groups of rows of two parts.
fn in_turn(row: usize, rows: usize, group: usize) -> Option<(usize, usize)> {
    let (number, lane) = (row / group, row % group);
    let from = number / 2 * group + lane;
    (from < rows).then_some((number % 2, from))
}

/// Loads a vector as f32, whatever its stored dtype.
pub(super) fn norm(weights: &Weights, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
    let tensor = weights.take(name, &[len], &Cut::Rows(0..len))?;
    let mut out = vec![0.0; len];
    tensor.source(&tensor.bytes()).read(0, &mut out);
    Ok(out)
}
