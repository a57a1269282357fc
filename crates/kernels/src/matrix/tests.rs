//! Bit-equality tests of matrix products: every tier, format, shape and row count against a plain
//! definition.

use half::bf16;
use proptest::prelude::*;

mod blocks;
mod vectors;

use super::activations::Quantized;
use super::matmul::Part;
use super::tile::{Input, Multiply};
use super::{Activations, Epilogue, Matrix, Output, QuantizationBuffers, Source, segments};
use crate::disjoint_slice::DisjointSlice;
use crate::format::Format;
use crate::kquants;
use crate::rowwise::{BLOCK, InBlocks, quantize};
use crate::simd::{Bf16Order, Tier};
use crate::thread_pool::ThreadPool;

type Quantize<'a> = InBlocks<'a, i32, BLOCK, BLOCK>;
type QuantizeWide<'a, const SUMMED: usize> = InBlocks<'a, i16, { kquants::BLOCK }, SUMMED>;

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
    packed_for(Tier::Portable, format, weights, rows)
}

fn packed_for(tier: Tier, format: Format, weights: &[f32], rows: usize) -> Matrix {
    let columns = weights.len() / rows;
    let matrix = Matrix::zeroed(format, rows, columns, segments(format, columns)).unwrap();
    filled(matrix.for_tier(tier), weights)
}

