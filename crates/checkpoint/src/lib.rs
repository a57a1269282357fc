//! Tensors of a model, streamed from safetensors or GGUF files.
//!
//! | type | purpose |
//! |---|---|
//! | [`Checkpoint`] | directory of a model's tensors: name, type, shape and location of each |
//! | [`Order`] | tensors to load, in order, and the number of ranks that read each |
//! | [`Weights`] | tensors that are being loaded; hands them out whole, sliced or sharded |
//! | [`Weight`] | one tensor or part of it, in memory that ranks share |
//!
//! A folder and object storage look alike. From object storage, tensors arrive while earlier ones
//! are in use. Each byte is fetched once, however many ranks read it.
//!
//! ```
//! use nsbridge_checkpoint::{Checkpoint, Dtype, Order};
//! use nsbridge_handler::Model;
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/models/tale-1m");
//! let checkpoint = Checkpoint::open(&Model::in_dir(folder))?;
//! let norm = checkpoint.find("model.norm.weight").unwrap();
//! assert_eq!(norm.dtype, Dtype::BF16);
//!
//! let weights = checkpoint.load(&Order::everything())?;
//! let norm = weights.tensor("model.norm.weight")?;
//! assert_eq!(norm.contiguous().len(), 2 * norm.shape()[0]);
//! # Ok::<(), nsbridge_handler::Error>(())
//! ```
//!
//! # Tensor parallelism
//!
//! Each rank takes its part of a tensor. A part along rows is one run of bytes in the memory of the
//! whole tensor, so nothing is copied:
//!
//! ```
//! use nsbridge_checkpoint::{Checkpoint, Order};
//! use nsbridge_handler::Model;
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/models/tale-1m");
//! let checkpoint = Checkpoint::open(&Model::in_dir(folder))?;
//! let name = "model.layers.0.mlp.gate_proj.weight";
//! let rows = checkpoint.find(name).unwrap().shape[0];
//!
//! let weights = checkpoint.load(&Order::of([name]).for_ranks(2))?;
//! for rank in 0..2 {
//!     let shard = weights.shard(name, 0, rank)?;
//!     assert_eq!((shard.shape()[0], shard.runs().len()), (rows / 2, 1));
//! }
//! # Ok::<(), nsbridge_handler::Error>(())
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
