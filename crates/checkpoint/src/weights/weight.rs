//! A tensor or a part of one, in memory that is shared with the other ranks.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use nsbridge_handler::buffer::Plain;
use nsbridge_handler::{Buffer, Result};

use super::no_part;
use crate::dtype::Dtype;
use crate::tensor::TensorInfo;

/// A tensor, or the part of one that a rank has.
///
/// A part shares the memory of its tensor: rows are one run of bytes, columns one short run for
/// each row. Whoever packs weights for its own kernels reads them where they are.
#[derive(Clone, Debug)]
pub struct Weight {
    name: Arc<str>,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Arc<Buffer>,
    /// Where the first run begins, how long each is, how far they are apart, how many there are.
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

    /// What its elements are.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its dimensions, slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its bytes, run by run: all in one, or a run for each row of which columns were taken.
    pub fn runs(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.runs).map(|i| {
            let start = self.first + i * self.stride;
            &self.bytes[start..start + self.run]
        })
    }

    /// Its bytes without gaps; copied only if there are gaps.
    pub fn contiguous(&self) -> Cow<'_, [u8]> {
        if self.runs == 1 {
            return Cow::Borrowed(&self.bytes[self.first..self.first + self.run]);
        }
        let mut bytes = Vec::with_capacity(self.runs * self.run);
        self.runs().for_each(|run| bytes.extend_from_slice(run));
        Cow::Owned(bytes)
    }

    /// Its elements, without a copy if this is a whole tensor that nobody else holds.
    ///
    /// # Errors
    ///
    /// A sentence, if its elements are not of T's size.
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

    /// The part whose indices in dimension `dim` are these.
    ///
    /// # Errors
    ///
    /// A sentence that names the tensor, if it has no such part, or a quantised block would be cut.
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
        // The bytes of a row of the cut dimension, which must be whole blocks on both sides.
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
            // There may be any number of rows of nothing, anywhere.
            return Ok(Self { shape, first: 0, run: 0, stride: 0, runs: 1, ..self });
        }
        Ok(Self { shape, first, run, stride, runs, ..self })
    }

    /// One rank's share, cut along dimension `dim`.
    ///
    /// # Errors
    ///
    /// A sentence that names the tensor, if `of` ranks cannot share it evenly.
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
    numbers.ok_or_else(|| crate::Error::fatal("a copy of a tensor came to nothing"))
}
