//! Arithmetic of a model's matrices.

use std::time::{Duration, Instant};

use nsbridge_kernels::matrix::{Activations, Matrix, Output, QuantizationBuffers, segments};
use nsbridge_kernels::{Format, ThreadPool, Tier};
use serde::{Deserialize, Serialize};

use crate::error::LoadError;

/// Rows and columns of the matrix that is measured: it fits in a core's caches.
const SIDE: usize = 512;

/// Rows of activations that are measured, as of a prompt.
const MEASURED_ROWS: usize = 60;

/// Number of measurements, of which the fastest counts.
const ROUNDS: usize = 5;

/// Arithmetic of a model's matrices in bf16. Matrices in other formats are computed as with
/// [`Portable`](Self::Portable), except for eight-bit floats on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Arithmetic {
    /// Activations in f32. The bits are the same on every CPU and GPU, for any batch, threads and
    /// ranks.
    #[serde(alias = "exact")]
    Portable,
    /// Activations are rounded to bf16, for the instructions of the processor: AMX-BF16, else
    /// AVX-512-BF16, or the tensor cores of a GPU. The bits are those of a kind of processor, and do
    /// not depend on the batch, the threads and, on a CPU, the ranks.
    #[serde(alias = "bf16")]
    Native,
}

/// Speed of products in bf16 on this machine's CPU, measured on one core.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct NativeSpeed {
    /// Instruction-set tier that has the instruction.
    pub tier: Tier,
    /// Speed of prompts with [`Arithmetic::Native`], as a multiple of that with
    /// [`Arithmetic::Portable`].
    pub ratio: f64,
}

impl NativeSpeed {
    /// Measures products of a matrix with some rows of activations, which takes some milliseconds.
    /// Returns `None` if the CPU has no instruction for products in bf16.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short.
    pub fn measure() -> Result<Option<Self>, LoadError> {
        let tier = Tier::best();
        let Some(order) = tier.bf16_order() else { return Ok(None) };
        let portable = Matrix::zeroed(Format::Bf16, SIDE, SIDE, segments(Format::Bf16, SIDE))?;
        let native = Matrix::zeroed(Format::Bf16, SIDE, SIDE, segments(Format::Bf16, SIDE))?;
        let native = native.in_bf16(order);
        let mut pool = ThreadPool::new(1);
        let mut out = vec![0.0; MEASURED_ROWS * SIDE];
        let x = vec![1.0; MEASURED_ROWS * SIDE];
        let mut buffers = QuantizationBuffers::default();
        let mut least = [Duration::MAX; 2];
        for _ in 0..ROUNDS {
            for (matrix, least) in [&portable, &native].into_iter().zip(&mut least) {
                let begun = Instant::now();
                let (x, compute) = (Activations { numbers: &x, stride: SIDE }, (&mut pool, tier));
                let output = Output::new(&mut out, SIDE);
                matrix.multiply(compute, x, MEASURED_ROWS, &mut buffers, output);
                *least = begun.elapsed().min(*least);
            }
        }
        let [portable, native] = least.map(|least| least.as_secs_f64());
        Ok(Some(Self { tier, ratio: portable / native }))
    }
}
