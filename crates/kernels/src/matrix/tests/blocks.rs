//! Tests of the formats that have blocks in a file: bits of products, errors of products, and rows
//! as another reader finds them.

use half::f16;
use proptest::prelude::*;

use super::{bits, check_tiers, draw, product};
use crate::format::Format;
use crate::kquants;
use crate::matrix::{KQuantBlock, Matrix, Source, segments};
use crate::rowwise::{BLOCK, quantize};
use crate::simd::Tier;
use crate::thread_pool::ThreadPool;

const BLOCKS: [Format; 14] = [
    Format::Q8_0,
    Format::Q8_1,
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Iq4Nl,
    Format::Mxfp4,
    Format::Q2K,
    Format::Q3K,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
    Format::Iq4Xs,
];

/// Draws blocks of random bits with finite factors. With `fill`, all other bits are those of this
/// byte: all values and scales are the largest or the least.
fn drawn_blocks(format: Format, count: usize, seed: u64, fill: Option<u8>) -> Vec<u8> {
    let size = format.block_in_file().1;
    let mut bytes: Vec<u8> =
        draw(count * size, seed).iter().map(|x| (x * 128.0) as i8 as u8).collect();
    if let Some(fill) = fill {
        bytes.fill(fill);
    }
    let factors: &[usize] = match format {
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        Format::Mxfp4 => &[],
        _ => &[0],
    };
    for (at, (block, sign)) in
        bytes.chunks_mut(size).zip([1.0, -1.0].into_iter().cycle()).enumerate()
    {
        for (at, factor) in factors.iter().zip([0.03, 0.011]) {
            block[*at..at + 2].copy_from_slice(&f16::from_f32(sign * factor).to_le_bytes());
        }
        match format {
            // 2 to the power -11 to -4.
            Format::Mxfp4 => block[0] = 117 + (at % 8) as u8,
            // No value may be -128.
            Format::Q8_0 | Format::Q8_1 => {
                block[size - 32..].iter_mut().for_each(|value| *value |= u8::from(*value == 0x80));
            }
            Format::Q6K if fill == Some(0xff) => block[192..208].fill(0x80),
            _ => {}
        }
    }
    bytes
}

pub(super) fn packed_blocks(format: Format, bytes: &[u8], rows: usize) -> Matrix {
    let (count, size) = format.block_in_file();
    let columns = bytes.len() / size / rows * count;
    let mut matrix = Matrix::zeroed(format, rows, columns, segments(format, columns)).unwrap();
    let source = Source { name: "w", format, bytes };
    let place = |row| (row < rows).then_some((0, row));
    matrix.pack((&mut ThreadPool::new(2), Tier::best()), &[source], place).unwrap();
    matrix
}

