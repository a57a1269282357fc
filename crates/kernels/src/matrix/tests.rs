//! Bit-equality tests of matrix products: every tier, format, shape and row count against a plain
//! definition.

use half::{bf16, f16};
use proptest::prelude::*;

use super::tile::{Input, Multiply, Quantized, Store};
use super::{KQuantBlock, Matrix, Source, segments};
use crate::format::Format;
use crate::kquants;
use crate::row::{BLOCK, InBlocks, quantize};
use crate::simd::{Lanes, Tier};
use crate::thread_pool::ThreadPool;

type Quantize<'a> = InBlocks<'a, i32, BLOCK, BLOCK>;
type QuantizeWide<'a, const SUMMED: usize> = InBlocks<'a, i16, { kquants::BLOCK }, SUMMED>;

struct Into<'a>(&'a mut [f32], usize);

impl Store for Into<'_> {
    #[inline(always)]
    fn store(&mut self, row: usize, tile: usize, lanes: &Lanes) {
        self.0[row * self.1 + tile * 16..][..16].copy_from_slice(lanes);
    }
}

fn draw(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bf16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0).to_f32()
    };
    (0..count).map(|_| next()).collect()
}

fn packed(format: Format, weights: &[f32], rows: usize) -> Matrix {
    let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let columns = weights.len() / rows;
    let mut matrix = Matrix::zeroed(format, rows, columns, segments(format, columns)).unwrap();
    let source = Source { name: "w", format: Format::F32, bytes: &bytes };
    let place = |row| (row < rows).then_some((0, row));
    matrix.pack((&mut ThreadPool::new(2), Tier::best()), &[source], place).unwrap();
    matrix
}

/// Computes the product number by number, as the definition says.
fn plain(matrix: &Matrix, x: &[f32], row: usize) -> f32 {
    let columns = matrix.columns;
    let mut weights = vec![0.0; columns];
    matrix.row(row, &mut weights);
    let length = columns / matrix.segments;
    let mut sums: Vec<f32> = (0..matrix.segments)
        .map(|segment| {
            let part = segment * length..(segment + 1) * length;
            let mut sum = 0.0f32;
            if matrix.format() == Format::Q8_0 {
                for block in part.step_by(BLOCK) {
                    let (mut a, mut w) = ([0; BLOCK], [0; BLOCK]);
                    let of_x = quantize(x[block..block + BLOCK].try_into().unwrap(), &mut a);
                    let raw: &[f32; BLOCK] = weights[block..block + BLOCK].try_into().unwrap();
                    let largest = raw.iter().fold(0.0f32, |most, w| most.max(w.abs()));
                    let of_w = largest / 127.0;
                    for (w, raw) in w.iter_mut().zip(raw) {
                        *w = (raw / of_w.max(f32::MIN_POSITIVE)).round() as i8;
                    }
                    let product: i32 =
                        a.iter().zip(w).map(|(a, w)| i32::from(*a) * i32::from(w)).sum();
                    sum = (product as f32).mul_add(of_w * of_x, sum);
                }
            } else {
                for k in part {
                    sum = weights[k].mul_add(x[k], sum);
                }
            }
            sum
        })
        .collect();
    while sums.len() > 1 {
        sums = sums.chunks(2).map(|pair| pair[0] + pair[1]).collect();
    }
    sums[0]
}

fn product(tier: Tier, matrix: &Matrix, x: &[f32], tiles: std::ops::Range<usize>) -> Vec<f32> {
    let rows = x.len() / matrix.columns;
    let mut out = vec![0.0; rows * matrix.padded()];
    let (columns, blocks) = (matrix.columns, x.len() / BLOCK);
    let (mut values, mut scales, mut sums) = (vec![0; x.len()], vec![0.0; blocks], vec![0; blocks]);
    let mut wide_sums = vec![0; x.len() / 16];
    let input = match matrix.format() {
        Format::Q8_0 => {
            let (values, scales, sums) = (&mut values, &mut scales, &mut sums);
            tier.run(Quantize { x, values, scales, sums });
            Input::Quantized(Quantized { columns, values, scales, sums })
        }
        format @ (Format::Q4K | Format::Q5K | Format::Q6K) => {
            let (values, scales, sums) = (&mut values, &mut scales, &mut wide_sums);
            if format == Format::Q6K {
                tier.run(QuantizeWide::<16> { x, values, scales, sums });
            } else {
                tier.run(QuantizeWide::<32> { x, values, scales, sums });
            }
            Input::Wide(Quantized { columns, values, scales, sums })
        }
        _ => Input::Float { x, stride: matrix.columns },
    };
    let store = Into(&mut out, matrix.padded());
    tier.run(Multiply { matrix, tiles, input, rows, store });
    out
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_tier_and_number_of_rows_gives_the_bits_of_the_definition(
        format in prop::sample::select(vec![Format::F32, Format::Bf16, Format::F16, Format::Q8_0]),
        rows in 1..40usize, blocks in 1..9usize, activations in 1..80usize, odd in 0..3usize,
        seed: u64,
    ) {
        let columns = if format == Format::Q8_0 { blocks * BLOCK } else { blocks * 16 + odd };
        let matrix = packed(format, &draw(rows * columns, seed), rows);
        let x = draw(activations * columns, !seed);
        let right: Vec<f32> = (0..activations)
            .flat_map(|m| (0..rows).map(move |row| (m, row)))
            .map(|(m, row)| plain(&matrix, &x[m * columns..][..columns], row))
            .collect();
        for tier in Tier::available() {
            let all = product(tier, &matrix, &x, 0..matrix.tiles());
            let out: Vec<f32> =
                all.chunks(matrix.padded()).flat_map(|row| row[..rows].to_vec()).collect();
            prop_assert_eq!(bits(&out), bits(&right), "{:?}", tier);
        }
    }
}

