//! GPU kernels for language models.
//!
//! The kernels in `kernels/` are compiled from one source: by CUDA's compiler for GPUs, and by a C++
//! compiler for the emulator, which runs the threads of a block as fibers on a CPU.
//!
//! | module | contents |
//! |---|---|
//! | [`device`] | memory, launches, and recorded launches of a device |
//! | [`matrix`] | weights in tiles, packed from a file's rows, and their products with activations |
//! | [`rows`] | activations, and the RMS norm of the residual stream |
//! | [`ranks`] | rendezvous of the ranks of a model |
//! | [`attention`] | keys and values in pages, and attention over them |
//! | `cuda` | NVIDIA GPUs, with the feature `cuda` |
//! | [`sample`] | sampling of tokens, and the likeliest tokens of a row |
//! | `emulator` | device that runs the kernels on the CPU, with the feature `emulator` |
//!
//! # Equal bits
//!
//! All kernels but the products of [`Layout::Brains`](matrix::Layout::Brains) and
//! [`Layout::Floats8`](matrix::Layout::Floats8) have the bits of the CPU's (`nsbridge-kernels`, and
//! `nsbridge-llama` for sampling): sums take their terms in the same order, and integer products are
//! exact. The number of rows, of ranks, and of blocks of threads does not change a bit.

mod args;
pub mod attention;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
#[cfg(feature = "emulator")]
pub mod emulator;
mod error;
pub mod matrix;
pub mod ranks;
pub mod rows;
pub mod sample;

pub use error::{Error, Result};
