//! Matrices on a device, packed for the products.

#![expect(unsafe_code, reason = "kernels are launched with addresses")]

use std::sync::Arc;

use crate::args::{Args, EmbedArgs, PackArgs, ProductArgs, STAGES_BYTES, Weights};
use crate::device::{Buffer, Device, address};
use crate::error::Result;
use crate::rows::{Activations, Count, Form};

/// Rows of a tile.
pub const TILE: usize = 16;

/// Threads of a block of products: eight warps, one for each segment of a tile.
const THREADS: u32 = 256;
const WARPS: usize = 8;

/// Bytes of a tensor that are packed at once.
const MAX_STAGED_BYTES: usize = 32 << 20;

/// Format of a matrix in memory, which decides the arithmetic of its products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// GGUF's Q8_0, with activations in blocks of 32: the bits of the CPU.
    Q8_0,
    /// GGUF's Q4_K, with activations in blocks of 256: the bits of the CPU.
    Q4K,
    /// GGUF's Q6_K, with activations in blocks of 256: the bits of the CPU.
    Q6K,
    /// bf16 with bf16 activations on tensor cores: the bits of the device.
    Brains,
    /// Eight-bit floats of E4M3, none of them a NaN, with bf16 activations on tensor cores: the bits
    /// of the device. After the floats, a row has a scale in f32 for each 128 columns.
    Floats8,
    /// f32 with f32 activations: the bits of the CPU.
    F32,
    /// bf16 with f32 activations: the bits of the CPU.
    Bf16,
    /// f16 with f32 activations: the bits of the CPU.
    F16,
}

impl Layout {
    /// Returns true if the products have the bits of the CPU.
    pub fn is_exact(self) -> bool {
        !matches!(self, Self::Brains | Self::Floats8)
    }

    /// Returns the form of the activations.
    pub fn form(self) -> Form {
        match self {
            Self::Q8_0 => Form::Of32,
            Self::Q4K | Self::Q6K => Form::Of256,
            Self::Brains | Self::Floats8 => Form::Brains,
            Self::F32 | Self::Bf16 | Self::F16 => Form::Floats,
        }
    }

    /// Returns the number of columns that a segment must be a multiple of.
    pub fn unit(self) -> usize {
        match self {
            Self::Q8_0 => 32,
            Self::Q4K | Self::Q6K => 256,
            Self::Brains => 16,
            Self::Floats8 => 128,
            Self::F32 | Self::Bf16 | Self::F16 => 1,
        }
    }

    /// Returns the bytes of a row of the file.
    fn row_bytes(self, columns: usize) -> usize {
        match self {
            Self::Q8_0 => columns / 32 * 34,
            Self::Q4K => columns / 256 * 144,
            Self::Q6K => columns / 256 * 210,
            Self::Floats8 => columns + columns / 128 * 4,
            Self::F32 => columns * 4,
            Self::Brains | Self::Bf16 | Self::F16 => columns * 2,
        }
    }

    /// Returns the bytes of a tile: values and heads.
    fn tile_bytes(self, columns: usize) -> (usize, usize) {
        match self {
            Self::Q8_0 => (TILE * columns, columns / 32 * TILE * 2),
            Self::Q4K => (TILE * columns / 2, columns / 256 * TILE * 20),
            Self::Q6K => (TILE * columns * 3 / 4, columns / 256 * TILE * 20),
            Self::Brains => (TILE * columns * 2, 0),
            Self::Floats8 => (TILE * columns, columns / 128 * TILE * 4),
            Self::F32 | Self::Bf16 | Self::F16 => {
                (self.row_bytes(columns).next_multiple_of(16) * TILE, 0)
            }
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Q8_0 => 0,
            Self::Q4K => 1,
            Self::Q6K => 2,
            Self::Brains => 3,
            Self::F32 => 4,
            Self::Bf16 => 5,
            Self::F16 => 6,
            Self::Floats8 => 7,
        }
    }

