//! Rank whose tensors are candle's: on a GPU, and in the tests on the CPU.
//!
//! The network is that of [`shard`](super::shard), computed by the device's libraries, which sum in
//! their own order. So the logits match those of the CPU within a tolerance, not bit for bit.

mod attention;
mod collectives;
mod devices;
mod load;

use std::fmt;

use candle_core::{DType, Device, Tensor};
use candle_nn::ops::{rms_norm, silu};
use candle_nn::rotary_emb::rope;

use self::attention::Places;
use self::collectives::Collectives;
pub(super) use self::collectives::Handed;
pub use self::devices::CandleDevices;
use self::load::{Layer, Linear, Load};
use super::Setup;
use super::part::{Heads, Part, Tokens};
use super::plan::Step;
use super::rank::{Rank, Rows};
use crate::config::Config;
use crate::error::LoadError;
use crate::kv::KvFormat;
use crate::weights::Weights;
use nsbridge_kernels::attention::PAGE;
use nsbridge_kernels::collectives::{RankHandle, RankLost};

/// Shard of a model: the part that one rank holds on its device.
pub(super) struct DeviceShard {
    device: Device,
    /// Embedding rows of this rank's tokens, `[Tokens::each, hidden]`.
    embedding: Tensor,
    tokens: Tokens,
    layers: Vec<Layer>,
    norm: Tensor,
    output: Linear,
    /// True if a step ends with the last norm.
    hidden: bool,
    /// `[context, head_dim / 2]`.
    cos: Tensor,
    sin: Tensor,
    eps: f32,
    heads: Heads,
    /// Keys and values of each layer, `[blocks * PAGE, kv_heads, head_dim]`.
    pages: Vec<[Tensor; 2]>,
    /// Dtype of keys and values.
    kv: DType,
    /// Attention windows of the layers.
    windows: Vec<Option<usize>>,
    collectives: Collectives,
    part: Part,
    logits: Vec<f32>,
}

/// Reason for which a step fails.
enum Failed {
    Device(candle_core::Error),
    Lost(RankLost),
}

type Result<T, E = Failed> = std::result::Result<T, E>;

impl From<candle_core::Error> for Failed {
    fn from(error: candle_core::Error) -> Self {
        Self::Device(error)
    }
}

impl From<RankLost> for Failed {
    fn from(lost: RankLost) -> Self {
        Self::Lost(lost)
    }
}

impl DeviceShard {
    /// Loads this rank's part to its device.
    pub(super) fn load(
        config: &Config,
        context: usize,
        weights: &Weights,
        setup: &Setup,
        (part, on, handle): (Part, &CandleDevices, RankHandle<Handed>),
    ) -> Result<Self, LoadError> {
        let collectives = Collectives::new(on, part, handle)?;
        let device = on.device(part.rank);
        let load = Load { config, weights, part, device, dtype: on.dtype(weights.coarsest()) };
        let (embedding, output) = load.of_words()?;
        let layers = (0..config.layers).map(|index| load.layer(index));
        let layers = layers.collect::<Result<Vec<_>, LoadError>>()?;
        let (keys, dim) = (part.kv_heads(config).len(), config.head_dim);
        let (cos, sin) = load.angles(context)?;
        let kv = match setup.kv {
            KvFormat::F32 => DType::F32,
            KvFormat::Bf16 => DType::BF16,
        };
        let pages = || Tensor::zeros((setup.blocks * PAGE, keys, dim), kv, device);
        let pages = (0..config.layers).map(|_| Ok([pages()?, pages()?]));
        let pages = pages.collect::<candle_core::Result<_>>();
        Ok(Self {
            device: device.clone(),
            tokens: part.tokens(config.vocab_size),
            norm: load.norm("model.norm.weight", config.hidden_size)?,
            hidden: setup.hidden,
            eps: config.rms_norm_eps,
            heads: Heads { queries: config.heads / part.of, keys, dim },
            pages: pages.map_err(|error| load::no_memory(&error))?,
            kv,
            windows: config.windows.clone(),
            logits: Vec::new(),
            embedding,
            output,
            layers,
            cos,
            sin,
            collectives,
            part,
        })
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        self.collectives.begin()?;
        for all in self.pages.iter().flatten() {
            for (from, to) in &step.copies {
                let block = all.narrow(0, *from as usize * PAGE, PAGE)?.force_contiguous()?;
                all.slice_set(&block, 0, *to as usize * PAGE)?;
            }
        }
        let places = Places::new(step, self.heads, &self.windows, &self.device)?;
        let cos = self.cos.index_select(&places.positions, 0)?;
        let sin = self.sin.index_select(&places.positions, 0)?;
        // This copy must come before the ranks wait for each other: a copy to a device may wait for
        // all queued work.
        let wanted: Vec<u32> = step.wanted.iter().map(|row| *row as u32).collect();
        let wanted = Tensor::new(wanted, &self.device)?;
        let mut stream = self.collectives.sum(self.embed(step)?)?;
        for (layer, pages) in self.layers.iter().zip(&self.pages) {
            let normed = rms_norm(&stream, &layer.attention_norm, self.eps)?;
            let attended = self.attended((layer, pages), &normed, &places, (&cos, &sin))?;
            let sum = self.collectives.sum(layer.attention_output.products(&attended)?)?;
            stream = (stream + layer.attention_output.biased(sum)?)?;
            let normed = rms_norm(&stream, &layer.feed_forward_norm, self.eps)?;
            let gated = (silu(&layer.gate.forward(&normed)?)? * layer.up.forward(&normed)?)?;
            let sum = self.collectives.sum(layer.down.products(&gated)?)?;
            stream = (stream + layer.down.biased(sum)?)?;
        }
        if step.wanted.is_empty() {
            return self.collectives.finish();
        }
        let normed = rms_norm(&stream.index_select(&wanted, 0)?, &self.norm, self.eps)?;
        if self.hidden {
            if self.part.rank == 0 {
                self.logits = normed.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
            }
            return self.collectives.finish();
        }
        let logits = self.output.forward(&normed)?.to_dtype(DType::F32)?;
        if let Some(logits) = self.collectives.gather(logits)? {
            self.logits = logits.flatten_all()?.to_vec1()?;
        }
        Ok(())
    }

