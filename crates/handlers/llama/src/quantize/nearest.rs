//! Conversion of weights to the formats that `nsbridge model quantize` does not write, for tests and
//! benchmarks: each block is rounded to nearest, with the scale that its largest weight gives.

use half::f16;
use nsbridge_checkpoint::Dtype;
use nsbridge_handler::Model;
use std::fs::File;

use super::{Kind, QuantizeError, blocks, write};
use crate::config::Config;
use nsbridge_kernels::Format;

/// Weights of a block of 32, of one of 256, and of a part of it.
const BLOCK32: usize = 32;
const BLOCK256: usize = 256;
const PART_WEIGHTS: usize = 16;

/// Levels of IQ4_NL and IQ4_XS.
const LEVELS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// Doubled numbers of MXFP4.
const DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Writes a model as GGUF, with all matrices in one format. Matrices whose columns do not fill its
/// blocks are in Q8_0 or F16.
///
/// # Errors
///
/// Returns the errors of [`quantize`](crate::quantize).
pub fn write_in(model: &Model, format: Format, file: &File) -> Result<u64, QuantizeError> {
    let dtype = |_: &Config, _: &str, shape: &[usize]| match *shape {
        [_, columns] => {
            let fits = |dtype: &Dtype| columns.is_multiple_of(dtype.block().0);
            [dtype_of(format), Dtype::Q8_0].into_iter().find(fits).unwrap_or(Dtype::F16)
        }
        _ => Dtype::F32,
    };
    let convert = |weights: &[f32], dtype, out: &mut Vec<u8>| {
        convert(weights, dtype, out) || blocks::convert(weights, dtype, out)
    };
    write(model, Kind { number: number(format), dtype: &dtype, convert }, file, |_| {})
}

/// Returns the number of a file whose matrices are mostly in this format: `llama_ftype` in llama.h.
fn number(format: Format) -> u32 {
    match format {
        Format::F32 | Format::Q8_1 => 0,
        Format::F16 => 1,
        Format::Q4_0 => 2,
        Format::Q4_1 => 3,
        Format::Q8_0 => 7,
        Format::Q5_0 => 8,
        Format::Q5_1 => 9,
        Format::Q2K => 10,
        Format::Q3K => 12,
        Format::Q4K => 15,
        Format::Q5K => 17,
        Format::Q6K => 18,
        Format::Iq4Nl => 25,
        Format::Iq4Xs => 30,
        Format::Bf16 => 32,
        Format::Mxfp4 => 38,
    }
}

fn dtype_of(format: Format) -> Dtype {
    match format {
        Format::F32 => Dtype::F32,
        Format::F16 => Dtype::F16,
        Format::Bf16 => Dtype::BF16,
        Format::Q8_0 => Dtype::Q8_0,
        Format::Q8_1 => Dtype::Q8_1,
        Format::Q4_0 => Dtype::Q4_0,
        Format::Q4_1 => Dtype::Q4_1,
        Format::Q5_0 => Dtype::Q5_0,
        Format::Q5_1 => Dtype::Q5_1,
        Format::Iq4Nl => Dtype::IQ4_NL,
        Format::Mxfp4 => Dtype::MXFP4,
        Format::Q2K => Dtype::Q2_K,
        Format::Q3K => Dtype::Q3_K,
        Format::Q4K => Dtype::Q4_K,
        Format::Q5K => Dtype::Q5_K,
        Format::Q6K => Dtype::Q6_K,
        Format::Iq4Xs => Dtype::IQ4_XS,
    }
}

/// Appends the weights in a format to `out`. The weights are finite and fill whole blocks. Returns
/// false if the format is none of this module's.
fn convert(weights: &[f32], dtype: Dtype, out: &mut Vec<u8>) -> bool {
    let short: fn(&[f32; BLOCK32], &mut Vec<u8>) = match dtype {
        Dtype::Q8_1 => q8_1,
        Dtype::Q4_0 => q4_0,
        Dtype::Q4_1 => q4_1,
        Dtype::Q5_0 => q5_0,
        Dtype::Q5_1 => q5_1,
        Dtype::IQ4_NL => iq4_nl,
        Dtype::MXFP4 => mxfp4,
        Dtype::Q2_K | Dtype::Q3_K | Dtype::IQ4_XS => {
            let wide: fn(&[f32; BLOCK256], &mut Vec<u8>) = match dtype {
                Dtype::Q2_K => q2_k,
                Dtype::Q3_K => q3_k,
                _ => iq4_xs,
            };
            weights.as_chunks().0.iter().for_each(|block| wide(block, out));
            return true;
        }
        _ => return false,
    };
    weights.as_chunks().0.iter().for_each(|block| short(block, out));
    true
}

