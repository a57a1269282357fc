//! CPU kernels for language models, with bit-identical results on every machine.
//!
//! This crate holds the arithmetic of a model and nothing else: it knows no model, tokenizer or
//! file format beyond the byte layout of a tensor's rows. All its `unsafe` code stands behind safe
//! functions.
//!
//! | module | contents |
//! |---|---|
//! | [`matrix`] | weights in tiles, packed from a file's rows, and their products with activations |
//! | [`attention`] | attention of a step's tokens over a paged KV cache |
//! | [`rowwise`] | RMSNorm and rotary embedding of a row |
//! | [`simd`] | instruction-set tiers, and the vectors of a tier |
//! | [`ThreadPool`] | threads that steal the numbered parts of a job from each other |
//! | [`collectives`] | all-reduce and gather between the ranks of a model |
//! | [`memory`] | aligned buffers in huge pages, and the memory that is left |
//! | [`prefetch`] | distance of software prefetches, tuned at run time |
//!
//! # Equal bits
//!
//! Each output number is one scalar recurrence with a fixed order of operations. SIMD lanes hold
//! rows of a matrix, positions of a KV cache or dimensions of a head, never the terms of one sum.
//! The columns of a matrix product are cut into segments that a tree adds up. So the tier, the
//! number of threads, the number of ranks and the other rows of a batch do not change a bit:
//!
//! ```
//! use nsbridge_kernels::matrix::{
//!     Activations, Matrix, Output, QuantizationBuffers, Source, segments,
//! };
//! use nsbridge_kernels::{Format, ThreadPool, Tier};
//!
//! let weights: Vec<f32> = (0..40 * 64).map(|i| (i % 97) as f32 * 0.013 - 0.5).collect();
//! let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
//! let source = Source { name: "w", format: Format::F32, bytes: &bytes };
//! let x: Vec<f32> = (0..64).map(|i| (i % 7) as f32 - 3.0).collect();
//!
//! let product = |threads, tier| {
//!     let mut pool = ThreadPool::new(threads);
//!     let mut matrix = Matrix::zeroed(Format::Q8_0, 40, 64, segments(Format::Q8_0, 64))?;
//!     matrix.pack((&mut pool, tier), &[source], |row| (row < 40).then_some((0, row)))?;
//!     let mut out = vec![0.0; matrix.padded()];
//!     let output = Output::new(&mut out, matrix.padded());
//!     let x = Activations { numbers: &x, stride: 64 };
//!     matrix.multiply((&mut pool, tier), x, 1, &mut QuantizationBuffers::default(), output);
//!     Ok::<_, nsbridge_kernels::Error>(out)
//! };
//! let expected = product(1, Tier::Portable)?;
//! for tier in Tier::available() {
//!     assert_eq!(product(3, tier)?, expected);
//! }
//! # Ok::<(), nsbridge_kernels::Error>(())
//! ```

pub mod attention;
mod blocks32;
pub mod collectives;
mod disjoint_slice;
mod element;
mod error;
mod format;
mod kquants;
mod math;
pub mod matrix;
pub mod memory;
pub mod prefetch;
mod q8;
pub mod rowwise;
pub mod simd;
mod thread_pool;

pub use element::Element;
pub use error::Error;
pub use format::Format;
pub use kquants::BLOCK as KQUANT_BLOCK;
pub use simd::Tier;
pub use thread_pool::ThreadPool;
