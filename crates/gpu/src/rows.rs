//! Rows of activations, and operations on them.

#![expect(unsafe_code, reason = "kernels are launched with addresses")]

use std::sync::Arc;

use crate::args::{Address, Args, FormArgs, Forms, NormArgs, RANKS};
use crate::device::{Buffer, Device, address};
use crate::error::Result;

const THREADS: u32 = 256;

/// Integers on the device, from a place in a buffer on.
#[derive(Clone, Copy, Debug)]
pub struct Count<'a> {
    buffer: &'a Buffer,
    /// Index of the first one.
    at: usize,
}

impl<'a> Count<'a> {
    /// Refers to the u32 numbers of a buffer from this index on.
    pub fn new(buffer: &'a Buffer, at: usize) -> Self {
        Self { buffer, at }
    }

    pub(crate) fn address(self) -> Address {
        self.of(1)
    }

    /// Returns the address of as many numbers.
    pub(crate) fn of(self, numbers: usize) -> Address {
        self.buffer.place(4 * self.at, 4 * numbers)
    }
}

/// Form of activations that a product needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// f32.
    Floats,
    /// bf16.
    Brains,
    /// Blocks of 32 eight-bit integers.
    Of32,
    /// Blocks of 256 eight-bit integers.
    Of256,
}

/// Buffers of rows of activations, in the forms that they are needed in.
#[derive(Debug)]
pub struct Activations {
    capacity: usize,
    columns: usize,
    floats: Option<Buffer>,
    brains: Option<Buffer>,
    of_32: Option<[Buffer; 2]>,
    of_256: Option<[Buffer; 3]>,
}

impl Activations {
    /// Allocates room for `rows` rows.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short.
    pub fn new(
        device: &Arc<dyn Device>,
        rows: usize,
        columns: usize,
        forms: &[Form],
    ) -> Result<Self> {
        let numbers = rows * columns;
        let needs = |form, bytes: &[usize]| {
            let buffers = bytes.iter().map(|bytes| Buffer::zeroed(device, *bytes));
            forms.contains(&form).then(|| buffers.collect::<Result<Vec<_>>>()).transpose()
        };
        let of_256 = [numbers, numbers / 256 * 4, numbers / 32 * 2];
        Ok(Self {
            capacity: rows,
            columns,
            floats: needs(Form::Floats, &[numbers * 4])?.and_then(|mut all| all.pop()),
            brains: needs(Form::Brains, &[numbers * 2])?.and_then(|mut all| all.pop()),
            of_32: needs(Form::Of32, &[numbers, numbers / 32 * 4])?
                .and_then(|all| all.try_into().ok()),
            of_256: needs(Form::Of256, &of_256)?.and_then(|all| all.try_into().ok()),
        })
    }

    /// Returns the number of rows that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the rows in f32, if they are needed so.
    pub fn floats(&self) -> Option<&Buffer> {
        self.floats.as_ref()
    }

    /// Returns the buffers of all forms.
    pub fn buffers(&self) -> Vec<&Buffer> {
        let integers = self.of_32.iter().flatten().chain(self.of_256.iter().flatten());
        self.floats.iter().chain(&self.brains).chain(integers).collect()
    }

    pub(crate) fn forms(&self) -> Forms {
        let parts = |buffers: Option<&[Buffer]>, at: usize| {
            address(buffers.and_then(|buffers| buffers.get(at)))
        };
        let (of_32, of_256) = (self.of_32.as_ref(), self.of_256.as_ref());
        let [of_32, of_256] = [of_32.map(|all| all.as_slice()), of_256.map(|all| all.as_slice())];
        Forms {
            floats: address(self.floats.as_ref()),
            brains: address(self.brains.as_ref()),
            values32: parts(of_32, 0),
            scales32: parts(of_32, 1),
            values256: parts(of_256, 0),
            scales256: parts(of_256, 1),
            sums256: parts(of_256, 2),
            columns: self.columns as u32,
            stride: self.columns as u32,
        }
    }

