//! Eight-bit floats of safetensors: E4M3 and E5M2 of the OCP 8-bit Floating Point Specification
//! (revision 1.0), with scales in a tensor of their own.
//!
//! A weight is the product of a float and its scale, in f32. A product of four bits with a scale of
//! 24 has no shorter format that holds it, so these weights are f32 in memory, but on GPUs that
//! multiply the floats and the scales one after the other.

use std::borrow::Cow;
use std::ops::Range;

use half::f16;
use nsbridge_checkpoint::{Dtype, Weight};

use super::{Cut, Stored};
use crate::error::LoadError;

/// Returns true for the types of this module.
pub(super) fn is_one(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2)
}

/// Rows and columns that share a scale, in a tensor of scales with `across` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    rows: usize,
    columns: usize,
    across: usize,
}

impl Layout {
    /// Finds the layout of a tensor of scales, from its shape and that of the weights. `scaled` is
    /// the size of blocks that share a scale.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tensor if it has another number of scales.
    pub(super) fn new(
        name: &str,
        of_scales: &[usize],
        (shape, scaled): (&[usize], [usize; 2]),
    ) -> Result<Self, LoadError> {
        let &[rows, columns] = shape else {
            let found = format!("beside weights of the shape {shape:?}");
            return Err(LoadError::unsupported(name, found, "one beside a matrix"));
        };
        let blocks = [rows.div_ceil(scaled[0]), columns.div_ceil(scaled[1])];
        match *of_scales {
            [] | [1] | [1, 1] => Ok(Self { rows, columns, across: 1 }),
            [count] | [count, 1] if count == rows => Ok(Self { rows: 1, columns, across: 1 }),
            [down, across] if [down, across] == blocks => {
                Ok(Self { rows: scaled[0], columns: scaled[1], across })
            }
            _ => {
                let supported = format!("[], [{rows}, 1] or {blocks:?}");
                let found = format!("{of_scales:?}");
                Err(LoadError::unsupported(format!("the shape of {name}"), found, supported))
            }
        }
    }
}

/// Scales of a part of a tensor.
#[derive(Debug)]
pub(super) struct Scales {
    scales: Vec<f32>,
    layout: Layout,
    /// First row and column of the part.
    first: [usize; 2],
}

impl Scales {
    pub(super) fn new(scales: Vec<f32>, layout: Layout, cut: &Cut) -> Self {
        let first = match cut {
            Cut::Rows(own) => [own.start, 0],
            Cut::Columns(own) => [0, own.start],
        };
        Self { scales, layout, first }
    }

    /// Returns the scale of each run of a row's columns that share one.
    fn of_row(&self, row: usize, columns: usize) -> impl Iterator<Item = (Range<usize>, f32)> {
        let Layout { rows, columns: together, across } = self.layout;
        let scales = &self.scales[(self.first[0] + row) / rows * across..][..across];
        let first = self.first[1];
        scales.iter().enumerate().filter_map(move |(at, scale)| {
            let run = (at * together).max(first)..((at + 1) * together).min(first + columns);
            (!run.is_empty()).then(|| (run.start - first..run.end - first, *scale))
        })
    }
}

/// Part of a tensor of eight-bit floats, and its scales.
#[derive(Debug)]
pub(crate) struct Floats8 {
    name: String,
    weight: Weight,
    scales: Scales,
}

impl Floats8 {
    pub(super) fn new(name: &str, weight: Weight, scales: Scales) -> Self {
        Self { name: name.to_owned(), weight, scales }
    }

    /// Multiplies the floats with their scales, in f32.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tensor and the row if a product is no finite number.
    pub(crate) fn widened(&self) -> Result<Stored, LoadError> {
        let floats: Vec<f32> = (0..=u8::MAX).map(|bits| float(self.weight.dtype(), bits)).collect();
        let shape = self.weight.shape().to_vec();
        let columns = shape.last().copied().unwrap_or(1);
        let bytes = self.weight.contiguous();
        let mut out = vec![0; 4 * bytes.len()];
        let rows = bytes.chunks_exact(columns.max(1)).zip(out.chunks_exact_mut(4 * columns.max(1)));
        for (row, (bytes, out)) in rows.enumerate() {
            let (mut finite, out) = (true, out.as_chunks_mut().0);
            for (run, scale) in self.scales.of_row(row, columns) {
                for (byte, out) in bytes[run.clone()].iter().zip(&mut out[run]) {
                    let product = floats[usize::from(*byte)] * scale;
                    finite &= product.is_finite();
                    *out = product.to_le_bytes();
                }
            }
            if !finite {
                return Err(no_number(&self.name, row));
            }
        }
        Ok(Stored::widened(&self.name, (shape, out)))
    }

    /// Returns the rows with a scale for each group of so many columns; `None` if the floats are not
    /// of E4M3, or if columns of a group have several scales.
    pub(crate) fn groups(&self, columns: usize, group: usize) -> Option<Groups<'_>> {
        let Layout { columns: together, across, .. } = self.scales.layout;
        let of_one = across == 1
            || together.is_multiple_of(group) && self.scales.first[1].is_multiple_of(group);
        let fits = self.weight.dtype() == Dtype::F8_E4M3 && columns.is_multiple_of(group);
        let bytes = self.weight.contiguous();
        (fits && of_one).then_some(Groups { of: self, bytes, columns, group })
    }
}

