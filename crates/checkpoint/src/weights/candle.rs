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
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::Init;
use candle_nn::var_builder::{Backend, Shard, SimpleBackend, VarBuilder, VarBuilderArgs};

use super::{Weight, Weights};
use crate::{Checkpoint, Dtype, Order};

/// The weights of a load as candle's tensors. Clones share it; each rank's thread may have one.
///
/// On the CPU a tensor is the memory that its bytes arrived in: nothing is copied. Ranks share
/// whole tensors; rows are views of them, columns are copied out.
#[derive(Clone)]
pub struct CandleWeights(Arc<Inner>);

struct Inner {
    weights: Weights,
    ranks: usize,
    tensors: Mutex<HashMap<String, Arc<Mutex<Shared>>>>,
}

/// A tensor, until each rank has read it.
#[derive(Default)]
struct Shared {
    reads: usize,
    tensor: Option<Tensor>,
}

impl CandleWeights {
    /// Begins to bring the tensors.
    ///
    /// # Errors
    ///
    /// The order names a tensor that is not there.
    pub fn load(checkpoint: &Checkpoint, order: &Order) -> nsbridge_handler::Result<Self> {
        // Ranks share candle's tensor, so the bytes below it have one reader.
        let weights = checkpoint.load(&order.clone().for_ranks(1))?;
        let (ranks, tensors) = (order.ranks, Mutex::default());
        Ok(Self(Arc::new(Inner { weights, ranks, tensors })))
    }

    /// The builder that most of candle's models take.
    pub fn var_builder(&self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        let backend: Box<dyn SimpleBackend> = Box::new(self.clone());
        VarBuilderArgs::new_with_args(backend, dtype, device)
    }

    /// The builder of models whose ranks each have a shard: its hints are candle's [`Shard`].
    pub fn sharded(&self, dtype: DType, device: &Device) -> VarBuilderArgs<'static, Self> {
        VarBuilderArgs::new_with_args(self.clone(), dtype, device)
    }

    /// Waits for a whole tensor, on the CPU and of its own type.
    ///
    /// # Errors
    ///
    /// A sentence that names the tensor or the file, or a type that candle does not have.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let Inner { weights, ranks, tensors } = &*self.0;
        let mut all = tensors.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = all.entry(name.to_owned()).or_default().clone();
        drop(all);
        // Ranks that want the same tensor wait here for the first of them.
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// The tensors and what they are.
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
        // A view of rows takes its whole tensor along to another device.
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

/// Our errors are no `std::error::Error`; their sentence is what a person needs.
#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
fn wrap(error: nsbridge_handler::Error) -> Error {
    Error::Msg(error.to_string())
}
