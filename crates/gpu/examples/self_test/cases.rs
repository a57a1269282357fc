//! Every kernel on fixed inputs that look random.

use std::sync::Arc;

use nsbridge_gpu::Result;
use nsbridge_gpu::attention::{
    Attention, AttentionPlan, Heads, Item, KvCache, Merge, PAGE, Place, SPLIT,
};
use nsbridge_gpu::device::{Buffer, Device};
use nsbridge_gpu::matrix::{Destination, Layout, Matrix, Shape};
use nsbridge_gpu::rows::{Activations, Count, Form, Norm, Sums};

/// Result of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// Hash of the bits, which are the same on each device.
    Bits(u64),
    /// Largest difference from sums in f64, relative to one more than their magnitude. The bits are
    /// the device's.
    Difference(f64),
}

/// Largest difference that products of bf16 may have.
pub(crate) const TOLERANCE: f64 = 1e-3;

const LAYOUTS: [(Layout, &str); 8] = [
    (Layout::Q8_0, "q8_0"),
    (Layout::Q4K, "q4_k"),
    (Layout::Q6K, "q6_k"),
    (Layout::Brains, "brains"),
    (Layout::Floats8, "floats8"),
    (Layout::F32, "f32"),
    (Layout::Bf16, "bf16"),
    (Layout::F16, "f16"),
];

/// Runs every kernel, and calls `each` with its name and what it gave.
///
/// # Errors
///
/// Returns an error if the device fails.
pub(crate) fn run(device: &Arc<dyn Device>, each: &mut dyn FnMut(&str, Outcome)) -> Result<()> {
    pack(device, each)?;
    for (layout, name) in LAYOUTS {
        for gated in [false, true] {
            products(device, (layout, name), gated, each)?;
        }
    }
    rows(device, each)?;
    for brains in [false, true] {
        attention(device, brains, each)?;
    }
    Ok(())
}

/// Hash of bits: FNV-1a.
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, buffer: &Buffer) -> Result<()> {
        let mut bytes = vec![0u8; buffer.bytes()];
        buffer.read(0, &mut bytes)?;
        self.0 = bytes
            .iter()
            .fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        Ok(())
    }

    /// Returns the hash of buffers.
    fn of<'a>(buffers: impl IntoIterator<Item = &'a Buffer>) -> Result<Outcome> {
        let mut hash = Self::new();
        buffers.into_iter().try_for_each(|buffer| hash.add(buffer))?;
        Ok(Outcome::Bits(hash.0))
    }
}

/// Numbers from -1 to 1.
pub(crate) fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Eight-bit float of a number.
fn float8(x: f32) -> u8 {
    let byte = (x * 8_388_608.0) as i32 as u8;
    // No NaN.
    byte - u8::from(byte & 0x7f == 0x7f)
}

/// Scale of a group of 128 columns of a row of eight-bit floats. Powers of two make products that
/// bf16 can hold.
fn scale8(row: usize, group: usize) -> f32 {
    [1.0 / 512.0, 1.0 / 128.0, 1.0 / 256.0][(row + group) % 3]
}

/// Bytes of a matrix as a file has them.
fn file(layout: Layout, columns: usize, numbers: &[f32]) -> Vec<u8> {
    if layout == Layout::Floats8 {
        let rows = numbers.chunks_exact(columns).enumerate().flat_map(|(row, numbers)| {
            let scales = (0..columns / 128).flat_map(move |at| scale8(row, at).to_le_bytes());
            numbers.iter().map(|x| float8(*x)).chain(scales)
        });
        return rows.collect();
    }
    let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
    let (block, bytes, scales): (usize, usize, &[usize]) = match layout {
        Layout::Q8_0 => (32, 34, &[0]),
        Layout::Q4K => (256, 144, &[0, 2]),
        Layout::Q6K => (256, 210, &[208]),
        Layout::F32 => return numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Layout::F16 => return numbers.iter().flat_map(|x| half(*x)).collect(),
        _ => return numbers.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
    };
    let blocks = numbers.chunks_exact(block).flat_map(|random| {
        let byte = |i: usize| (random[i % block] * 8_388_608.0) as i32 as u8;
        let mut own: Vec<u8> = (0..bytes).map(byte).collect();
        for at in scales {
            own[*at..][..2].copy_from_slice(&half(random[*at % block].abs() * 0.01));
        }
        own
    });
    blocks.collect()
}

