//! Products have the CPU's bits.

use nsbridge_gpu::device::Buffer;
use nsbridge_gpu::matrix::{Destination, Layout, Matrix, Shape};
use nsbridge_gpu::rows::Activations;
use nsbridge_kernels::matrix::{
    Activations as CpuActivations, Epilogue, KQuantBlock, Matrix as CpuMatrix, Output,
    QuantizationBuffers, Source, segments,
};
use nsbridge_kernels::{Format, ThreadPool, Tier};

use crate::{ORDERS, assert_bits, count, counts, device, numbers, read};

/// Formats of both sides.
const FORMATS: [(Layout, Format); 6] = [
    (Layout::Q8_0, Format::Q8_0),
    (Layout::Q4K, Format::Q4K),
    (Layout::Q6K, Format::Q6K),
    (Layout::F32, Format::F32),
    (Layout::Bf16, Format::Bf16),
    (Layout::F16, Format::F16),
];

/// Returns the bytes of a matrix as a file has them.
pub(crate) fn weights(format: Format, rows: usize, columns: usize) -> Vec<u8> {
    let (block, bytes) = format.block_in_file();
    let random = numbers(7, rows * columns);
    match format {
        Format::F32 => random.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Format::Bf16 => {
            random.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect()
        }
        Format::F16 => random.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
        _ => {
            let all = (0..rows * columns / block).flat_map(|at| {
                let random = &random[at * block..];
                let byte = |i: usize| (random[i % block] * 8_388_608.0) as i32 as u8;
                let mut own: Vec<u8> = (0..bytes).map(byte).collect();
                // Scales that are finite, and no value of -128.
                let d = half::f16::from_f32(random[0] * 0.01).to_le_bytes();
                let min = half::f16::from_f32(random[1].abs() * 0.02).to_le_bytes();
                match format {
                    Format::Q8_0 => {
                        own[2..]
                            .iter_mut()
                            .for_each(|x| *x = (*x).max(1).wrapping_add(u8::from(*x == 128)));
                        own[..2].copy_from_slice(&d);
                    }
                    Format::Q4K => {
                        own[..2].copy_from_slice(&d);
                        own[2..4].copy_from_slice(&min);
                    }
                    _ => own[208..].copy_from_slice(&d),
                }
                own
            });
            all.collect()
        }
    }
}

/// Returns the rows at once of two kernels: the one that fits so many rows best, and another.
fn kernels(layout: Layout, rows: usize) -> [usize; 2] {
    let on_tensor_cores = !matches!(layout, Layout::F32 | Layout::Bf16 | Layout::F16);
    let most = if on_tensor_cores { 128 } else { 64 };
    let fits = rows.next_power_of_two().clamp(8, most);
    [fits, if fits == most { 8 } else { 2 * fits }]
}

/// Returns the products of the CPU, rows of `padded` numbers.
fn of_cpu(
    format: Format,
    (rows, columns): (usize, usize),
    bytes: &[u8],
    x: &[f32],
    bias: Option<&[f32]>,
    epilogue: Epilogue,
) -> Vec<f32> {
    let mut pool = ThreadPool::new(1);
    let tier = Tier::best();
    let mut matrix = CpuMatrix::zeroed(format, rows, columns, segments(format, columns)).unwrap();
    let source = Source { name: "w", format, bytes };
    matrix.pack((&mut pool, tier), &[source], |row| (row < rows).then_some((0, row))).unwrap();
    if let Some(bias) = bias {
        matrix.set_bias(bias.to_vec());
    }
    let count = x.len() / columns;
    let stride = if epilogue == Epilogue::Gate { matrix.padded() / 2 } else { matrix.padded() };
    let mut out = vec![0.0; count * stride];
    let x = CpuActivations { numbers: x, stride: columns };
    let output = Output::new(&mut out, stride).epilogue(epilogue);
    matrix.multiply((&mut pool, tier), x, count, &mut QuantizationBuffers::default(), output);
    out
}