const WIDE: [Format; 3] = [Format::Q4K, Format::Q5K, Format::Q6K];

/// Draws blocks of random bits with finite scales. With `extreme`, all values are the largest.
fn drawn_blocks(format: Format, count: usize, seed: u64, extreme: bool) -> Vec<u8> {
    let size = format.block_in_file().1;
    let mut bytes: Vec<u8> =
        draw(count * size, seed).iter().map(|x| (x * 128.0) as i8 as u8).collect();
    if extreme {
        bytes.fill(0xff);
    }
    let d = if format == Format::Q6K { vec![208] } else { vec![0, 2] };
    for (block, sign) in bytes.chunks_mut(size).zip([1.0, -1.0].into_iter().cycle()) {
        for (at, scale) in d.iter().zip([0.03, 0.011]) {
            block[*at..at + 2].copy_from_slice(&f16::from_f32(sign * scale).to_le_bytes());
        }
        if extreme && format == Format::Q6K {
            block[192..208].fill(0x80);
        }
    }
    bytes
}

fn packed_blocks(format: Format, bytes: &[u8], rows: usize) -> Matrix {
    let (count, size) = format.block_in_file();
    let columns = bytes.len() / size / rows * count;
    let mut matrix = Matrix::zeroed(format, rows, columns, segments(format, columns)).unwrap();
    let source = Source { name: "w", format, bytes };
    let place = |row| (row < rows).then_some((0, row));
    matrix.pack((&mut ThreadPool::new(2), Tier::best()), &[source], place).unwrap();
    matrix
}