    /// Returns the shared memory of products with so many rows at once, in bytes: that of the stages
    /// in `kernels/formats.h`. The emulator compares it with theirs.
    fn stages_bytes(self, rows: usize) -> usize {
        // Blocks of columns, bytes of a block's row of activations, and of a row's scales and sums.
        let (blocks, x_bytes, beside) = match self {
            Self::Q8_0 => (4, 32, 4 * 4),
            Self::Q4K => (1, 256, 4 + 16),
            Self::Q6K => (1, 256, 4),
            Self::Floats8 => (1, 256, 0),
            _ => (4, 32, 0),
        };
        let (values, heads) = self.tile_bytes(blocks * self.unit());
        let tiles = TILES_OF_MANY * (values + heads.max(16));
        // C++ has no struct without bytes.
        let beside = (rows * beside).max(1);
        let stage = (tiles + rows * (blocks * x_bytes + 16) + beside).next_multiple_of(16);
        stage * (STAGES_BYTES / stage).min(MAX_STAGES)
    }

    /// Returns the kernel that packs, and its number of blocks for a tile.
    fn pack(self, columns: usize) -> (&'static str, usize) {
        match self {
            Self::Q8_0 => ("pack_q8_0", columns / 32),
            Self::Q4K => ("pack_q4_k", columns / 256),
            Self::Q6K => ("pack_q6_k", columns / 256),
            Self::Brains => ("pack_brains", columns / 16),
            Self::Floats8 => ("pack_floats8", columns / 128),
            Self::F32 | Self::Bf16 | Self::F16 => {
                ("pack_floats", self.row_bytes(columns).div_ceil(16))
            }
        }
    }
}

/// Tiles of a block of threads with many rows of activations.
const TILES_OF_MANY: usize = 4;

/// Most stages of a block of threads with many rows of activations.
const MAX_STAGES: usize = 4;

/// Kernel of products, by the rows of activations of a block of threads.
struct Kernel {
    rows: usize,
    /// True if the threads of a block go through the columns together.
    many: bool,
    name: &'static str,
    gated: &'static str,
}

macro_rules! kernels {
    ($name:literal, $($rows:literal $many:literal,)*) => {
        &[$(Kernel {
            rows: $rows,
            many: $many,
            name: concat!("products_", $name, "_", $rows),
            gated: concat!("products_", $name, "_", $rows, "_gated"),
        },)*]
    };
}

macro_rules! products {
    ($($layout:ident: $name:literal $kind:ident,)*) => {
        /// Returns the kernels of a layout, in the order of their rows.
        fn products(layout: Layout) -> &'static [Kernel] {
            match layout {
                $(Layout::$layout => products!($kind $name),)*
            }
        }
    };
    (tensors $name:literal) => {
        kernels!($name, 8 false, 16 false, 32 true, 64 true, 128 true,)
    };
    (floats $name:literal) => {
        kernels!($name, 8 false, 16 false, 32 false, 64 false,)
    };
}

products! {
    Q8_0: "q8_0" tensors,
    Q4K: "q4_k" tensors,
    Q6K: "q6_k" tensors,
    Brains: "brains" tensors,
    Floats8: "floats8" tensors,
    F32: "f32" floats,
    Bf16: "bf16" floats,
    F16: "f16" floats,
}

/// Shape of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
    /// Number of equal segments of the columns, each of which is summed by itself: 1, 2, 4 or 8.
    pub segments: usize,
}

/// Destination of the products of a matrix.
#[derive(Clone, Copy, Debug)]
pub enum Destination<'a> {
    /// f32.
    Floats {
        /// Rows of f32.
        out: &'a Buffer,
        /// Distance of the rows, in numbers.
        stride: usize,
        /// Number of a row that is the first product.
        first: usize,
    },
    /// The form of bf16 of other activations.
    Brains(&'a Activations),
}

/// Matrix `[rows, columns]` that multiplies activations: `y = W x + b`.
#[derive(Debug)]
pub struct Matrix {
    layout: Layout,
    shape: Shape,
    values: Buffer,
    heads: Buffer,
    bias: Option<Buffer>,
}