#[test]
fn products_have_the_bits_of_the_cpu_whatever_the_number_of_rows() {
    for (layout, format) in FORMATS {
        for (rows, columns, count_of_x) in [
            (40, 512, 1),
            (16, 2048, 3),
            (33, 256, 9),
            (48, 512, 17),
            (80, 1280, 27),
            (20, 1024, 40),
            (72, 2048, 61),
            (16, 256, 130),
            (70, 1280, 135),
        ] {
            let bytes = weights(format, rows, columns);
            let x = numbers(3, count_of_x * columns);
            let bias = (count_of_x % 2 == 0).then(|| numbers(5, rows.next_multiple_of(16)));
            let expected =
                of_cpu(format, (rows, columns), &bytes, &x, bias.as_deref(), Epilogue::Set);
            for order in ORDERS {
                let device = device(order);
                let shape = Shape { rows, columns, segments: segments(format, columns) };
                let row_bytes = bytes.len() / rows;
                let mut matrix = Matrix::pack(&device, layout, shape, |row, out| {
                    out.copy_from_slice(&bytes[row * row_bytes..][..row_bytes]);
                })
                .unwrap();
                if let Some(bias) = &bias {
                    matrix.set_bias(bias).unwrap();
                }
                let own = Activations::new(&device, count_of_x, columns, &[layout.form()]).unwrap();
                let n = counts(&device, &[count_of_x as u32]);
                let rows_of_x = (count(&n), count_of_x);
                own.form((&Buffer::of(&device, &x).unwrap(), columns), rows_of_x).unwrap();
                let stride = matrix.padded();
                for at_once in kernels(layout, count_of_x) {
                    let out = Buffer::zeroed(&device, 4 * count_of_x * stride).unwrap();
                    let to = Destination::Floats { out: &out, stride, first: 0 };
                    matrix.multiply_at_once(at_once, &own, rows_of_x, false, to).unwrap();
                    let what = format!(
                        "{format} {rows} x {columns}, {count_of_x} rows, {at_once} at once, order \
                         {order}"
                    );
                    assert_bits(&read(&out, count_of_x * stride), &expected, &what);
                }
            }
        }
    }
}

#[test]
fn a_gate_has_the_bits_of_the_cpu() {
    let (wide, columns) = (44, 512);
    for ((layout, format), count_of_x) in
        FORMATS.into_iter().flat_map(|format| [3, 30, 50, 70].map(|count| (format, count)))
    {
        let bytes = weights(format, 2 * wide, columns);
        let row_bytes = bytes.len() / (2 * wide);
        let row = |row: usize| &bytes[row * row_bytes..][..row_bytes];
        let x = numbers(3, count_of_x * columns);
        // On the CPU, tiles of sixteen rows of each take turns.
        let in_turn = |lanes: usize, number: usize| {
            let (tile, lane) = (number / lanes, number % lanes);
            let from = tile / 2 * lanes + lane;
            (from < wide).then_some(tile % 2 * wide + from)
        };
        let of_cpu = {
            let mut pool = ThreadPool::new(1);
            let tier = Tier::best();
            let padded = 2 * wide.next_multiple_of(16);
            let mut matrix =
                CpuMatrix::zeroed(format, padded, columns, segments(format, columns)).unwrap();
            let source = Source { name: "w", format, bytes: &bytes };
            matrix
                .pack((&mut pool, tier), &[source], |row| in_turn(16, row).map(|row| (0, row)))
                .unwrap();
            let mut out = vec![0.0; count_of_x * padded / 2];
            let x = CpuActivations { numbers: &x, stride: columns };
            let output = Output::new(&mut out, padded / 2).epilogue(Epilogue::Gate);
            let buffers = &mut QuantizationBuffers::default();
            matrix.multiply((&mut pool, tier), x, count_of_x, buffers, output);
            let rows = out.chunks_exact(padded / 2).flat_map(|row| row[..wide].to_vec());
            rows.collect::<Vec<f32>>()
        };
        let device = device(2);
        let rows = 2 * wide.next_multiple_of(8);
        let shape = Shape { rows, columns, segments: segments(format, columns) };
        let matrix = Matrix::pack(&device, layout, shape, |number, out| {
            if let Some(from) = in_turn(8, number) {
                out.copy_from_slice(row(from));
            }
        })
        .unwrap();
        let own = Activations::new(&device, count_of_x, columns, &[layout.form()]).unwrap();
        let n = counts(&device, &[count_of_x as u32]);
        let rows_of_x = (count(&n), count_of_x);
        own.form((&Buffer::of(&device, &x).unwrap(), columns), rows_of_x).unwrap();
        let stride = matrix.padded() / 2;
        let out = Buffer::zeroed(&device, 4 * count_of_x * stride).unwrap();
        let to = Destination::Floats { out: &out, stride, first: 0 };
        let at_once = kernels(layout, count_of_x)[0];
        matrix.multiply_at_once(at_once, &own, rows_of_x, true, to).unwrap();
        let out = read(&out, count_of_x * stride);
        let out: Vec<f32> = out.chunks_exact(stride).flat_map(|row| row[..wide].to_vec()).collect();
        assert_bits(&out, &of_cpu, &format!("{format}, {count_of_x} rows"));
    }
}

