//! Conversion of weights to the formats that need no search of this crate's own: f32, f16, bf16,
//! Q8_0 and Q6_K.
//!
//! The roundings are those of llama.cpp's reference (`quantize_row_q8_0_ref` and
//! `quantize_row_q6_K_ref` in `ggml-quants.c`), so the blocks are equal to its own.

use half::{bf16, f16};
use nsbridge_checkpoint::Dtype;

/// Weights of a block of Q6_K, and of a part with a scale of its own.
const BLOCK: usize = 256;
const PART: usize = 16;

/// Weights of a block of Q8_0.
const Q8_BLOCK: usize = 32;

/// Levels of Q6_K: -32 to 31.
const LEVELS: i32 = 32;

/// Appends the weights in a format to `out`. The weights are finite and fill whole blocks. Returns
/// false if the format is none of this module's.
pub(super) fn convert(weights: &[f32], dtype: Dtype, out: &mut Vec<u8>) -> bool {
    match dtype {
        Dtype::F32 => out.extend(weights.iter().flat_map(|x| x.to_le_bytes())),
        Dtype::F16 => out.extend(weights.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes())),
        Dtype::BF16 => out.extend(weights.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes())),
        Dtype::Q8_0 => weights.as_chunks().0.iter().for_each(|block| q8_0(block, out)),
        Dtype::Q6_K => weights.as_chunks().0.iter().for_each(|block| q6_k(block, out)),
        _ => return false,
    }
    true
}

/// Appends a block of Q8_0: the scale in f16, then a byte for each weight.
fn q8_0(weights: &[f32; Q8_BLOCK], out: &mut Vec<u8>) {
    let largest = weights.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    out.extend(f16::from_f32(scale).to_le_bytes());
    out.extend(weights.iter().map(|x| (x * inverse).round() as i8 as u8));
}

/// Appends a block of Q6_K: the low four bits of each level, the high two bits, sixteen scales of
/// eight bits, and the block's factor in f16.
fn q6_k(weights: &[f32; BLOCK], out: &mut Vec<u8>) {
    let parts = weights.as_chunks::<PART>().0;
    let mut levels = [[0; PART]; BLOCK / PART];
    let mut scales = [0.0f32; BLOCK / PART];
    for ((levels, scale), part) in levels.iter_mut().zip(&mut scales).zip(parts) {
        (*scale, *levels) = fit(part);
    }
    let widest =
        scales.iter().fold(0.0f32, |widest, x| if x.abs() > widest.abs() { *x } else { widest });
    // The widest scale becomes -128, so that the others use the whole range.
    let inverse = -128.0 / widest;
    let factor = f16::from_f32(1.0 / inverse);
    let scales = scales.map(|scale| level(inverse * scale).min(127) as i8);
    for ((levels, scale), part) in levels.iter_mut().zip(scales).zip(parts) {
        let step = factor.to_f32() * f32::from(scale);
        if step != 0.0 {
            *levels = part.map(|x| level(x / step).clamp(-LEVELS, LEVELS - 1) + LEVELS);
        }
    }
    let levels = levels.as_flattened();
    let (mut low, mut high) = ([0; BLOCK / 2], [0; BLOCK / 4]);
    let halves = levels.as_chunks::<{ BLOCK / 2 }>().0;
    for ((half, low), high) in halves.iter().zip(low.chunks_mut(64)).zip(high.chunks_mut(32)) {
        for at in 0..32 {
            let [a, b, c, d] = [0, 32, 64, 96].map(|from| half[from + at] as u8);
            low[at] = a & 15 | (c & 15) << 4;
            low[at + 32] = b & 15 | (d & 15) << 4;
            high[at] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
        }
    }
    out.extend(low);
    out.extend(high);
    out.extend(scales.map(|scale| scale as u8));
    out.extend(factor.to_le_bytes());
}

/// Rounds to the nearest integer, halves away from zero.
fn level(x: f32) -> i32 {
    x.round() as i32
}

/// Levels of a part, and the sums that give the scale of the least squares. Each squared error is
/// multiplied by the square of its weight.
#[derive(Clone, Copy)]
struct Fit {
    levels: [i32; PART],
    /// Sum of count x weight x level.
    product: f32,
    /// Sum of count x level x level.
    square: f32,
}