impl Matrix {
    /// Packs a matrix. `row` writes the bytes of a row as a GGUF or safetensors file has them; they
    /// are zeros before.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short or the device fails.
    ///
    /// # Panics
    ///
    /// Panics if the columns cannot be cut into these segments.
    pub fn pack(
        device: &Arc<dyn Device>,
        layout: Layout,
        shape: Shape,
        mut row: impl FnMut(usize, &mut [u8]),
    ) -> Result<Self> {
        let Shape { rows, columns, segments } = shape;
        assert!([1, 2, 4, 8].contains(&segments), "a number of segments has a tree");
        assert!(columns.is_multiple_of(segments * layout.unit()), "segments are of whole blocks");
        let (tiles, row_bytes) = (rows.div_ceil(TILE), layout.row_bytes(columns));
        let (values, heads) = layout.tile_bytes(columns);
        let matrix = Self {
            layout,
            shape,
            values: Buffer::zeroed(device, tiles * values)?,
            heads: Buffer::zeroed(device, tiles * heads)?,
            bias: None,
        };
        let at_once = (MAX_STAGED_BYTES / (TILE * row_bytes)).clamp(1, tiles.max(1));
        let staging = Buffer::zeroed(device, at_once * TILE * row_bytes)?;
        let mut bytes = vec![0u8; staging.bytes()];
        let (kernel, blocks) = layout.pack(columns);
        for first in (0..tiles).step_by(at_once) {
            let many = at_once.min(tiles - first);
            let own = (many * TILE).min(rows - first * TILE);
            bytes.fill(0);
            for (at, bytes) in bytes.chunks_exact_mut(row_bytes).take(own).enumerate() {
                row(first * TILE + at, bytes);
            }
            staging.write(0, &bytes)?;
            let args = PackArgs {
                source: staging.place(0, own * row_bytes),
                values: matrix.values.place(first * values, many * values),
                heads: matrix.heads.place(first * heads, many * heads),
                rows: own as u32,
                columns: columns as u32,
                row_bytes: row_bytes as u32,
                reserved: 0,
            };
            // SAFETY: the source has these rows, and the tiles are within the matrix.
            unsafe { device.launch(&args.launch(kernel, [many as u32, blocks as u32], 32))? };
        }
        Ok(matrix)
    }

    /// Sets the bias of each row.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short or the device fails.
    ///
    /// # Panics
    ///
    /// Panics if there are more or fewer numbers than rows in whole tiles.
    pub fn set_bias(&mut self, bias: &[f32]) -> Result<()> {
        assert_eq!(bias.len(), self.padded(), "a bias has a number for each padded row");
        self.bias = Some(Buffer::of(self.values.device(), bias)?);
        Ok(())
    }

    /// Returns the format in memory.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the number of rows in whole tiles.
    pub fn padded(&self) -> usize {
        self.shape.rows.next_multiple_of(TILE)
    }