    /// Returns the addresses of values, scales and sums of a form, and the distance of rows.
    ///
    /// # Panics
    ///
    /// Panics if there is no such form, or fewer rows or columns.
    pub(crate) fn read(
        &self,
        form: Form,
        columns: usize,
        rows: usize,
    ) -> (Address, Address, Address, usize) {
        assert!(columns == self.columns && rows <= self.capacity, "activations of another shape");
        let forms = self.forms();
        let (x, scales, sums) = match form {
            Form::Floats => (forms.floats, 0, 0),
            Form::Brains => (forms.brains, 0, 0),
            Form::Of32 => (forms.values32, forms.scales32, 0),
            Form::Of256 => (forms.values256, forms.scales256, forms.sums256),
        };
        assert!(x != 0, "activations are not there in the form {form:?}");
        (x, scales, sums, self.columns)
    }

    /// Writes the rows of `x`, `stride` numbers apart, in the forms.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Panics
    ///
    /// Panics if `x` has less than `most` rows.
    pub fn form(
        &self,
        (x, stride): (&Buffer, usize),
        (count, most): (Count<'_>, usize),
    ) -> Result<()> {
        assert!(most <= self.capacity && self.columns <= stride, "rows that fit");
        let args = FormArgs {
            x: x.place(0, 4 * most * stride),
            rows: count.address(),
            out: self.forms(),
            stride: stride as u32,
            reserved: 0,
        };
        // SAFETY: source and forms have `most` rows.
        unsafe { x.device().launch(&args.launch("form", [most as u32, 1], THREADS)) }
    }
}

/// Sums that a norm adds to the residual stream first.
#[derive(Clone, Copy, Debug)]
pub struct Sums<'a> {
    /// Partial sums of each rank, in the order of the ranks.
    pub partials: &'a [&'a Buffer],
    /// Added to the sums.
    pub bias: Option<&'a Buffer>,
    /// True if the sums become the stream.
    pub replaces: bool,
}

/// RMS norm of the residual stream.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Residual stream, rows `stride` numbers apart.
    pub stream: &'a Buffer,
    /// Distance of the rows of the stream and of the sums.
    pub stride: usize,
    /// Factor of each number.
    pub weight: &'a Buffer,
    /// Number that is added to the mean of the squares.
    pub eps: f32,
    /// Sums to add first.
    pub sums: Option<Sums<'a>>,
    /// Rows to normalize, or all.
    pub picked: Option<Count<'a>>,
}

impl Norm<'_> {
    /// Adds the sums, and writes the norms. The stream has `rows` rows, and of `count` of them, at most
    /// `most`, the norm is computed.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Panics
    ///
    /// Panics if a buffer is too small.
    pub fn write(
        &self,
        rows: usize,
        (count, most): (Count<'_>, usize),
        out: &Activations,
    ) -> Result<()> {
        let bytes = 4 * rows * self.stride;
        assert!(most <= out.capacity() && out.columns() <= self.stride, "rows that fit");
        let mut args = NormArgs {
            stream: self.stream.place(0, bytes),
            rows: count.address(),
            picked: self.picked.map_or(0, |picked| picked.of(most)),
            weight: self.weight.place(0, 4 * out.columns()),
            out: out.forms(),
            stride: self.stride as u32,
            eps: self.eps,
            ..NormArgs::default()
        };
        if let Some(Sums { partials, bias, replaces }) = self.sums {
            assert!(partials.len() <= RANKS, "as many ranks as a tree has");
            args.ranks = partials.len() as u32;
            args.replaces = replaces.into();
            args.bias = bias.map_or(0, |bias| bias.place(0, 4 * out.columns()));
            for (to, partial) in args.partials.iter_mut().zip(partials) {
                *to = partial.place(0, bytes);
            }
        }
        // SAFETY: all buffers have the rows; the picked ones are those of the stream.
        unsafe { self.stream.device().launch(&args.launch("rms_norm", [most as u32, 1], THREADS)) }
    }
}