impl Fit {
    /// Rounds the weights to the nearest levels of the scale `1 / inverse`.
    fn round(part: &[f32; PART], inverse: f32) -> Self {
        let levels = part.map(|x| level(inverse * x).clamp(-LEVELS, LEVELS - 1));
        let (mut product, mut square) = (0.0, 0.0);
        for (x, level) in part.iter().zip(levels) {
            let (count, level) = (x * x, level as f32);
            product += count * x * level;
            square += count * level * level;
        }
        Self { levels, product, square }
    }

    fn scale(&self) -> f32 {
        self.product / self.square
    }

    /// Moves each weight to the level that fits the scale of the others, where that lowers the
    /// error. Returns false if no weight was moved.
    fn improve(&mut self, part: &[f32; PART]) -> bool {
        let mut moved = false;
        for (x, at) in part.iter().zip(0..) {
            let count = x * x;
            let own = self.levels[at] as f32;
            let mut product = self.product - count * x * own;
            if product <= 0.0 {
                continue;
            }
            let mut square = self.square - count * own * own;
            let new = level(x * square / product).clamp(-LEVELS, LEVELS - 1);
            if new == self.levels[at] {
                continue;
            }
            product += count * x * new as f32;
            square += count * new as f32 * new as f32;
            if square > 0.0
                && product * product * self.square > self.product * self.product * square
            {
                self.levels[at] = new;
                (self.product, self.square) = (product, square);
                moved = true;
            }
        }
        moved
    }
}

/// Returns the scale and the levels of a part, counted from 0. Rounding and fitting alternate while
/// they lower the error, three times at most; then single weights are moved, five times at most.
fn fit(part: &[f32; PART]) -> (f32, [i32; PART]) {
    let largest =
        part.iter().fold(0.0f32, |largest, x| if x.abs() > largest.abs() { *x } else { largest });
    if largest == 0.0 {
        return (0.0, [0; PART]);
    }
    let mut best = Fit::round(part, -(LEVELS as f32) / largest);
    for _ in 0..3 {
        let next = Fit::round(part, 1.0 / best.scale());
        let lower = next.product * next.product > best.scale() * best.product * next.square;
        if next.levels == best.levels || next.square == 0.0 || !lower {
            break;
        }
        best = next;
    }
    for _ in 0..5 {
        if !best.improve(part) {
            break;
        }
    }
    (best.scale(), best.levels.map(|level| level + LEVELS))
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::{GgmlDType, QTensor};
    use candle_core::{Device, Tensor};
    use nsbridge_checkpoint::Dtype;

    use super::convert;

    /// Weights of a small generator with a fixed seed, with zeros and outliers.
    fn weights(count: usize) -> Vec<f32> {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        let weight = |at: usize| match at / 256 % 8 {
            0 => 0.0,
            1 if at % 256 == 7 => 3.0e4,
            2 => next() * 1e-7,
            3 if at % 16 < 8 => 0.0,
            _ => next() + next() + next(),
        };
        (0..count).map(weight).collect()
    }

    #[track_caller]
    fn check_equal_to_candle(dtype: Dtype, theirs: GgmlDType) {
        let weights = weights(64 * 256);
        let mut ours = Vec::new();
        assert!(convert(&weights, dtype, &mut ours));
        let tensor = Tensor::from_vec(weights, (64, 256), &Device::Cpu).unwrap();
        let made = QTensor::quantize(&tensor, theirs).unwrap();
        assert!(ours == made.data().unwrap().as_ref(), "{dtype:?}");
    }

    #[test]
    fn blocks_are_equal_to_those_of_another_implementation() {
        check_equal_to_candle(Dtype::F32, GgmlDType::F32);
        check_equal_to_candle(Dtype::F16, GgmlDType::F16);
        check_equal_to_candle(Dtype::BF16, GgmlDType::BF16);
        check_equal_to_candle(Dtype::Q8_0, GgmlDType::Q8_0);
        check_equal_to_candle(Dtype::Q6_K, GgmlDType::Q6K);
    }

    #[test]
    fn other_formats_are_left_to_others() {
        assert!(!convert(&[0.0; 256], Dtype::Q4_K, &mut Vec::new()));
    }
}