/// Returns the weight with the largest magnitude.
fn widest(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |most: f32, x| if x.abs() > most.abs() { *x } else { most })
}

/// Returns the least weight, zero at most, and the largest, zero at least.
fn ends(weights: &[f32]) -> (f32, f32) {
    weights.iter().fold((0.0, 0.0), |(least, most): (f32, f32), x| (least.min(*x), most.max(*x)))
}

/// Rounds a scale to f16, appends it, and returns what it became.
fn put(scale: f32, out: &mut Vec<u8>) -> f32 {
    let scale = f16::from_f32(scale);
    out.extend(scale.to_le_bytes());
    scale.to_f32()
}

/// Rounds `x / scale` to the nearest integer between these.
fn steps(x: f32, scale: f32, least: i32, most: i32) -> i32 {
    if scale == 0.0 {
        0.clamp(least, most)
    } else {
        ((x / scale).round() as i32).clamp(least, most)
    }
}

/// Returns the place of the number nearest to `x / scale`.
fn place(table: &[f32; 16], x: f32, scale: f32) -> u8 {
    let wanted = if scale == 0.0 { 0.0 } else { x / scale };
    let apart = |at: &usize| (table[*at] - wanted).abs();
    (0..16).min_by(|a, b| apart(a).total_cmp(&apart(b))).unwrap_or(0) as u8
}

/// Appends four bits of each value: the first half in the low nibbles.
fn nibbles(values: &[u8; BLOCK32], out: &mut Vec<u8>) {
    out.extend((0..BLOCK32 / 2).map(|k| values[k] & 15 | values[k + BLOCK32 / 2] << 4));
}

/// Appends the upper bits of five-bit values, then their lower ones.
fn fives(values: &[u8; BLOCK32], out: &mut Vec<u8>) {
    let high = (0..BLOCK32).fold(0u32, |bits, k| bits | u32::from(values[k] >> 4 & 1) << k);
    out.extend(high.to_le_bytes());
    nibbles(values, out);
}

fn q8_1(weights: &[f32; BLOCK32], out: &mut Vec<u8>) {
    let d = put(widest(weights).abs() / 127.0, out);
    let values = weights.map(|x| steps(x, d, -127, 127));
    put(d * values.iter().sum::<i32>() as f32, out);
    out.extend(values.map(|value| value as i8 as u8));
}

fn q4_0(weights: &[f32; BLOCK32], out: &mut Vec<u8>) {
    let d = put(widest(weights) / -8.0, out);
    nibbles(&weights.map(|x| (steps(x, d, -8, 7) + 8) as u8), out);
}

fn q4_1(weights: &[f32; BLOCK32], out: &mut Vec<u8>) {
    let (least, most) = ends(weights);
    let (d, min) = (put((most - least) / 15.0, out), put(least, out));
    nibbles(&weights.map(|x| steps(x - min, d, 0, 15) as u8), out);
}

fn q5_0(weights: &[f32; BLOCK32], out: &mut Vec<u8>) {
    let d = put(widest(weights) / -16.0, out);
    fives(&weights.map(|x| (steps(x, d, -16, 15) + 16) as u8), out);
}

fn q5_1(weights: &[f32; BLOCK32], out: &mut Vec<u8>) {
    let (least, most) = ends(weights);
    let (d, min) = (put((most - least) / 31.0, out), put(least, out));
    fives(&weights.map(|x| steps(x - min, d, 0, 31) as u8), out);
}

fn iq4_nl(weights: &[f32; BLOCK32], out: &mut Vec<u8>) {
    let d = put(widest(weights) / LEVELS[0], out);
    nibbles(&weights.map(|x| place(&LEVELS, x, d)), out);
}

