//! Loads a checkpoint's tensors to a device.

use std::borrow::Cow;
use std::ops::Range;

use candle_core::quantized::{QMatMul, QStorage, QTensor};
use candle_core::{DType, Device, Module as _, Result as Candle, Tensor};
use nsbridge_checkpoint::Dtype;

use super::super::part::Part;
use super::first_line;
use crate::config::Config;
use crate::error::LoadError;
use crate::rope::RopeTable;
use crate::weights::{self, Cut, Stored, Weights, ggml};

pub(super) struct Layer {
    pub(super) attention_norm: Tensor,
    pub(super) queries: Linear,
    pub(super) keys: Linear,
    pub(super) values: Linear,
    pub(super) head_norms: Option<(Tensor, Tensor)>,
    pub(super) attention_output: Linear,
    pub(super) window: Option<usize>,
    pub(super) feed_forward_norm: Tensor,
    pub(super) gate: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

/// Linear projection `y = W x + b`, of which a rank may have rows or columns.
pub(super) struct Linear {
    matrix: Matrix,
    bias: Option<Tensor>,
}

enum Matrix {
    /// `[rows, columns]`.
    Float(Tensor),
    /// ggml blocks, multiplied by candle's kernels.
    Quantized(QMatMul),
}

impl Linear {
    pub(super) fn forward(&self, x: &Tensor) -> Candle<Tensor> {
        self.biased(self.products(x)?)
    }

    /// Computes the product without the bias, which is added after the all-reduce where the matrix
    /// is split by columns.
    pub(super) fn products(&self, x: &Tensor) -> Candle<Tensor> {
        match &self.matrix {
            Matrix::Float(matrix) => x.matmul(&matrix.t()?),
            // The kernels take and return f32.
            Matrix::Quantized(matrix) => {
                matrix.forward(&x.to_dtype(DType::F32)?)?.to_dtype(x.dtype())
            }
        }
    }

    pub(super) fn biased(&self, products: Tensor) -> Candle<Tensor> {
        match &self.bias {
            None => Ok(products),
            Some(bias) => products.broadcast_add(bias),
        }
    }
}

pub(super) struct Load<'a> {
    pub(super) config: &'a Config,
    pub(super) weights: &'a Weights,
    pub(super) part: Part,
    pub(super) device: &'a Device,
    /// Dtype of floats.
    pub(super) dtype: DType,
}