/// Reads a block of 32 as ggml describes it: `d`, `min` and the values without their offset.
fn block_of_32(format: Format, bytes: &[u8]) -> (f32, Option<f32>, Vec<i64>) {
    let half = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
    let nibbles = |bytes: &[u8]| -> Vec<i64> {
        bytes
            .iter()
            .map(|byte| byte & 15)
            .chain(bytes.iter().map(|byte| byte >> 4))
            .map(i64::from)
            .collect()
    };
    let fives = |bytes: &[u8]| -> Vec<i64> {
        let high = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let low = nibbles(&bytes[4..]).into_iter().enumerate();
        low.map(|(k, low)| low + 16 * i64::from(high >> k & 1)).collect()
    };
    let less = |values: Vec<i64>, by| values.into_iter().map(|value| value - by).collect();
    const LEVELS: [i64; 16] =
        [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    const FLOATS: [i64; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
    match format {
        Format::Q8_0 | Format::Q8_1 => {
            let values = bytes[bytes.len() - 32..].iter().map(|byte| i64::from(*byte as i8));
            (half(0), None, values.collect())
        }
        Format::Q4_0 => (half(0), None, less(nibbles(&bytes[2..]), 8)),
        Format::Q4_1 => (half(0), Some(half(2)), nibbles(&bytes[4..])),
        Format::Q5_0 => (half(0), None, less(fives(&bytes[2..]), 16)),
        Format::Q5_1 => (half(0), Some(half(2)), fives(&bytes[4..])),
        Format::Iq4Nl => {
            let values = nibbles(&bytes[2..]).into_iter().map(|place| LEVELS[place as usize]);
            (half(0), None, values.collect())
        }
        Format::Mxfp4 => {
            let float = |bits: i64| FLOATS[bits as usize % 8] * if bits < 8 { 1 } else { -1 };
            let values = nibbles(&bytes[1..]).into_iter().map(float).collect();
            (2f32.powi(i32::from(bytes[0]) - 128), None, values)
        }
        other => panic!("{other} has no blocks of 32"),
    }
}

/// Adds the product of a block of 32 with activations.
fn plain_32(format: Format, bytes: &[u8], x: &[f32], sum: f32) -> f32 {
    let mut a = [0; BLOCK];
    let of_x = quantize::<BLOCK>(x.try_into().unwrap(), &mut a);
    let (d, min, values) = block_of_32(format, bytes);
    let products: i64 = values.iter().zip(a).map(|(value, a)| value * i64::from(a)).sum();
    let sum = (products as f32).mul_add(d * of_x, sum);
    let all: i32 = a.into_iter().map(i32::from).sum();
    min.map_or(sum, |min| min.mul_add(of_x * all as f32, sum))
}

/// Adds the product of a block of 256 with activations.
fn plain_256(format: Format, bytes: &[u8], x: &[f32], sum: f32) -> f32 {
    let block = KQuantBlock::read(format, bytes);
    let mut a = [0; kquants::BLOCK];
    let of_x = quantize::<{ kquants::BLOCK }>(x.try_into().unwrap(), &mut a);
    let (mut values, mut least) = (0i64, 0i64);
    for (column, a) in a.into_iter().enumerate() {
        let (value, a) = (i64::from(block.values[column]), i64::from(a));
        let (of_16, of_32) = (block.scales[column / 16], block.scales[column / 32]);
        match format {
            Format::Q2K => {
                values += i64::from(of_16) * value * a;
                least += i64::from(block.least[column / 16]) * a;
            }
            Format::Q3K => values += i64::from(of_16) * (value - 4) * a,
            Format::Q6K => values += i64::from(of_16) * (value - 32) * a,
            Format::Iq4Xs => {
                let level = crate::blocks32::LEVELS[value as usize];
                values += i64::from(of_32) * i64::from(level) * a;
            }
            _ => {
                values += i64::from(of_32) * value * a;
                least += i64::from(block.least[column / 32]) * a;
            }
        }
    }
    let [d, min] = [block.d, block.min].map(|bits| f16::from_bits(bits).to_f32());
    let sum = (values as f32).mul_add(d * of_x, sum);
    if matches!(format, Format::Q2K | Format::Q4K | Format::Q5K) {
        return (least as f32).mul_add(-min * of_x, sum);
    }
    sum
}

/// Computes the product by the definition, from a row's blocks in the file's layout.
fn plain_blocks(format: Format, segments: usize, row: &[u8], x: &[f32]) -> f32 {
    let (count, size) = format.block_in_file();
    let blocks: Vec<_> = row.chunks(size).zip(x.chunks(count)).collect();
    let product = |sum: f32, (bytes, x): &(&[u8], &[f32])| {
        if count == BLOCK {
            plain_32(format, bytes, x, sum)
        } else {
            plain_256(format, bytes, x, sum)
        }
    };
    let mut sums: Vec<f32> = blocks
        .chunks(blocks.len() / segments)
        .map(|segment| segment.iter().fold(0.0, product))
        .collect();
    while sums.len() > 1 {
        sums = sums.chunks(2).map(|pair| pair[0] + pair[1]).collect();
    }
    sums[0]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_tier_gives_the_bits_of_the_definition_of_blocks(
        format in prop::sample::select(BLOCKS.to_vec()),
        rows in 1..100usize, blocks in 1..9usize, activations in 1..11usize,
        fill in prop::option::weighted(0.3, prop::sample::select(vec![0u8, 0xff])),
        cut in 0..8usize, seed: u64,
    ) {
        let bytes = drawn_blocks(format, rows * blocks, seed, fill);
        let matrix = packed_blocks(format, &bytes, rows);
        let columns = blocks * format.unit();
        let mut x = draw(activations * columns, !seed);
        if fill.is_some() {
            // With equal magnitudes, all activations quantize to 127 or -127.
            let same = seed % 2 == 0;
            x.iter_mut().for_each(|x| *x = if same { 0.5 } else { 0.5f32.copysign(*x) });
        }
        let row_bytes = bytes.len() / rows;
        let right: Vec<f32> = (0..activations)
            .flat_map(|m| (0..rows).map(move |row| (m, row)))
            .map(|(m, row)| {
                let row = &bytes[row * row_bytes..][..row_bytes];
                plain_blocks(format, matrix.segments, row, &x[m * columns..][..columns])
            })
            .collect();
        check_tiers(&matrix, &x, rows, &right)?;
        // The cut may fall between or within groups of interleaved tiles.
        let tiles = matrix.tiles();
        let cut = cut % (tiles + 1);
        let [whole, mut first, second] = [0..tiles, 0..cut, cut..tiles]
            .map(|tiles| product(Tier::best(), &matrix, &x, tiles));
        let rows = first.chunks_mut(matrix.padded()).zip(second.chunks(matrix.padded()));
        rows.for_each(|(first, second)| first[cut * 16..].copy_from_slice(&second[cut * 16..]));
        prop_assert_eq!(bits(&first), bits(&whole));
    }

    /// An activation is off by at most half a step, a 254th of the largest in its block. The sums
    /// in f32 add a rounding for each block.
    #[test]
    fn products_are_within_half_a_step_of_the_activations(
        format in prop::sample::select(BLOCKS.to_vec()), seed: u64,
    ) {
        let (rows, blocks, unit) = (3, 5, format.unit());
        let matrix = packed_blocks(format, &drawn_blocks(format, rows * blocks, seed, None), rows);
        let x = draw(blocks * unit, !seed);
        let found = product(Tier::best(), &matrix, &x, 0..matrix.tiles());
        let mut weights = vec![0.0; blocks * unit];
        for (row, found) in found.iter().take(rows).enumerate() {
            matrix.row(row, &mut weights);
            let (mut right, mut bound) = (0.0, 0.0);
            for (weights, x) in weights.chunks(unit).zip(x.chunks(unit)) {
                let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                for (weight, x) in weights.iter().zip(x).map(|(w, x)| (f64::from(*w), f64::from(*x))) {
                    right += weight * x;
                    bound += weight.abs() * (f64::from(largest) / 254.0 * 1.001 + x.abs() * 1e-6);
                }
            }
            let error = (f64::from(*found) - right).abs();
            prop_assert!(error <= bound, "{}: {} > {}", format, error, bound);
        }
    }
}

/// A row alone, the same row among 64, and the same columns on ranks.
#[test]
fn rows_and_ranks_do_not_change_a_bit() {
    for format in BLOCKS {
        let (rows, columns) = (40, 8 * format.unit());
        let bytes = drawn_blocks(format, rows * 8, 11, None);
        let whole = packed_blocks(format, &bytes, rows);
        let x = draw(64 * columns, 12);
        let all = product(Tier::best(), &whole, &x, 0..whole.tiles());
        for m in [0, 1, 31, 63] {
            let alone =
                product(Tier::best(), &whole, &x[m * columns..][..columns], 0..whole.tiles());
            let among = &all[m * whole.padded()..][..whole.padded()];
            assert_eq!(bits(&alone), bits(among), "{format}");
        }
        // Two ranks have half of the columns, and half of the eight segments, each.
        let (size, half) = (format.block_in_file().1, columns / 2);
        let part = |rank: usize| {
            let rows = bytes.chunks(8 * size).map(|row| &row[rank * 4 * size..][..4 * size]);
            let mut matrix = Matrix::zeroed(format, 40, half, 4).unwrap();
            let bytes = rows.collect::<Vec<_>>().concat();
            let source = Source { name: "w", format, bytes: &bytes };
            let compute = (&mut ThreadPool::new(1), Tier::best());
            matrix.pack(compute, &[source], |row| (row < 40).then_some((0, row))).unwrap();
            product(Tier::best(), &matrix, &x[rank * half..][..half], 0..matrix.tiles())
        };
        let sum: Vec<f32> = part(0).iter().zip(part(1)).map(|(a, b)| a + b).collect();
        assert_eq!(bits(&sum), bits(&all[..whole.padded()]), "{format}");
    }
}

#[test]
fn factors_that_are_no_numbers_are_refused() {
    for format in BLOCKS {
        let mut bytes = drawn_blocks(format, 3, 5, None);
        let (count, size) = format.block_in_file();
        let at = match format {
            Format::Q2K => 80,
            Format::Q3K => 108,
            Format::Q6K => 208,
            _ => 0,
        };
        bytes[size + at..][..2].copy_from_slice(&[0xff, 0xff]);
        let mut matrix = Matrix::zeroed(format, 3, count, 1).unwrap();
        let source = Source { name: "w", format, bytes: &bytes };
        let compute = (&mut ThreadPool::new(1), Tier::best());
        let packed = matrix.pack(compute, &[source], |row| (row < 3).then_some((0, row)));
        let why = packed.unwrap_err().to_string();
        assert!(why.contains("row 1 of w"), "{format}: {why}");
    }
}

/// candle has its own reader of ggml's blocks.
#[test]
fn rows_of_blocks_are_those_that_candle_reads() {
    use candle_core::Device;
    use candle_core::quantized::{GgmlDType, QStorage, QTensor};

    let (rows, blocks) = (90, 3);
    for (format, theirs) in [
        (Format::Q8_0, GgmlDType::Q8_0),
        (Format::Q4_0, GgmlDType::Q4_0),
        (Format::Q4_1, GgmlDType::Q4_1),
        (Format::Q5_0, GgmlDType::Q5_0),
        (Format::Q5_1, GgmlDType::Q5_1),
        (Format::Q2K, GgmlDType::Q2K),
        (Format::Q3K, GgmlDType::Q3K),
        (Format::Q4K, GgmlDType::Q4K),
        (Format::Q5K, GgmlDType::Q5K),
        (Format::Q6K, GgmlDType::Q6K),
    ] {
        let columns = blocks * 256;
        let bytes = drawn_blocks(format, rows * columns / format.unit(), 9, None);
        let storage = QStorage::from_data(bytes.clone().into(), &Device::Cpu, theirs).unwrap();
        let tensor = QTensor::new(storage, (rows, columns)).unwrap();
        let tensor = tensor.dequantize(&Device::Cpu).unwrap();
        let right: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
        let matrix = packed_blocks(format, &bytes, rows);
        let source = Source { name: "w", format, bytes: &bytes };
        for row in 0..rows {
            let (mut kept, mut read) = (vec![0.0; columns], vec![0.0; columns]);
            matrix.row(row, &mut kept);
            source.read(row, &mut read);
            let right = &right[row * columns..][..columns];
            for (column, right) in right.iter().enumerate() {
                let near = |x: f32| (x - right).abs() <= 1e-6 * (1.0 + right.abs());
                let (kept, read) = (kept[column], read[column]);
                assert!(near(kept) && near(read), "{format} {row} {column}: {kept} {read} {right}");
            }
        }
    }
}