fn matrix(device: &Arc<dyn Device>, layout: Layout, shape: Shape, bytes: &[u8]) -> Result<Matrix> {
    let row_bytes = bytes.len() / shape.rows;
    let row =
        |row: usize, to: &mut [u8]| to.copy_from_slice(&bytes[row * row_bytes..][..row_bytes]);
    Matrix::pack(device, layout, shape, row)
}

/// The kernels that pack and that look tokens up.
fn pack(device: &Arc<dyn Device>, each: &mut dyn FnMut(&str, Outcome)) -> Result<()> {
    let (mut floats, mut embedded) = (Hash::new(), Hash::new());
    for (layout, name) in LAYOUTS {
        // Rows that are no whole tiles, and rows of floats that are no whole 16 bytes.
        let of_floats = matches!(layout, Layout::F32 | Layout::Bf16 | Layout::F16);
        let (rows, columns) = (89, if of_floats { 509 } else { 1024 });
        let bytes = file(layout, columns, &numbers(1, rows * columns));
        let matrix = matrix(device, layout, Shape { rows, columns, segments: 1 }, &bytes)?;
        if of_floats {
            matrix.buffers().into_iter().try_for_each(|buffer| floats.add(buffer))?;
        } else {
            each(&format!("pack_{name}"), Hash::of(matrix.buffers())?);
        }
        // The matrix has the tokens from 100 on.
        let tokens: Vec<u32> = (90..200).collect();
        let many = tokens.len();
        let count = Buffer::of(device, &[many as u32])?;
        let out = Buffer::zeroed(device, 4 * many * columns)?;
        let tokens = Buffer::of(device, &tokens)?;
        let rows = (Count::new(&count, 0), many);
        matrix.embed((Count::new(&tokens, 0), 100), rows, (&out, columns))?;
        embedded.add(&out)?;
    }
    each("pack_floats", Outcome::Bits(floats.0));
    each("embed", Outcome::Bits(embedded.0));
    Ok(())
}

/// The products of a layout, with each number of rows at once.
fn products(
    device: &Arc<dyn Device>,
    (layout, name): (Layout, &str),
    gated: bool,
    each: &mut dyn FnMut(&str, Outcome),
) -> Result<()> {
    // With two segments a block of threads has four tiles, and the last one has fewer.
    let (rows, columns, segments) = (72, 2048, if gated { 2 } else { 8 });
    let weights = numbers(2, rows * columns);
    let shape = Shape { rows, columns, segments };
    let mut matrix = matrix(device, layout, shape, &file(layout, columns, &weights))?;
    let weights = if layout == Layout::Floats8 {
        let number = |(at, x): (usize, &f32)| {
            let bits = i32::from(float8(*x));
            let (exponent, mantissa) = (bits >> 3 & 15, (bits & 7) as f32 / 8.0);
            let magnitude = match exponent {
                0 => mantissa * 2f32.powi(-6),
                _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
            };
            let scale = scale8(at / columns, at % columns / 128);
            if bits < 128 { magnitude * scale } else { -magnitude * scale }
        };
        weights.iter().enumerate().map(number).collect()
    } else {
        weights
    };
    let bias = numbers(3, matrix.padded());
    matrix.set_bias(&bias)?;
    let on_tensor_cores = matches!(layout.form(), Form::Of32 | Form::Of256 | Form::Brains);
    let last = if on_tensor_cores { &[(64, 61), (128, 130)][..] } else { &[(64, 130)] };
    for (at_once, many) in [(8, 5), (16, 16), (32, 27)].iter().chain(last).copied() {
        let x = numbers(4 + many as u64, many * columns);
        let count = Buffer::of(device, &[many as u32])?;
        let rows_of_x = (Count::new(&count, 0), many);
        let own = Activations::new(device, many, columns, &[layout.form()])?;
        own.form((&Buffer::of(device, &x)?, columns), rows_of_x)?;
        let stride = if gated { matrix.padded() / 2 } else { matrix.padded() };
        let out = Buffer::zeroed(device, 4 * many * stride)?;
        let to = Destination::Floats { out: &out, stride, first: 0 };
        matrix.multiply_at_once(at_once, &own, rows_of_x, gated, to)?;
        let outcome = if !layout.is_exact() {
            let mut products = vec![0.0f32; many * stride];
            out.read(0, &mut products)?;
            difference((&weights, &bias, &x), columns, gated, &products)
        } else {
            Hash::of([&out])?
        };
        let gated = if gated { "_gated" } else { "" };
        each(&format!("products_{name}_{at_once}{gated}"), outcome);
    }
    Ok(())
}

