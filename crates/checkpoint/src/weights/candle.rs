//! Weights as candle's tensors, behind the `VarBuilder` that candle's models are written for.
//!
//! Model code is the same for a folder and for object storage:
//!
//! ```
//! use candle_core::{DType, Device};
//! use nsbridge_checkpoint::{CandleWeights, Checkpoint, Order};
//! use nsbridge_handler::{Model, Result};
//!
//! fn load(model: &Model) -> Result<candle_nn::Linear> {
//!     let weights = CandleWeights::load(&Checkpoint::open(model)?, &Order::everything())?;
//!     let vb = weights.var_builder(DType::F32, &Device::Cpu);
//!     Ok(candle_nn::linear(64, 256, vb.pp("model.layers.0.mlp.up_proj"))?)
//! }
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::Init;
use candle_nn::var_builder::{Backend, Shard, SimpleBackend, VarBuilder, VarBuilderArgs};
use parking_lot::Mutex;

use super::{Weight, Weights};
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::order::Order;

/// Weights of a load as candle tensors. Clones share the load, so each rank's thread may have one.
///
/// On the CPU a tensor uses the memory into which its bytes were loaded, without a copy. Ranks
/// share whole tensors. Row shards are views of them, column shards are copies.
#[derive(Clone)]
pub struct CandleWeights(Arc<Inner>);

struct Inner {
    weights: Weights,
    ranks: usize,
    tensors: Mutex<HashMap<String, Arc<Mutex<Shared>>>>,
}

/// Tensor that is kept until every rank has read it.
#[derive(Default)]
struct Shared {
    reads: usize,
    tensor: Option<Tensor>,
}

impl CandleWeights {
    /// Starts to load the tensors.
    ///
    /// # Errors
    ///
    /// Returns an error if the order names a tensor that the model lacks.
    pub fn load(checkpoint: &Checkpoint, order: &Order) -> nsbridge_handler::Result<Self> {
        // Ranks share the candle tensor, so the bytes below it have one reader.
        let weights = checkpoint.load(&order.clone().for_ranks(1))?;
        let (ranks, tensors) = (order.ranks, Mutex::default());
        Ok(Self(Arc::new(Inner { weights, ranks, tensors })))
    }

    /// Returns the builder that most of candle's models take.
    pub fn var_builder(&self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        let backend: Box<dyn SimpleBackend> = Box::new(self.clone());
        VarBuilderArgs::new_with_args(backend, dtype, device)
    }

    /// Returns the builder for models whose ranks each load a shard. Its hints are candle's
    /// [`Shard`].
    pub fn sharded(&self, dtype: DType, device: &Device) -> VarBuilderArgs<'static, Self> {
        VarBuilderArgs::new_with_args(self.clone(), dtype, device)
    }

    /// Waits for a whole tensor, on the CPU and in its stored type.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tensor or the file if the tensor cannot be loaded, or an
    /// error that names the type if candle does not support it.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let Inner { weights, ranks, tensors } = &*self.0;
        let mut all = tensors.lock();
        let shared = all.entry(name.to_owned()).or_default().clone();
        drop(all);
        // Ranks that read the same tensor wait here until the first of them has loaded it.
        let mut shared = shared.lock();
        let tensor = match shared.tensor.take() {
            Some(tensor) => tensor,
            None => to_tensor(weights.tensor(name).map_err(wrap)?)?,
        };
        shared.reads += 1;
        if shared.reads < *ranks {
            shared.tensor = Some(tensor.clone());
        }
        Ok(tensor)
    }

    /// Returns the directory of the tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        self.0.weights.checkpoint()
    }

    fn expect(&self, name: &str, shape: &Shape) -> Result<Tensor> {
        let tensor = self.tensor(name)?;
        if tensor.shape() == shape {
            return Ok(tensor);
        }
        let (expected, got) = (shape.clone(), tensor.shape().clone());
        Err(Error::UnexpectedShape { msg: format!("the shape of {name}"), expected, got }.bt())
    }

    fn has(&self, name: &str) -> bool {
        self.checkpoint().find(name).is_some()
    }
}

impl fmt::Debug for CandleWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CandleWeights({:?}, {} ranks)", self.0.weights, self.0.ranks)
    }
}

impl SimpleBackend for CandleWeights {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.expect(name, &s)?.to_device(dev)?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.tensor(name)?.to_device(dev)?.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.has(name)
    }
}

impl Backend for CandleWeights {
    type Hints = Shard;

    fn get(&self, s: Shape, name: &str, h: Shard, dtype: DType, dev: &Device) -> Result<Tensor> {
        let Shard { dim, rank, world_size } = h;
        if world_size <= 1 {
            return self.expect(name, &s)?.to_device(dev)?.to_dtype(dtype);
        }
        let tensor = self.tensor(name)?;
        let size = tensor.dim(dim)?;
        if rank >= world_size || !size.is_multiple_of(world_size) {
            let shape = tensor.shape().clone();
            return Err(Error::ShapeMismatchSplit { shape, dim, n_parts: world_size }.bt());
        }
        let share = size / world_size;
        let part = tensor.narrow(dim, rank * share, share)?;
        // A copy of a row view to another device would copy the whole tensor.
        let part = if dev.is_cpu() { part.contiguous()? } else { part.force_contiguous()? };
        part.to_device(dev)?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        SimpleBackend::get_unchecked(self, name, dtype, dev)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.has(name)
    }
}

fn to_tensor(weight: Weight) -> Result<Tensor> {
    let shape = weight.shape().to_vec();
    let cpu = &Device::Cpu;
    match weight.dtype() {
        Dtype::F64 => Tensor::from_vec(weight.into_vec::<f64>().map_err(wrap)?, shape, cpu),
        Dtype::F32 => Tensor::from_vec(weight.into_vec::<f32>().map_err(wrap)?, shape, cpu),
        Dtype::BF16 => Tensor::from_vec(weight.into_vec::<half::bf16>().map_err(wrap)?, shape, cpu),
        Dtype::F16 => Tensor::from_vec(weight.into_vec::<half::f16>().map_err(wrap)?, shape, cpu),
        Dtype::I64 => Tensor::from_vec(weight.into_vec::<i64>().map_err(wrap)?, shape, cpu),
        Dtype::U32 => Tensor::from_vec(weight.into_vec::<u32>().map_err(wrap)?, shape, cpu),
        Dtype::U8 => Tensor::from_vec(weight.into_vec::<u8>().map_err(wrap)?, shape, cpu),
        other => Err(Error::Msg(format!("candle holds no tensors of {other}"))),
    }
}

/// Converts an error by its message, since it does not implement `std::error::Error`.
#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
fn wrap(error: nsbridge_handler::Error) -> Error {
    Error::Msg(error.to_string())
}
