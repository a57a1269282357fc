//! The tensors of a model, from safetensors or GGUF files.
//!
//! [`Checkpoint::open`] reads the directory of a model's tensors; [`Checkpoint::load`] begins to
//! bring their bytes, which [`Weights`] hands out whole or as the shard of a rank. It is the same for
//! a folder and for object storage, where tensors arrive while earlier ones are being used.
//!
//! ```
//! use nsbridge_checkpoint::{Checkpoint, Order};
//! use nsbridge_handler::{Model, Result};
//!
//! fn total_bytes(model: &Model) -> Result<u64> {
//!     let checkpoint = Checkpoint::open(model)?;
//!     let weights = checkpoint.load(&Order::everything())?;
//!     let mut sum = 0;
//!     for tensor in checkpoint.tensors() {
//!         sum += weights.tensor(&tensor.name)?.contiguous().len() as u64;
//!     }
//!     Ok(sum)
//! }
//! ```

mod checkpoint;
mod dtype;
#[cfg(test)]
mod fixtures;
mod gguf;
mod header;
mod order;
mod safetensors;
mod split;
mod tensor;
mod weights;

pub use checkpoint::Checkpoint;
pub use dtype::Dtype;
pub use gguf::{GgufValue, Metadata};
pub use order::Order;
pub use tensor::TensorInfo;
#[cfg(feature = "candle")]
pub use weights::candle::CandleWeights;
pub use weights::{Weight, Weights};