    /// Returns the size in memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.values.bytes() + self.heads.bytes()
    }

    /// Returns the buffers of the tiles: values and heads.
    pub fn buffers(&self) -> [&Buffer; 2] {
        [&self.values, &self.heads]
    }

    fn weights(&self) -> Weights {
        Weights {
            values: self.values.place(0, 0),
            heads: self.heads.place(0, 0),
            rows: self.shape.rows as u32,
            columns: self.shape.columns as u32,
            format: self.layout.number(),
            reserved: 0,
        }
    }

    /// Multiplies rows of activations, bias included. There are `count` of them, at most `most`.
    ///
    /// With `gated`, each tile has eight rows of a gate and then eight of an up projection, and the
    /// result is `silu(gate) * up`, half as long.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Panics
    ///
    /// Panics if the activations do not have the form or the number of columns, or if the
    /// destination is too small.
    pub fn multiply(
        &self,
        x: &Activations,
        (count, most): (Count<'_>, usize),
        gated: bool,
        to: Destination<'_>,
    ) -> Result<()> {
        self.multiply_by(self.kernel(most), x, (count, most), gated, to)
    }

    /// Multiplies with the kernel of this many rows at once: for tests of each kernel.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Panics
    ///
    /// Panics as [`multiply`](Self::multiply), or if there is no such kernel.
    pub fn multiply_at_once(
        &self,
        at_once: usize,
        x: &Activations,
        rows: (Count<'_>, usize),
        gated: bool,
        to: Destination<'_>,
    ) -> Result<()> {
        let kernel = products(self.layout).iter().find(|kernel| kernel.rows == at_once);
        self.multiply_by(kernel.expect("a kernel of so many rows"), x, rows, gated, to)
    }

    fn multiply_by(
        &self,
        kernel: &Kernel,
        x: &Activations,
        (count, most): (Count<'_>, usize),
        gated: bool,
        to: Destination<'_>,
    ) -> Result<()> {
        let Shape { columns, segments, .. } = self.shape;
        if self.shape.rows == 0 || most == 0 {
            return Ok(());
        }
        let written = if gated { self.padded() / 2 } else { self.padded() };
        let (out, brains, stride) = match to {
            Destination::Floats { out, stride, first } => {
                let last = most.saturating_sub(1) * stride + first + written;
                (out.place(4 * first, 4 * (last - first)), 0, stride)
            }
            Destination::Brains(form) => {
                assert!(written <= form.columns() && most <= form.capacity(), "a row has room");
                (0, form.forms().brains, form.columns())
            }
        };
        let (x, scales, sums, x_stride) = x.read(self.layout.form(), columns, most);
        let args = ProductArgs {
            weights: self.weights(),
            x,
            scales,
            sums,
            rows: count.address(),
            bias: address(self.bias.as_ref()),
            out,
            brains,
            segments: segments as u32,
            stride: stride as u32,
            x_stride: x_stride as u32,
            reserved: 0,
        };
        let name = if gated { kernel.gated } else { kernel.name };
        let blocks = self.blocks(kernel, most).map(|blocks| blocks as u32);
        let mut launch = args.launch(name, blocks, THREADS);
        launch.shared = if kernel.many { self.layout.stages_bytes(kernel.rows) as u32 } else { 0 };
        // SAFETY: the activations have this form, and the destination has room, for `most` rows.
        unsafe { self.values.device().launch(&launch) }
    }

    /// Selects the kernel for at most this many rows: that of the most rows at once which keeps a
    /// third of the multiprocessors busy. With fewer, the loads that wait would not fill the memory's
    /// bandwidth. All kernels have the same bits.
    fn kernel(&self, most: usize) -> &'static Kernel {
        let kernels = products(self.layout);
        let last = kernels.len() - 1;
        let fits = kernels[..last].partition_point(|kernel| kernel.rows < most);
        let processors = self.values.device().processors() as usize;
        let is_busy = |kernel: &&Kernel| {
            !kernel.many || self.blocks(kernel, most).iter().product::<usize>() * 3 >= processors
        };
        kernels[..=fits].iter().rev().find(is_busy).unwrap_or(&kernels[0])
    }

    /// Returns the blocks of threads of a kernel for at most this many rows.
    fn blocks(&self, kernel: &Kernel, most: usize) -> [usize; 2] {
        let (tiles, of_rows) = (self.padded() / TILE, most.div_ceil(kernel.rows));
        match kernel.many {
            // Blocks that run at the same time share the weights if the rows come first.
            true => [of_rows, tiles.div_ceil(TILES_OF_MANY)],
            false => [tiles.div_ceil(WARPS / self.shape.segments), of_rows],
        }
    }

    /// Writes the rows of the tokens, of which the first has the id `first_token`, to `out` with rows
    /// `stride` numbers apart; zeros for other tokens.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Panics
    ///
    /// Panics if `tokens` or `out` has less than `most` rows.
    pub fn embed(
        &self,
        (tokens, first_token): (Count<'_>, usize),
        (count, most): (Count<'_>, usize),
        (out, stride): (&Buffer, usize),
    ) -> Result<()> {
        let args = EmbedArgs {
            weights: self.weights(),
            rows: count.address(),
            tokens: tokens.of(most),
            out: out.place(0, 4 * most * stride),
            first_token: first_token as u32,
            stride: stride as u32,
        };
        // SAFETY: both buffers have `most` rows.
        unsafe { self.values.device().launch(&args.launch("embed", [most as u32, 1], THREADS)) }
    }
}