fn filled(mut matrix: Matrix, weights: &[f32]) -> Matrix {
    let rows = matrix.rows();
    let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
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

/// Computes the product in bf16 number by number, as the definition says.
fn plain_in_bf16(matrix: &Matrix, order: Bf16Order, x: &[f32], row: usize) -> f32 {
    let mut weights = vec![0.0; matrix.columns];
    matrix.row(row, &mut weights);
    let x: Vec<f32> = x.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
    let length = matrix.columns / matrix.segments;
    let mut sums: Vec<f32> = (0..matrix.segments)
        .map(|segment| {
            let product = |sum: f32, k: usize| weights[k].mul_add(x[k], sum);
            let columns: Vec<usize> = (segment * length..(segment + 1) * length).collect();
            match order {
                Bf16Order::Pairs => columns
                    .chunks(2)
                    .fold(0.0, |sum, pair| pair.iter().rev().fold(sum, |sum, k| product(sum, *k))),
                Bf16Order::Blocks => columns.chunks(32).fold(0.0, |sum, block| {
                    let [first, second] = [0, 1].map(|at| {
                        block.iter().skip(at).step_by(2).fold(0.0, |sum, k| product(sum, *k))
                    });
                    sum + (first + second)
                }),
            }
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
    let input = match matrix.format().unit() {
        2 => Input::Float { x, stride: matrix.columns },
        BLOCK => {
            let (values, scales, sums) = (&mut values, &mut scales, &mut sums);
            tier.run(Quantize { x, values, scales, sums });
            Input::Quantized(Quantized { columns, values, scales, sums })
        }
        _ => {
            let (values, scales, sums) = (&mut values, &mut scales, &mut wide_sums);
            if matches!(matrix.format(), Format::Q2K | Format::Q3K | Format::Q6K) {
                tier.run(QuantizeWide::<16> { x, values, scales, sums });
            } else {
                tier.run(QuantizeWide::<32> { x, values, scales, sums });
            }
            Input::Wide(Quantized { columns, values, scales, sums })
        }
    };
    let (stride, out_parts) = (matrix.padded(), DisjointSlice::new(&mut out));
    let store = Part { out: &out_parts, stride, first: 0, epilogue: Epilogue::Set };
    Multiply { matrix, tiles, input, rows, store }.run(tier);
    out
}

/// Checks that each tier computes these products of all rows, to the bit.
fn check_tiers(
    matrix: &Matrix,
    x: &[f32],
    rows: usize,
    right: &[f32],
) -> Result<(), TestCaseError> {
    for tier in Tier::available() {
        let all = product(tier, matrix, x, 0..matrix.tiles());
        let out: Vec<f32> =
            all.chunks(matrix.padded()).flat_map(|row| row[..rows].to_vec()).collect();
        prop_assert_eq!(bits(&out), bits(right), "{:?}", tier);
        // A whole product may use other instructions.
        let out = multiplied(tier, 2, matrix, x);
        prop_assert_eq!(bits(&out), bits(right), "{:?}", tier);
    }
    Ok(())
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_tier_and_number_of_rows_gives_the_bits_of_the_definition(
        format in prop::sample::select(vec![Format::F32, Format::Bf16, Format::F16, Format::Q8_0]),
        layout in prop::sample::select(vec![Tier::Portable, Tier::Avx512]),
        rows in 1..90usize, blocks in 1..9usize, activations in 1..80usize, odd in 0..3usize,
        seed: u64,
    ) {
        let columns = if format == Format::Q8_0 { blocks * BLOCK } else { blocks * 16 + odd };
        let weights = draw(rows * columns, seed);
        let matrix = packed_for(layout, format, &weights, rows);
        let x = draw(activations * columns, !seed);
        let right: Vec<f32> = (0..activations)
            .flat_map(|m| (0..rows).map(move |row| (m, row)))
            .map(|(m, row)| plain(&matrix, &x[m * columns..][..columns], row))
            .collect();
        check_tiers(&matrix, &x, rows, &right)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn products_in_bf16_have_the_bits_of_the_definition_for_any_number_of_rows(
        order in prop::sample::select(vec![Bf16Order::Pairs, Bf16Order::Blocks]),
        rows in 1..90usize, pairs in 1..80usize, activations in 0..60usize, seed: u64,
    ) {
        let columns = 2 * pairs;
        let weights = draw(rows * columns, seed);
        let format = Format::Bf16;
        let matrix = Matrix::zeroed(format, rows, columns, segments(format, columns)).unwrap();
        let matrix = filled(matrix.in_bf16(order), &weights);
        // Activations that are no bf16 numbers: they are rounded.
        let x: Vec<f32> = draw(activations * columns, !seed).iter().map(|x| x * 1.37).collect();
        let right: Vec<f32> = (0..activations)
            .flat_map(|m| (0..rows).map(move |row| (m, row)))
            .map(|(m, row)| plain_in_bf16(&matrix, order, &x[m * columns..][..columns], row))
            .collect();
        for tier in Tier::available() {
            for threads in [1, 3] {
                let out = multiplied(tier, threads, &matrix, &x);
                prop_assert_eq!(bits(&out), bits(&right), "{:?}", tier);
            }
        }
    }
}

/// Returns the rows of the product on some threads, without padding.
fn multiplied(tier: Tier, threads: usize, matrix: &Matrix, x: &[f32]) -> Vec<f32> {
    let (stride, rows) = (matrix.padded(), x.len() / matrix.columns);
    let mut out = vec![0.0; rows * stride];
    let x = Activations { numbers: x, stride: matrix.columns };
    let (mut pool, mut buffers) = (ThreadPool::new(threads), QuantizationBuffers::default());
    let output = Output::new(&mut out, stride);
    matrix.multiply((&mut pool, tier), x, rows, &mut buffers, output);
    out.chunks(stride).flat_map(|row| row[..matrix.rows].to_vec()).collect()
}

#[test]
fn only_weights_in_bf16_have_products_in_bf16() {
    let (weights, x) = (draw(20 * 64, 3), draw(3 * 64, 4));
    for format in [Format::F32, Format::Bf16, Format::F16, Format::Q8_0] {
        let matrix = Matrix::zeroed(format, 20, 64, segments(format, 64)).unwrap();
        let matrix = filled(matrix.in_bf16(Bf16Order::Pairs), &weights);
        assert_eq!(matrix.bf16_order().is_some(), format == Format::Bf16);
        let found = bits(&multiplied(Tier::best(), 2, &matrix, &x));
        let other = bits(&multiplied(Tier::best(), 2, &packed(format, &weights, 20), &x));
        assert_eq!(found != other, format == Format::Bf16, "{format:?}");
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
    for format in Format::ALL {
        let matrix = Matrix::zeroed(format, 64, 512, 1).unwrap();
        assert_eq!(format.width() * 64.0 * 512.0, matrix.bytes() as f64, "{format:?}");
        assert_eq!(format.in_memory(), matrix.format());
    }
}

#[test]
fn what_cannot_be_packed_is_refused() {
    for format in Format::ALL.into_iter().filter(|format| format.unit() > 2) {
        assert!(Matrix::zeroed(format, 16, 3 * format.unit() / 2, 1).is_err(), "{format:?}");
    }
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
    assert!(why(Format::Q4_0, 256).contains("the dtype of w"));
}

#[test]
fn rows_of_an_output_that_overlap_are_refused() {
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