/// Returns the largest difference of products from those in f64 of the numbers rounded to bf16.
fn difference(
    (weights, bias, x): (&[f32], &[f32], &[f32]),
    columns: usize,
    gated: bool,
    products: &[f32],
) -> Outcome {
    let rounded = |numbers: &[f32]| -> Vec<f64> {
        numbers.iter().map(|x| half::bf16::from_f32(*x).to_f64()).collect()
    };
    let (weights, x) = (rounded(weights), rounded(x));
    let stride = products.len() / (x.len() / columns);
    let sum = |row: usize, x: &[f64]| {
        // Rows beyond the matrix are zeros.
        let weights = weights.chunks_exact(columns).nth(row).unwrap_or_default();
        weights.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + f64::from(bias[row])
    };
    let mut largest = 0.0f64;
    for (x, products) in x.chunks_exact(columns).zip(products.chunks_exact(stride)) {
        for (at, product) in products.iter().enumerate() {
            let exact = if gated {
                let gate = sum(at / 8 * 16 + at % 8, x);
                gate / (1.0 + (-gate).exp()) * sum(at / 8 * 16 + at % 8 + 8, x)
            } else {
                sum(at, x)
            };
            let apart = (f64::from(*product) - exact).abs() / (1.0 + exact.abs());
            // Not a number is the largest.
            largest = if apart <= largest { largest } else { apart };
        }
    }
    Outcome::Difference(largest)
}

/// The norm, and the forms of rows.
fn rows(device: &Arc<dyn Device>, each: &mut dyn FnMut(&str, Outcome)) -> Result<()> {
    let forms = [Form::Floats, Form::Brains, Form::Of32, Form::Of256];
    let (many, columns, stride) = (37, 2304, 2310);
    let count = Buffer::of(device, &[many as u32])?;
    let rows = (Count::new(&count, 0), many);
    let stream = Buffer::of(device, &numbers(10, many * stride))?;
    let out = Activations::new(device, many, columns, &forms)?;
    out.form((&stream, stride), rows)?;
    each("form", Hash::of(out.buffers())?);

    let partials = [11, 12, 13, 14].map(|seed| Buffer::of(device, &numbers(seed, many * stride)));
    let partials = partials.into_iter().collect::<Result<Vec<_>>>()?;
    let bias = Buffer::of(device, &numbers(15, columns))?;
    let picked = Buffer::of(device, &(0..many as u32).rev().collect::<Vec<_>>())?;
    let norm = Norm {
        stream: &stream,
        stride,
        weight: &Buffer::of(device, &numbers(16, columns))?,
        eps: 1e-5,
        sums: Some(Sums {
            partials: &partials.iter().collect::<Vec<_>>(),
            bias: Some(&bias),
            replaces: false,
        }),
        picked: Some(Count::new(&picked, 0)),
    };
    norm.write(many, rows, &out)?;
    each("rms_norm", Hash::of(out.buffers().into_iter().chain([&stream]))?);
    Ok(())
}