/// Rows of eight-bit floats with a scale for each group of columns.
#[derive(Debug)]
pub(crate) struct Groups<'a> {
    of: &'a Floats8,
    bytes: Cow<'a, [u8]>,
    columns: usize,
    group: usize,
}

impl Groups<'_> {
    /// Writes the floats of a row, and then the scales in f32.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tensor and the row if a float or a scale is no finite number.
    pub(crate) fn write_row(&self, row: usize, out: &mut [u8]) -> Result<(), LoadError> {
        let (floats, scales) = out.split_at_mut(self.columns);
        floats.copy_from_slice(&self.bytes[row * self.columns..][..self.columns]);
        let mut finite = floats.iter().all(|float| float & 0x7f != 0x7f);
        let (scales, _) = scales.as_chunks_mut();
        for (run, scale) in self.of.scales.of_row(row, self.columns) {
            finite &= scale.is_finite();
            scales[run.start / self.group..run.end.div_ceil(self.group)].fill(scale.to_le_bytes());
        }
        if finite { Ok(()) } else { Err(no_number(&self.of.name, row)) }
    }
}

fn no_number(name: &str, row: usize) -> LoadError {
    let (field, found) = (format!("row {row} of {name}"), "a weight that is no number");
    LoadError::unsupported(field, found, "finite ones")
}

/// Returns the number of an eight-bit float.
fn float(dtype: Dtype, bits: u8) -> f32 {
    if dtype == Dtype::F8_E5M2 {
        // The upper half of an f16.
        return f16::from_bits(u16::from(bits) << 8).to_f32();
    }
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use nsbridge_checkpoint::Dtype;

    use super::{Cut, Layout, Scales, float};

    /// Numbers of table 1 of the specification.
    #[test]
    fn floats_are_those_of_the_specification() {
        let e4m3 = |bits| float(Dtype::F8_E4M3, bits);
        for (bits, right) in [
            (0b0111_1110, 448.0),
            (0b1111_1110, -448.0),
            (0b0000_1000, 2f32.powi(-6)),
            (0b0000_0111, 0.875 * 2f32.powi(-6)),
            (0b0000_0001, 2f32.powi(-9)),
            (0b0011_1000, 1.0),
            (0b0011_1100, 1.5),
            (0, 0.0),
        ] {
            assert_eq!(e4m3(bits).to_bits(), right.to_bits(), "{bits:#b}");
        }
        assert_eq!(e4m3(0x80).to_bits(), (-0.0f32).to_bits());
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        let e5m2 = |bits| float(Dtype::F8_E5M2, bits);
        assert_eq!((e5m2(0b0111_1011), e5m2(0b0000_0001)), (57_344.0, 2f32.powi(-16)));
        assert!(e5m2(0b0111_1100).is_infinite() && e5m2(0b0111_1101).is_nan());
    }

    #[test]
    fn each_weight_of_a_part_has_the_scale_of_its_place() {
        let (shape, scaled) = ([5usize, 7], [2usize, 3]);
        let (whole, of_rows) = (vec![9.0], vec![1.0, 2.0, 3.0, 4.0, 5.0]);
        let of_blocks: Vec<f32> = (0..9).map(|at| at as f32).collect();
        for (of_scales, scales) in [
            (&[][..], &whole),
            (&[1], &whole),
            (&[5], &of_rows),
            (&[5, 1], &of_rows),
            (&[3, 3], &of_blocks),
        ] {
            let layout = Layout::new("s", of_scales, (&shape, scaled)).unwrap();
            let right = |row: usize, column: usize| match scales.len() {
                1 => scales[0],
                5 => scales[row],
                _ => scales[row / 2 * 3 + column / 3],
            };
            let parts = [Cut::Rows(0..5), Cut::Rows(1..4), Cut::Columns(2..7), Cut::Columns(4..5)];
            for cut in parts {
                let (rows, columns) = match &cut {
                    Cut::Rows(own) => (own.clone(), 0..7),
                    Cut::Columns(own) => (0..5, own.clone()),
                };
                let part = Scales::new(scales.clone(), layout, &cut);
                for row in rows.clone() {
                    let runs = part.of_row(row - rows.start, columns.len());
                    let found: Vec<f32> =
                        runs.flat_map(|(run, scale)| run.map(move |_| scale)).collect();
                    let right: Vec<f32> =
                        columns.clone().map(|column| right(row, column)).collect();
                    assert_eq!(found, right, "{of_scales:?} {cut:?} row {row}");
                }
            }
        }
        for of_scales in [&[2][..], &[3, 2], &[7, 1], &[1, 1, 1]] {
            let why = Layout::new("s", of_scales, (&shape, scaled)).unwrap_err().to_string();
            assert!(why.contains("the shape of s") && why.contains("[3, 3]"), "{why}");
        }
    }
}
