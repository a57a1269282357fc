//! Tensor or part of a tensor, in memory shared with the other ranks.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use nsbridge_handler::buffer::Plain;
use nsbridge_handler::{Buffer, Result};

use super::no_part;
use crate::dtype::Dtype;
use crate::tensor::TensorInfo;

/// Tensor, or the part of a tensor that one rank uses.
///
/// A part shares the memory of its tensor. A part along rows is one run of bytes; a part along
/// columns is one short run per row. Code that packs weights for its own kernels can read the runs
/// in place.
#[derive(Clone, Debug)]
pub struct Weight {
    name: Arc<str>,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Arc<Buffer>,
    /// Offset of the first run, length of each run, distance between run starts (all in bytes), and
    /// number of runs.
    first: usize,
    run: usize,
    stride: usize,
    runs: usize,
}

impl Weight {
    pub(super) fn whole(info: &TensorInfo, bytes: Arc<Buffer>) -> Self {
        let run = bytes.len();
        Self {
            name: info.name.as_str().into(),
            dtype: info.dtype,
            shape: info.shape.clone(),
            bytes,
            first: 0,
            run,
            stride: run,
            runs: 1,
        }
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the dimensions, slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the bytes run by run: a single run, or one run per row if columns were taken.
    pub fn runs(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.runs).map(|i| {
            let start = self.first + i * self.stride;
            &self.bytes[start..start + self.run]
        })
    }

    /// Returns the bytes without gaps. Copies them only if there are gaps.
    pub fn contiguous(&self) -> Cow<'_, [u8]> {
        if self.runs == 1 {
            return Cow::Borrowed(&self.bytes[self.first..self.first + self.run]);
        }
        let mut bytes = Vec::with_capacity(self.runs * self.run);
        self.runs().for_each(|run| bytes.extend_from_slice(run));
        Cow::Owned(bytes)
    }

    /// Converts to a vector of elements. Avoids the copy if this is a whole tensor that has no
    /// other owner.
    ///
    /// # Errors
    ///
    /// Returns an error if the element size is not that of `T`.
    pub fn into_vec<T: Plain>(self) -> Result<Vec<T>> {
        if self.dtype.block() != (1, size_of::<T>()) {
            let (dtype, size) = (self.dtype, size_of::<T>());
            return Err(no_part(&self.name, format!("holds {dtype}, not numbers of {size} bytes")));
        }
        if self.run == self.bytes.len() {
            match Arc::try_unwrap(self.bytes).map(Buffer::into_vec) {
                Ok(Ok(numbers)) => return Ok(numbers),
                Ok(Err(buffer)) => return copy(std::iter::once(&*buffer), buffer.len()),
                Err(shared) => return copy(std::iter::once(&**shared), shared.len()),
            }
        }
        copy(self.runs(), self.runs * self.run)
    }

    /// Returns the part with these indices in dimension `dim`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tensor if it has no such part, or if the range would cut a
    /// quantized block.
    pub fn slice(self, dim: usize, range: Range<usize>) -> Result<Self> {
        let shape = &self.shape;
        if self.runs > 1 || dim > 1 {
            return Err(no_part(&self.name, "is cut along its first or second dimension, once"));
        }
        if range.start > range.end || shape.get(dim).is_none_or(|&n| range.end > n) {
            let why = format!("has the shape {shape:?} and no {range:?} in dimension {dim}");
            return Err(no_part(&self.name, why));
        }
        let inner: usize = shape[dim + 1..].iter().product();
        // Size in bytes of n rows of the cut dimension. Both sides of the cut must be whole blocks.
        let bytes = |n: usize| {
            let bytes = self.dtype.bytes_of((n * inner) as u64);
            let cut = || no_part(&self.name, format!("has blocks that {range:?} would cut"));
            bytes.map(|bytes| bytes as usize).ok_or_else(cut)
        };
        let (skipped, run) = (bytes(range.start)?, bytes(range.len())?);
        let (runs, stride) = if dim == 0 { (1, run) } else { (shape[0], bytes(shape[dim])?) };
        let first = self.first + skipped;
        let mut shape = shape.clone();
        shape[dim] = range.len();
        if shape.contains(&0) {
            // The number and the offset of empty rows are unbounded, so an empty part becomes one
            // empty run.
            return Ok(Self { shape, first: 0, run: 0, stride: 0, runs: 1, ..self });
        }
        Ok(Self { shape, first, run, stride, runs, ..self })
    }

    /// Returns one rank's shard, cut along dimension `dim`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tensor if it cannot be divided evenly among `of` ranks.
    pub fn shard(self, dim: usize, rank: usize, of: usize) -> Result<Self> {
        let size = self.shape.get(dim).copied().unwrap_or(0);
        if rank >= of || !size.is_multiple_of(of) || size == 0 {
            let why = format!(
                "has {size} indices in dimension {dim}, which {of} ranks cannot share (rank {rank})"
            );
            return Err(no_part(&self.name, why));
        }
        let share = size / of;
        self.slice(dim, rank * share..(rank + 1) * share)
    }
}

fn copy<'a, T: Plain>(runs: impl Iterator<Item = &'a [u8]>, len: usize) -> Result<Vec<T>> {
    let (filling, mut segments) = Buffer::filled_by(len, align_of::<T>(), &[])?;
    let mut rest: &mut [u8] = &mut segments[0];
    for run in runs {
        let (now, later) = rest.split_at_mut(run.len());
        now.copy_from_slice(run);
        rest = later;
    }
    drop(segments);
    let numbers = filling.finish().ok().and_then(|buffer| buffer.into_vec().ok());
    numbers.ok_or_else(|| nsbridge_handler::Error::fatal("a copy of a tensor came to nothing"))
}