/// The kernels of attention, over a sequence of three splits whose last rows attend.
fn attention(
    device: &Arc<dyn Device>,
    brains: bool,
    each: &mut dyn FnMut(&str, Outcome),
) -> Result<()> {
    let (name, length, dim) = (if brains { "bf16" } else { "f32" }, 700_usize, 64);
    let mut merged = Hash::new();
    for (at_once, queries, rows_at_once) in
        [(1, 2, 1), (2, 4, 1), (4, 8, 1), (8, 16, 1), (16, 16, 2)]
    {
        let heads = Heads { queries, keys: 2, dim };
        let width = (queries + 4) * dim;
        let positions: Vec<u32> = (0..length as u32).collect();
        // The pages have another order than the positions.
        let pages = length.div_ceil(PAGE) as u32;
        let table: Vec<u32> = (0..pages).map(|page| (page * 7 + 3) % pages).collect();
        let pages_of: Vec<u32> = positions.iter().map(|at| table[*at as usize / PAGE]).collect();
        let cache = KvCache::new(device, heads, (2, pages as usize + 1), brains)?;
        let x = numbers(20, length * width);
        let x = Buffer::of(device, &x)?;
        let angles: Vec<f32> = numbers(21, length * dim / 2).iter().map(|x| x * 3.0).collect();
        let cos: Vec<f32> = angles.iter().map(|_| 0.6).collect();
        let sin: Vec<f32> = angles.iter().map(|x| x * 0.25).collect();
        let [positions, pages_of, tables] =
            [&positions, &pages_of, &table].map(|numbers| Buffer::of(device, numbers));
        let (positions, pages_of, tables) = (positions?, pages_of?, tables?);
        let norms =
            [Buffer::of(device, &numbers(22, dim))?, Buffer::of(device, &numbers(23, dim))?];
        let place = Place {
            x: &x,
            stride: width,
            positions: Count::new(&positions, 0),
            pages: Count::new(&pages_of, 0),
            angles: [&Buffer::of(device, &cos)?, &Buffer::of(device, &sin)?],
            norms: Some(norms.each_ref()),
            eps: 1e-6,
        };
        let n = Buffer::of(device, &[length as u32])?;
        place.write((Count::new(&n, 0), length), (&cache, 1))?;
        if at_once == 1 {
            each(&format!("place_{name}"), Hash::of(cache.buffers().into_iter().chain([&x]))?);
            cache.copy(table[3], pages)?;
            each(&format!("copy_page of {name}"), Hash::of(cache.buffers())?);
        }

        // Four rows attend, once in whole and once in pieces.
        let (many, first_row) = (4, length - 4);
        let (first, last) = ((first_row - 350) / SPLIT, (length - 1) / SPLIT);
        let splits = last - first + 1;
        let own: Vec<f32> = numbers(24, many * width).iter().map(|x| x * 3.0).collect();
        let own = Buffer::of(device, &own)?;
        let out = Buffer::zeroed(device, 4 * many * queries * dim)?;
        for pieces in [false, true] {
            let (mut items, mut merges) = (Vec::new(), Vec::new());
            for row in (0..many).step_by(rows_at_once) {
                let item =
                    Item::whole((row as u32, rows_at_once as u32), 0, (first as u32, last as u32));
                if !pieces {
                    items.push(item);
                    continue;
                }
                for (at, split) in (first..=last).enumerate() {
                    items.push(item.piece(split as u32, (row * splits + at) as u32, splits as u32));
                }
                for row in row..row + rows_at_once {
                    merges.push(Merge::new(row as u32, (row * splits) as u32, splits as u32));
                }
            }
            let counts = Buffer::of(device, &[items.len() as u32, merges.len() as u32])?;
            let items_there = Buffer::of(device, &items)?;
            let merges_there = Buffer::of(device, &merges)?;
            let plan = AttentionPlan {
                counts: Count::new(&counts, 0),
                items: Count::new(&items_there, 0),
                merges: Count::new(&merges_there, 0),
                tables: Count::new(&tables, 0),
                positions: Count::new(&positions, first_row),
                rows_at_once,
                most_merges: merges.len(),
                window: Some(351),
            };
            let attention = Attention::new(device, heads, many * splits)?;
            attention.attend((&own, width), many, &plan, (&cache, 1), &out)?;
            if pieces {
                merged.add(&out)?;
            } else {
                each(&format!("attend_{name}_{at_once}"), Hash::of([&out])?);
            }
        }
    }
    each(&format!("merge of {name}"), Outcome::Bits(merged.0));
    Ok(())
}