impl Load<'_> {
    /// Loads the embeddings `[each, hidden]`, padded with zeros, and the output projection.
    pub(super) fn of_words(&self) -> Result<(Tensor, Linear), LoadError> {
        let embedding = self.of_tokens("model.embed_tokens.weight")?;
        let rows = self.floats(&embedding)?;
        let tied = self.config.tied;
        let matrix = if tied { embedding } else { self.of_tokens("lm_head.weight")? };
        Ok((rows, Linear { matrix, bias: None }))
    }

    /// Loads a vector.
    pub(super) fn norm(&self, name: &str, len: usize) -> Result<Tensor, LoadError> {
        let weight = self.weights.take(name, &[len], &Cut::Rows(0..len))?;
        let matrix = self.matrix(&weight, &[len])?;
        self.floats(&matrix)
    }

    /// Computes the rotary cosines and sines, `[context, head_dim / 2]` each.
    pub(super) fn angles(&self, context: usize) -> Result<(Tensor, Tensor), LoadError> {
        let half = self.config.head_dim / 2;
        let table = RopeTable::new(&self.config.rope, self.config.head_dim, context);
        let tensor = |all: Vec<f32>| {
            Tensor::from_vec(all, (context, half), self.device)
                .and_then(|all| all.to_dtype(self.dtype))
                .map_err(|error| no_memory(&error))
        };
        let cos = (0..context).flat_map(|at| table.at(at).0).copied().collect();
        let sin = (0..context).flat_map(|at| table.at(at).1).copied().collect();
        Ok((tensor(cos)?, tensor(sin)?))
    }

    pub(super) fn layer(&self, index: usize) -> Result<Layer, LoadError> {
        let (config, part) = (self.config, self.part);
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let (hidden, wide, dim) = (config.hidden_size, config.intermediate_size, config.head_dim);
        let (queries, keys) = (config.heads * dim, config.kv_heads * dim);
        let (own_queries, own_keys) = (part.queries(config), part.keys(config));
        let own_wide = part.share(wide);
        let rows = |part: &str, rows, own: &Range<usize>, bias| {
            self.linear(&name(part), [rows, hidden], Cut::Rows(own.clone()), bias)
        };
        let columns = |part: &str, columns, own: &Range<usize>, bias| {
            self.linear(&name(part), [hidden, columns], Cut::Columns(own.clone()), bias)
        };
        let norm = |part: &str, len| self.norm(&name(&format!("{part}.weight")), len);
        let head_norms = config.qk_norm.then(|| {
            Ok::<_, LoadError>((norm("self_attn.q_norm", dim)?, norm("self_attn.k_norm", dim)?))
        });
        Ok(Layer {
            attention_norm: norm("input_layernorm", hidden)?,
            queries: rows("self_attn.q_proj", queries, &own_queries, config.qkv_bias)?,
            keys: rows("self_attn.k_proj", keys, &own_keys, config.qkv_bias)?,
            values: rows("self_attn.v_proj", keys, &own_keys, config.qkv_bias)?,
            head_norms: head_norms.transpose()?,
            attention_output: columns(
                "self_attn.o_proj",
                queries,
                &own_queries,
                config.output_bias,
            )?,
            window: config.windows[index],
            feed_forward_norm: norm("post_attention_layernorm", hidden)?,
            gate: rows("mlp.gate_proj", wide, &own_wide, config.mlp_bias)?,
            up: rows("mlp.up_proj", wide, &own_wide, config.mlp_bias)?,
            down: columns("mlp.down_proj", wide, &own_wide, config.mlp_bias)?,
        })
    }

    fn linear(
        &self,
        name: &str,
        shape: [usize; 2],
        cut: Cut,
        bias: bool,
    ) -> Result<Linear, LoadError> {
        let full = format!("{name}.weight");
        let weight = self.weights.take(&full, &shape, &cut)?;
        let own = weight.shape().to_vec();
        let turned = name.ends_with("q_proj") || name.ends_with("k_proj");
        let interleaved = turned && self.weights.are_interleaved();
        let matrix = if interleaved {
            self.matrix_of(&weight, &self.parted(&weight), &own)?
        } else {
            self.matrix(&weight, &own)?
        };
        let bias = bias.then(|| {
            let all = self.norm(&format!("{name}.bias"), shape[0])?;
            let Cut::Rows(own) = cut else { return Ok(all) };
            let rows: Vec<u32> = own
                .map(|row| if interleaved { self.interleaved(row) } else { row } as u32)
                .collect();
            Tensor::new(rows, self.device)
                .and_then(|rows| all.index_select(&rows, 0))
                .map_err(|error| no_memory(&error))
        });
        Ok(Linear { matrix, bias: bias.transpose()? })
    }

    fn interleaved(&self, row: usize) -> usize {
        weights::interleaved(row, self.config.head_dim)
    }

    /// Reorders interleaved rows to the layout of transformers. A rank has whole heads, so its part
    /// can be reordered by itself.
    fn parted(&self, weight: &Stored) -> Vec<u8> {
        let bytes = weight.bytes();
        let rows = weight.shape()[0];
        let size = bytes.len() / rows;
        let row = |row| &bytes[self.interleaved(row) * size..][..size];
        (0..rows).flat_map(row).copied().collect()
    }

    /// Loads this rank's rows of a matrix that has a row for each token.
    fn of_tokens(&self, name: &str) -> Result<Matrix, LoadError> {
        let Config { vocab_size, hidden_size, .. } = *self.config;
        let tokens = self.part.tokens(vocab_size);
        let own = tokens.first..vocab_size.min(tokens.first + tokens.each);
        let missing = tokens.each - own.len();
        let whole = if own.is_empty() { 0..1 } else { own };
        let weight =
            self.weights.take(name, &[vocab_size, hidden_size], &Cut::Rows(whole.clone()))?;
        let matrix = self.matrix(&weight, &[whole.len(), hidden_size])?;
        if missing == 0 {
            return Ok(matrix);
        }
        // Padded to the size of every rank's part, in whole tiles.
        let padded = self.floats(&matrix)?.pad_with_zeros(0, 0, tokens.each - whole.len());
        Ok(Matrix::Float(padded.map_err(|error| no_memory(&error))?))
    }

    fn matrix(&self, weight: &Stored, shape: &[usize]) -> Result<Matrix, LoadError> {
        self.matrix_of(weight, &weight.bytes(), shape)
    }

    /// Loads a matrix from a tensor's bytes, whose rows may have been reordered.
    fn matrix_of(
        &self,
        weight: &Stored,
        bytes: &[u8],
        shape: &[usize],
    ) -> Result<Matrix, LoadError> {
        let there = |tensor: Tensor| tensor.to_device(self.device)?.to_dtype(self.dtype);
        let floats = |dtype| {
            let tensor = Tensor::from_raw_buffer(bytes, dtype, shape, &Device::Cpu);
            tensor.and_then(there).map(Matrix::Float)
        };
        let made = match (weight.dtype(), ggml(weight.dtype())) {
            (Dtype::F32, _) => floats(DType::F32),
            (Dtype::F16, _) => floats(DType::F16),
            (Dtype::BF16, _) => floats(DType::BF16),
            (_, Some(blocks)) => QStorage::from_data(Cow::Borrowed(bytes), self.device, blocks)
                .and_then(|storage| QTensor::new(storage, shape))
                .and_then(QMatMul::from_qtensor)
                .map(Matrix::Quantized),
            // candle has no kernels for these blocks.
            (_, None) => {
                let source = weight.source(bytes);
                let columns = shape.last().copied().unwrap_or(1);
                let mut numbers = vec![0.0f32; shape.iter().product()];
                for (row, out) in numbers.chunks_exact_mut(columns).enumerate() {
                    source.read(row, out);
                }
                Tensor::from_vec(numbers, shape, &Device::Cpu).and_then(there).map(Matrix::Float)
            }
        };
        made.map_err(|error| no_memory(&error))
    }

    fn floats(&self, matrix: &Matrix) -> Result<Tensor, LoadError> {
        let tensor = match matrix {
            Matrix::Float(tensor) => Ok(tensor.clone()),
            Matrix::Quantized(QMatMul::QTensor(blocks)) => blocks.dequantize(self.device),
            Matrix::Quantized(QMatMul::Tensor(tensor) | QMatMul::TensorF16(tensor)) => {
                Ok(tensor.clone())
            }
        };
        let tensor = tensor.and_then(|tensor| tensor.to_dtype(self.dtype));
        tensor.map_err(|error| no_memory(&error))
    }
}

pub(super) fn no_memory(error: &candle_core::Error) -> LoadError {
    let why = first_line(error);
    LoadError::Worker(format!("a tensor could not be put on its device: {why}"))
}