/// The largest weight gets the exponent of the largest floats, 4 and 6.
fn mxfp4(weights: &[f32; BLOCK32], out: &mut Vec<u8>) {
    let largest = widest(weights).abs();
    let power = if largest > 0.0 { largest.log2().floor() as i32 - 2 } else { -127 };
    let power = power.clamp(-127, 124);
    out.push((power + 127) as u8);
    nibbles(&weights.map(|x| place(&DOUBLED, x, 2f32.powi(power) / 2.0)), out);
}

/// Appends two bits of each value: of each 128 columns, four parts of 32 share a byte.
fn pairs(values: &[u8; BLOCK256], out: &mut Vec<u8>) {
    for half in values.as_chunks::<128>().0 {
        out.extend(
            (0..32).map(|k| {
                (0..4).fold(0, |byte, part| byte | (half[32 * part + k] & 3) << (2 * part))
            }),
        );
    }
}

fn q2_k(weights: &[f32; BLOCK256], out: &mut Vec<u8>) {
    let parts = weights.as_chunks::<PART_WEIGHTS>().0;
    let ends: Vec<(f32, f32)> = parts.iter().map(|part| ends(part)).collect();
    let (mut widest, mut least) = (0.0f32, 0.0f32);
    for (from, to) in &ends {
        (widest, least) = (widest.max((to - from) / 3.0), least.max(-from));
    }
    let mut factors = Vec::new();
    let (d, min) = (put(widest / 15.0, &mut factors), put(least / 15.0, &mut factors));
    let mut values = [0; BLOCK256];
    for ((part, (from, to)), values) in
        parts.iter().zip(ends).zip(values.as_chunks_mut::<PART_WEIGHTS>().0)
    {
        let scale = steps((to - from) / 3.0, d, 0, 15);
        let below = steps(-from, min, 0, 15);
        out.push((scale | below << 4) as u8);
        let (step, below) = (d * scale as f32, min * below as f32);
        *values = part.map(|x| steps(x + below, step, 0, 3) as u8);
    }
    pairs(&values, out);
    out.extend(factors);
}

fn q3_k(weights: &[f32; BLOCK256], out: &mut Vec<u8>) {
    let parts = weights.as_chunks::<PART_WEIGHTS>().0;
    let scales: Vec<f32> = parts.iter().map(|part| widest(part) / -4.0).collect();
    let mut factor = Vec::new();
    let d = put(widest(&scales) / -32.0, &mut factor);
    let scales: Vec<i32> = scales.into_iter().map(|scale| steps(scale, d, -32, 31)).collect();
    let mut values = [0; BLOCK256];
    for ((part, scale), values) in
        parts.iter().zip(&scales).zip(values.as_chunks_mut::<PART_WEIGHTS>().0)
    {
        *values = part.map(|x| (steps(x, d * *scale as f32, -4, 3) + 4) as u8);
    }
    out.extend(
        (0..32).map(|k| (0..8).fold(0, |byte, part| byte | (values[32 * part + k] >> 2) << part)),
    );
    pairs(&values, out);
    let raised: Vec<u8> = scales.into_iter().map(|scale| (scale + 32) as u8).collect();
    out.extend((0..8).map(|at| raised[at] & 15 | (raised[at + 8] & 15) << 4));
    out.extend(
        (0..4).map(|at| {
            (0..4).fold(0, |byte, part| byte | (raised[at + 4 * part] >> 4) << (2 * part))
        }),
    );
    out.extend(factor);
}

fn iq4_xs(weights: &[f32; BLOCK256], out: &mut Vec<u8>) {
    let parts = weights.as_chunks::<BLOCK32>().0;
    let scales: Vec<f32> = parts.iter().map(|part| widest(part) / LEVELS[0]).collect();
    let d = put(widest(&scales) / -32.0, out);
    let scales: Vec<i32> = scales.into_iter().map(|scale| steps(scale, d, -32, 31)).collect();
    let raised: Vec<u16> = scales.iter().map(|scale| (scale + 32) as u16).collect();
    let high = (0..8).fold(0, |bits, part| bits | (raised[part] >> 4) << (2 * part));
    out.extend(high.to_le_bytes());
    out.extend((0..4).map(|at| (raised[2 * at] & 15 | (raised[2 * at + 1] & 15) << 4) as u8));
    for (part, scale) in parts.iter().zip(scales) {
        nibbles(&part.map(|x| place(&LEVELS, x, d * scale as f32)), out);
    }
}