/// Computes the product by the definition, from a row's blocks in the file's layout.
fn plain_wide(format: Format, segments: usize, row: &[u8], x: &[f32]) -> f32 {
    let blocks: Vec<_> =
        row.chunks(format.block_in_file().1).zip(x.chunks(kquants::BLOCK)).collect();
    let product = |sum: f32, (bytes, x): &(&[u8], &[f32])| {
        let block = KQuantBlock::read(format, bytes);
        let mut a = [0; kquants::BLOCK];
        let of_x = quantize::<{ kquants::BLOCK }>((*x).try_into().unwrap(), &mut a);
        let (mut values, mut least) = (0i64, 0i64);
        for (column, a) in a.into_iter().enumerate() {
            let (value, a) = (i64::from(block.values[column]), i64::from(a));
            if format == Format::Q6K {
                values += i64::from(block.scales[column / 16]) * (value - 32) * a;
            } else {
                values += i64::from(block.scales[column / 32]) * value * a;
                least += i64::from(block.least[column / 32]) * a;
            }
        }
        let [d, min] = [block.d, block.min].map(|bits| f16::from_bits(bits).to_f32());
        let sum = (values as f32).mul_add(d * of_x, sum);
        if format == Format::Q6K { sum } else { (least as f32).mul_add(-min * of_x, sum) }
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
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_tier_gives_the_bits_of_the_definition_of_wide_blocks(
        kind in 0..3usize, rows in 1..100usize, blocks in 1..9usize, activations in 1..11usize,
        extreme in prop::bool::weighted(0.2), cut in 0..8usize, seed: u64,
    ) {
        let format = WIDE[kind];
        let bytes = drawn_blocks(format, rows * blocks, seed, extreme);
        let matrix = packed_blocks(format, &bytes, rows);
        let columns = blocks * kquants::BLOCK;
        let mut x = draw(activations * columns, !seed);
        if extreme {
            // With equal magnitudes, all activations quantize to 127 or -127.
            x.iter_mut().for_each(|x| *x = 0.5f32.copysign(*x));
        }
        let row_bytes = bytes.len() / rows;
        let right: Vec<f32> = (0..activations)
            .flat_map(|m| (0..rows).map(move |row| (m, row)))
            .map(|(m, row)| {
                let row = &bytes[row * row_bytes..][..row_bytes];
                plain_wide(format, matrix.segments, row, &x[m * columns..][..columns])
            })
            .collect();
        for tier in Tier::available() {
            let all = product(tier, &matrix, &x, 0..matrix.tiles());
            let out: Vec<f32> =
                all.chunks(matrix.padded()).flat_map(|row| row[..rows].to_vec()).collect();
            prop_assert_eq!(bits(&out), bits(&right), "{:?}", tier);
        }
        // The cut may fall between or within groups of interleaved tiles.
        let tiles = matrix.tiles();
        let cut = cut % (tiles + 1);
        let [whole, mut first, second] = [0..tiles, 0..cut, cut..tiles]
            .map(|tiles| product(Tier::best(), &matrix, &x, tiles));
        let rows = first.chunks_mut(matrix.padded()).zip(second.chunks(matrix.padded()));
        rows.for_each(|(first, second)| first[cut * 16..].copy_from_slice(&second[cut * 16..]));
        prop_assert_eq!(bits(&first), bits(&whole));
    }
}

/// candle has its own reader of ggml's blocks.
#[test]
fn rows_of_blocks_are_those_that_candle_reads() {
    use candle_core::Device;
    use candle_core::quantized::{GgmlDType, QStorage, QTensor};

    let small = |count: usize| -> Vec<u8> {
        let one = |at: usize| -> Vec<u8> {
            let d = f16::from_f32(0.01 * (at as f32 - 1.5)).to_le_bytes();
            d.into_iter().chain((0..32).map(|k| (k * 37 + at * 11) as u8 | 1)).collect()
        };
        (0..count).flat_map(one).collect()
    };
    let (rows, blocks) = (90, 3);
    for (format, theirs) in [
        (Format::Q8_0, GgmlDType::Q8_0),
        (Format::Q4K, GgmlDType::Q4K),
        (Format::Q5K, GgmlDType::Q5K),
        (Format::Q6K, GgmlDType::Q6K),
    ] {
        let bytes = match format {
            Format::Q8_0 => small(rows * blocks * 8),
            _ => drawn_blocks(format, rows * blocks, 9, false),
        };
        let columns = blocks * 256;
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

#[test]
fn weights_of_16_bits_give_the_bits_of_the_same_weights_in_f32() {
    for columns in [64, 90, 33] {
        let weights = draw(20 * columns, 3);
        let x = draw(3 * columns, 4);
        let of = |format| {
            let matrix = packed(format, &weights, 20);
            bits(&product(Tier::best(), &matrix, &x, 0..matrix.tiles()))
        };
        assert_eq!(of(Format::F32), of(Format::Bf16));
        assert_eq!(of(Format::F32), of(Format::F16));
    }
}

#[test]
fn a_row_is_found_again_and_q8_0_is_within_its_step() {
    let weights = draw(20 * 64, 5);
    let mut row = vec![0.0; 64];
    for format in [Format::F32, Format::Bf16, Format::F16, Format::Q8_0] {
        let matrix = packed(format, &weights, 20);
        for index in 0..20 {
            matrix.row(index, &mut row);
            for (found, weight) in row.iter().zip(&weights[index * 64..]) {
                let step = if format == Format::Q8_0 { 0.5 / 127.0 + 1e-3 } else { 0.0 };
                assert!((found - weight).abs() <= step, "{format:?}: {found} for {weight}");
            }
        }
    }
}

#[test]
fn a_format_is_as_wide_as_what_it_takes() {
    use Format::{Bf16, F16, F32, Q4K, Q5K, Q6K, Q8_0};
    for format in [F32, Bf16, F16, Q8_0, Q4K, Q5K, Q6K] {
        let bytes = Matrix::zeroed(format, 64, 512, 1).unwrap().bytes() as f64;
        assert_eq!(format.width() * 64.0 * 512.0, bytes, "{format:?}");
    }
}

#[test]
fn what_cannot_be_packed_is_refused() {
    assert!(Matrix::zeroed(Format::Q8_0, 16, 48, 1).is_err());
    let bytes = [1e9f32; 256].map(f32::to_le_bytes).concat();
    let why = |of: Format, columns| {
        let mut matrix = Matrix::zeroed(of, 1, columns, 1).unwrap();
        let source = Source { name: "w", format: Format::F32, bytes: &bytes };
        let place = |row| (row == 0).then_some((0, row));
        let packed = matrix.pack((&mut ThreadPool::new(1), Tier::best()), &[source], place);
        packed.unwrap_err().to_string()
    };
    assert!(why(Format::Q8_0, 32).contains("row 0 of w"));
    assert!(why(Format::Q4K, 256).contains("the dtype of w"));
}

#[test]
fn rows_of_an_output_that_overlap_are_refused() {
    use super::{Activations, Output, QuantizationBuffers};

    let matrix = packed(Format::F32, &draw(20 * 8, 6), 20);
    let x = draw(2 * 8, 7);
    let mut out = vec![0.0; 2 * matrix.padded()];
    let mut multiply = |stride, first| {
        let output = Output::new(&mut out, stride).at(first);
        let compute = (&mut ThreadPool::new(2), Tier::best());
        let x = Activations { numbers: &x, stride: 8 };
        let run = || matrix.multiply(compute, x, 2, &mut QuantizationBuffers::default(), output);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_ok()
    };
    assert!(multiply(matrix.padded(), 0));
    assert!(!multiply(matrix.padded() - 1, 0));
    assert!(!multiply(matrix.padded(), 1));
}