    /// Returns the number of elements of a hidden state.
    fn width(&self) -> usize {
        self.norm.elem_count()
    }

    /// Returns the embeddings of this rank's tokens, and zeros for all other tokens.
    fn embed(&self, step: &Step) -> candle_core::Result<Tensor> {
        let Tokens { first, each } = self.tokens;
        let own = |token: u32| (token as usize).checked_sub(first).filter(|own| *own < each);
        let rows: Vec<u32> =
            step.tokens.iter().map(|token| own(*token).unwrap_or(0) as u32).collect();
        let is_own: Vec<f32> =
            step.tokens.iter().map(|token| f32::from(own(*token).is_some())).collect();
        let rows = self.embedding.index_select(&Tensor::new(rows, &self.device)?, 0)?;
        let is_own = Tensor::new(is_own, &self.device)?.to_dtype(rows.dtype())?;
        rows.broadcast_mul(&is_own.unsqueeze(1)?)
    }

    /// Writes the keys and values of the rows, and returns the attention output of their queries.
    fn attended(
        &self,
        (layer, [keys, values]): (&Layer, &[Tensor; 2]),
        normed: &Tensor,
        places: &Places,
        (cos, sin): (&Tensor, &Tensor),
    ) -> candle_core::Result<Tensor> {
        let (heads, rows) = (self.heads, normed.dim(0)?);
        let of_heads = |linear: &Linear, count| {
            linear.forward(normed)?.reshape((rows, count, heads.dim))?.contiguous()
        };
        let mut q = of_heads(&layer.queries, heads.queries)?;
        let mut k = of_heads(&layer.keys, heads.keys)?;
        let v = of_heads(&layer.values, heads.keys)?;
        if let Some((of_queries, of_keys)) = &layer.head_norms {
            q = rms_norm(&q, of_queries, self.eps)?;
            k = rms_norm(&k, of_keys, self.eps)?;
        }
        // The operation takes heads before rows.
        let turned = |x: &Tensor| {
            let x = x.transpose(0, 1)?.unsqueeze(0)?.contiguous()?;
            rope(&x, cos, sin)?.squeeze(0)?.transpose(0, 1)?.contiguous()
        };
        places.write(&turned(&k)?, keys)?;
        places.write(&v, values)?;
        let attended = places.attend(&turned(&q)?, (keys, values), layer.window)?;
        attended.reshape((rows, heads.queries * heads.dim))
    }
}

impl Rank for DeviceShard {
    fn run(&mut self, step: &Step) -> Result<(), RankLost> {
        match self.step(step) {
            Ok(()) => Ok(()),
            Err(Failed::Lost(lost)) => Err(lost),
            Err(Failed::Device(error)) => {
                Err(self.collectives.end(&format!("failed on its device: {}", first_line(&error))))
            }
        }
    }

    fn logits(&self, step: &Step) -> Rows<'_> {
        let vocabulary = self.tokens.each * self.part.of;
        let stride = if self.hidden { self.width() } else { vocabulary };
        Rows { numbers: &self.logits[..step.wanted.len() * stride], stride }
    }

    fn arithmetic(&self) -> String {
        let at = match self.device {
            Device::Cpu => "cpu",
            Device::Cuda(_) => "cuda",
            Device::Metal(_) => "metal",
        };
        let (dtype, kv) = (self.embedding.dtype(), self.kv);
        format!("candle {at} {dtype:?} kv {kv:?} on {} ranks", self.part.of)
    }
}

impl fmt::Debug for DeviceShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceShard").field("part", &self.part).finish_non_exhaustive()
    }
}

/// Returns an error's message without its backtrace.
fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
