//! Factors of blocks of 32 columns, for sixteen rows.

use half::f16;

use crate::simd::{LANES, Simd, power};

/// Factors of the sixteen rows of a block. All methods that take a `simd` must be always inlined.
pub(crate) trait Head: Copy + Send + Sync + 'static {
    const ZERO: Self;
    /// Bytes of one row's factors in a file.
    const BYTES: usize;

    fn d<S: Simd>(&self, simd: S) -> S::Vector;
    fn min<S: Simd>(&self, simd: S) -> Option<S::Vector>;
    /// Returns `d` and `min` of one row.
    fn lane(&self, lane: usize) -> (f32, Option<f32>);
    /// Sets one row. Returns false if a weight may not be finite.
    fn set(&mut self, lane: usize, bytes: &[u8]) -> bool;
}

/// `d` in f16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Scale([u16; LANES]);

/// `d` and `min` in f16.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ScaleAndMin {
    d: Scale,
    min: Scale,
}

/// `d` as a power of two: E8M0 of the OCP Microscaling Formats, for values that are doubled.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Power([u8; LANES]);

/// Largest power for which the largest value, 12, is finite. 255 stands for NaN.
const LARGEST_POWER: u8 = 252;

impl Head for Scale {
    const ZERO: Self = Self([0; LANES]);
    const BYTES: usize = 2;

    #[inline(always)]
    fn d<S: Simd>(&self, simd: S) -> S::Vector {
        simd.halves(&self.0)
    }

    #[inline(always)]
    fn min<S: Simd>(&self, _: S) -> Option<S::Vector> {
        None
    }

    fn lane(&self, lane: usize) -> (f32, Option<f32>) {
        (f16::from_bits(self.0[lane]).to_f32(), None)
    }

    fn set(&mut self, lane: usize, bytes: &[u8]) -> bool {
        let d = f16::from_le_bytes([bytes[0], bytes[1]]);
        self.0[lane] = d.to_bits();
        d.is_finite()
    }
}

impl Head for ScaleAndMin {
    const ZERO: Self = Self { d: Scale::ZERO, min: Scale::ZERO };
    const BYTES: usize = 4;

    #[inline(always)]
    fn d<S: Simd>(&self, simd: S) -> S::Vector {
        self.d.d(simd)
    }

    #[inline(always)]
    fn min<S: Simd>(&self, simd: S) -> Option<S::Vector> {
        Some(self.min.d(simd))
    }

    fn lane(&self, lane: usize) -> (f32, Option<f32>) {
        (self.d.lane(lane).0, Some(self.min.lane(lane).0))
    }

    fn set(&mut self, lane: usize, bytes: &[u8]) -> bool {
        let d = self.d.set(lane, bytes);
        self.min.set(lane, &bytes[2..]) && d
    }
}

impl Head for Power {
    const ZERO: Self = Self([0; LANES]);
    const BYTES: usize = 1;

    #[inline(always)]
    fn d<S: Simd>(&self, simd: S) -> S::Vector {
        simd.powers(&self.0)
    }

    #[inline(always)]
    fn min<S: Simd>(&self, _: S) -> Option<S::Vector> {
        None
    }

    fn lane(&self, lane: usize) -> (f32, Option<f32>) {
        (power(self.0[lane]), None)
    }

    fn set(&mut self, lane: usize, bytes: &[u8]) -> bool {
        self.0[lane] = bytes[0].min(LARGEST_POWER);
        bytes[0] <= LARGEST_POWER
    }
}