#[test]
fn products_of_bf16_are_within_their_rounding_and_do_not_depend_on_the_rows() {
    let (rows, columns) = (40, 512);
    let bytes = weights(Format::Bf16, rows, columns);
    let x = numbers(3, 70 * columns);
    let rounded: Vec<f32> = x.iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect();
    let expected = of_cpu(Format::Bf16, (rows, columns), &bytes, &rounded, None, Epilogue::Set);
    let device = device(0);
    let shape = Shape { rows, columns, segments: 8 };
    let matrix = Matrix::pack(&device, Layout::Brains, shape, |row, out| {
        out.copy_from_slice(&bytes[row * columns * 2..][..columns * 2]);
    })
    .unwrap();
    let stride = matrix.padded();
    let products = |x: &[f32]| {
        let many = x.len() / columns;
        let own = Activations::new(&device, many, columns, &[Layout::Brains.form()]).unwrap();
        let n = counts(&device, &[many as u32]);
        own.form((&Buffer::of(&device, x).unwrap(), columns), (count(&n), many)).unwrap();
        let out = Buffer::zeroed(&device, 4 * many * stride).unwrap();
        let to = Destination::Floats { out: &out, stride, first: 0 };
        matrix.multiply(&own, (count(&n), many), false, to).unwrap();
        read(&out, many * stride)
    };
    let all = products(&x);
    for (ours, theirs) in all.iter().zip(&expected) {
        assert!((ours - theirs).abs() < 1e-4, "{ours} and {theirs}");
    }
    for many in [1, 10, 20, 40] {
        for first in (0..=70 - many).step_by(many) {
            let some = products(&x[first * columns..][..many * columns]);
            assert_bits(&some, &all[first * stride..][..many * stride], "rows of a smaller batch");
        }
    }
}

#[test]
fn embeddings_have_the_bits_of_the_cpu() {
    let (rows, columns) = (40, 512);
    for (layout, format) in FORMATS.into_iter().chain([(Layout::Brains, Format::Bf16)]) {
        let bytes = weights(format, rows, columns);
        let row_bytes = bytes.len() / rows;
        let device = device(0);
        let shape = Shape { rows, columns, segments: 1 };
        let matrix = Matrix::pack(&device, layout, shape, |row, out| {
            out.copy_from_slice(&bytes[row * row_bytes..][..row_bytes]);
        })
        .unwrap();
        let mut of_cpu = CpuMatrix::zeroed(format, rows, columns, 1).unwrap();
        let source = Source { name: "w", format, bytes: &bytes };
        let compute = (&mut ThreadPool::new(1), Tier::best());
        of_cpu.pack(compute, &[source], |row| (row < rows).then_some((0, row))).unwrap();
        // The rank has the tokens from 100 on.
        let tokens = [139u32, 100, 7, 117, 140];
        let (n, tokens_there) = (counts(&device, &[5]), counts(&device, &tokens));
        let out = Buffer::zeroed(&device, 4 * 5 * columns).unwrap();
        let place = (count(&tokens_there), 100);
        matrix.embed(place, (count(&n), 5), (&out, columns)).unwrap();
        for (token, ours) in tokens.iter().zip(read(&out, 5 * columns).chunks_exact(columns)) {
            let mut theirs = vec![0.0; columns];
            if (100..140).contains(token) {
                of_cpu.row(*token as usize - 100, &mut theirs);
            }
            assert_bits(ours, &theirs, &format!("{format} token {token}"));
        }
    }
}

#[test]
fn a_block_of_random_bytes_is_one_of_the_format() {
    // The weights above are as varied as a file's: all values and scales occur.
    for format in [Format::Q4K, Format::Q6K] {
        let bytes = weights(format, 16, 2048);
        let blocks = bytes.chunks_exact(format.block_in_file().1);
        let mut values = std::collections::BTreeSet::new();
        for block in blocks {
            values.extend(KQuantBlock::read(format, block).values);
        }
        assert_eq!(values.len(), if format == Format::Q4K { 16 } else { 64 });
    }
}
