//! Quantized blocks in GGUF's byte layout (`block_q8_0` and so on in ggml's `ggml-common.h`).

use half::f16;

use crate::blocks32::{self, LEVELS};
use crate::format::Format;
use crate::kquants;
use crate::rowwise::BLOCK;

/// Block of 32 (Q8_0, Q8_1): an f16 scale and eight-bit integers.
pub(super) struct Q8Block {
    pub(super) d: u16,
    pub(super) values: [i8; BLOCK],
}

/// Block of 256: a weight is `d * scale * (value - offset) - min * least`. The offset is 4 in Q3_K
/// and 32 in Q6_K. In IQ4_XS, a weight is `d * scale` times the level at the place `value`.
#[derive(Debug, PartialEq, Eq)]
pub struct KQuantBlock {
    /// Factor of the scales, in the bits of an f16.
    pub d: u16,
    /// Factor of the least values, in the bits of an f16.
    pub min: u16,
    /// Scales of each 32 columns, or of each 16 in Q2_K, Q3_K and Q6_K.
    pub scales: [i8; 16],
    /// Least values of each 32 columns, or of each 16 in Q2_K.
    pub least: [i8; 16],
    /// Values, without their offset.
    pub values: [u8; kquants::BLOCK],
}

/// Reads a little-endian 16-bit number at an offset.
fn bits(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

impl Q8Block {
    /// Reads a block. The values are its last bytes; in Q8_1 their sum is before them.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let first = bytes.len() - BLOCK;
        let values = std::array::from_fn(|k| bytes[first + k] as i8);
        Self { d: bits(bytes, 0), values }
    }

    /// Returns true if the products can be exact: the scale is finite, and no value is -128, whose
    /// eight-bit absolute value overflows.
    pub(super) fn is_sound(&self) -> bool {
        f16::from_bits(self.d).is_finite() && !self.values.contains(&i8::MIN)
    }

    pub(super) fn numbers(&self, out: &mut [f32]) {
        let d = f16::from_bits(self.d).to_f32();
        for (out, value) in out.iter_mut().zip(self.values) {
            *out = d * f32::from(value);
        }
    }
}

/// Returns true if the products of a block can be exact: its factors are finite, and no value of Q8_0
/// is -128. Blocks of other formats than Q8_0 and those of 256 are not known to be.
pub(super) fn is_sound(format: Format, bytes: &[u8]) -> bool {
    let are_finite =
        |places: &[usize]| places.iter().all(|at| f16::from_bits(bits(bytes, *at)).is_finite());
    match format {
        Format::F32 | Format::Bf16 | Format::F16 => true,
        Format::Q8_0 => are_finite(&[0]) && !bytes[2..].contains(&i8::MIN.cast_unsigned()),
        Format::Q4K | Format::Q5K => are_finite(&[0, 2]),
        Format::Q2K => are_finite(&[80, 82]),
        Format::Q3K => are_finite(&[108]),
        Format::Q6K => are_finite(&[208]),
        Format::Iq4Xs => are_finite(&[0]),
        _ => false,
    }
}

impl KQuantBlock {
    /// Reads a block of Q2_K, Q3_K, Q4_K, Q5_K, Q6_K or IQ4_XS.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer bytes than a block has.
    pub fn read(format: Format, bytes: &[u8]) -> Self {
        match format {
            Format::Q4K => Self::four(bytes, &bytes[16..144], |_, _| 0),
            Format::Q5K => {
                // Each byte has one bit for each part of 32 columns.
                let high = &bytes[16..48];
                Self::four(bytes, &bytes[48..176], |part, k| (high[k] >> part & 1) << 4)
            }
            Format::Q2K => Self::two(bytes),
            Format::Q3K => Self::three(bytes),
            Format::Iq4Xs => Self::levels(bytes),
            _ => Self::six(bytes),
        }
    }

    /// Reads Q4_K and Q5_K, which begin with six-bit scales and least values. Of each 64 columns,
    /// the first 32 are in the low nibbles.
    fn four(bytes: &[u8], values: &[u8], fifth: impl Fn(usize, usize) -> u8) -> Self {
        let packed: [u8; 12] = std::array::from_fn(|at| bytes[4 + at]);
        let (mut scales, mut least) = ([0; 16], [0; 16]);
        for part in 0..8 {
            let (scale, min) = match part {
                0..4 => (packed[part] & 63, packed[part + 4] & 63),
                _ => (
                    packed[part + 4] & 15 | packed[part - 4] >> 6 << 4,
                    packed[part + 4] >> 4 | packed[part] >> 6 << 4,
                ),
            };
            (scales[part], least[part]) = (scale as i8, min as i8);
        }
        let value = |column: usize| {
            let (part, k) = (column / 32, column % 32);
            values[part / 2 * 32 + k] >> (4 * (part % 2)) & 15 | fifth(part, k)
        };
        let values = std::array::from_fn(value);
        Self { d: bits(bytes, 0), min: bits(bytes, 2), scales, least, values }
    }

    /// Writes the block as Q4_K or Q5_K, in the layout that [`read`](Self::read) reads.
    pub fn write(&self, format: Format, out: &mut Vec<u8>) {
        out.extend([self.d, self.min].into_iter().flat_map(u16::to_le_bytes));
        let [scales, least]: [[u8; 8]; 2] =
            [&self.scales, &self.least].map(|all| std::array::from_fn(|at| all[at] as u8));
        let packed: [u8; 12] = std::array::from_fn(|at| match at {
            0..4 => scales[at] | scales[at + 4] >> 4 << 6,
            4..8 => least[at - 4] | least[at] >> 4 << 6,
            _ => scales[at - 4] & 15 | least[at - 4] << 4,
        });
        out.extend(packed);
        if format == Format::Q5K {
            let fifth = |k: usize, part: usize| (self.values[32 * part + k] >> 4 & 1) << part;
            out.extend((0..32).map(|k| (0..8).fold(0, |bits, part| bits | fifth(k, part))));
        }
        for pair in self.values.as_chunks::<64>().0 {
            out.extend((0..32).map(|k| pair[k] & 15 | pair[k + 32] << 4));
        }
    }

    /// Reads Q6_K: lower four bits, upper two bits, scales of 16 columns, `d`. Each 128 columns
    /// have four parts of 32: the first two are in the low nibbles.
    fn six(bytes: &[u8]) -> Self {
        let value = |column: usize| {
            let (half, part, k) = (column / 128, column / 32 % 4, column % 32);
            let low = bytes[64 * half + 32 * (part % 2) + k] >> (4 * (part / 2)) & 15;
            let high = bytes[128 + 32 * half + k] >> (2 * part) & 3;
            low | high << 4
        };
        let scales = std::array::from_fn(|at| bytes[192 + at] as i8);
        let values = std::array::from_fn(value);
        Self { d: bits(bytes, 208), min: 0, scales, least: [0; 16], values }
    }

    /// Reads Q2_K: scales in the low and least values in the high four bits, two bits of each value,
    /// `d`, `min`. Each 128 columns have four parts of 32.
    fn two(bytes: &[u8]) -> Self {
        let value = |column: usize| {
            let (half, part, k) = (column / 128, column / 32 % 4, column % 32);
            bytes[16 + 32 * half + k] >> (2 * part) & 3
        };
        Self {
            d: bits(bytes, 80),
            min: bits(bytes, 82),
            scales: std::array::from_fn(|at| (bytes[at] & 15) as i8),
            least: std::array::from_fn(|at| (bytes[at] >> 4) as i8),
            values: std::array::from_fn(value),
        }
    }

    /// Reads Q3_K: upper bits, lower two bits, scales of 16 columns in six bits with an offset of
    /// 32, `d`. Each 128 columns have four parts of 32. A value has an offset of 4.
    fn three(bytes: &[u8]) -> Self {
        let packed = &bytes[96..108];
        let scale = |at: usize| {
            let low = packed[at % 8] >> (4 * (at / 8)) & 15;
            let high = packed[8 + at % 4] >> (2 * (at / 4)) & 3;
            (low | high << 4) as i8 - 32
        };
        let value = |column: usize| {
            let (half, part, k) = (column / 128, column / 32 % 4, column % 32);
            let low = bytes[32 + 32 * half + k] >> (2 * part) & 3;
            let high = bytes[k] >> (4 * half + part) & 1;
            low | high << 2
        };
        let (scales, values) = (std::array::from_fn(scale), std::array::from_fn(value));
        Self { d: bits(bytes, 108), min: 0, scales, least: [0; 16], values }
    }

    /// Reads IQ4_XS: `d`, upper two and lower four bits of the scales of 32 columns, with an offset
    /// of 32, and the places. Of each 32 columns, the first 16 are in the low nibbles.
    fn levels(bytes: &[u8]) -> Self {
        let high = bits(bytes, 2);
        let mut scales = [0; 16];
        for (part, scale) in scales.iter_mut().take(8).enumerate() {
            let low = bytes[4 + part / 2] >> (4 * (part % 2)) & 15;
            *scale = (low | (((high >> (2 * part)) & 3) as u8 * 16)) as i8 - 32;
        }
        let place = |column: usize| {
            let (part, k) = (column / 32, column % 32);
            bytes[8 + 16 * part + k % 16] >> (4 * (k / 16)) & 15
        };
        let values = std::array::from_fn(place);
        Self { d: bits(bytes, 0), min: 0, scales, least: [0; 16], values }
    }

    pub(super) fn is_sound(&self) -> bool {
        [self.d, self.min].iter().all(|bits| f16::from_bits(*bits).is_finite())
    }

    /// Dequantizes the block.
    pub fn numbers(&self, format: Format, out: &mut [f32]) {
        let [d, min] = [self.d, self.min].map(|bits| f16::from_bits(bits).to_f32());
        for (column, out) in out.iter_mut().enumerate() {
            let value = self.values[column];
            let of_16 = d * f32::from(self.scales[column / 16]);
            let of_32 = d * f32::from(self.scales[column / 32]);
            let [least_16, least_32] =
                [16, 32].map(|columns| min * f32::from(self.least[column / columns]));
            *out = match format {
                Format::Q2K => of_16 * f32::from(value) - least_16,
                Format::Q3K => of_16 * (i32::from(value) - 4) as f32,
                Format::Q6K => of_16 * (i32::from(value) - 32) as f32,
                Format::Iq4Xs => of_32 * f32::from(LEVELS[usize::from(value)]),
                _ => of_32 * f32::from(value) - least_32,
            };
        }
    }
}

/// Dequantizes a block of 32.
pub(super) fn read_of_32<B: blocks32::Block>(bytes: &[u8], out: &mut [f32]) {
    let mut block = B::ZERO;
    block.set(0, bytes);
    block.row(0, out);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Format, KQuantBlock, Q8Block, is_sound};

    proptest! {
        #[test]
        fn a_block_is_as_sound_as_what_is_read_from_it(
            bytes in prop::collection::vec(any::<u8>(), 210),
            at in 0..109usize,
            broken: bool,
        ) {
            let formats = [
                Format::Q8_0, Format::Q2K, Format::Q3K, Format::Q4K, Format::Q5K, Format::Q6K,
                Format::Iq4Xs,
            ];
            for format in formats {
                let mut bytes = bytes[..format.block_in_file().1].to_vec();
                if let Some(byte) = bytes.get_mut(2 * at + 1).filter(|_| broken) {
                    // An infinity or no number, if it is the upper byte of an f16.
                    *byte = 0x7c;
                }
                let expected = match format {
                    Format::Q8_0 => Q8Block::read(&bytes).is_sound(),
                    _ => KQuantBlock::read(format, &bytes).is_sound(),
                };
                prop_assert_eq!(is_sound(format, &bytes), expected, "{:?}", format);
            }
        }

        #[test]
        fn blocks_are_written_as_they_are_read(
            five: bool,
            bytes in prop::collection::vec(any::<u8>(), 176),
        ) {
            let format = if five { Format::Q5K } else { Format::Q4K };
            let bytes = &bytes[..format.block_in_file().1];
            let mut written = Vec::new();
            KQuantBlock::read(format, bytes).write(format, &mut written);
            prop_assert_eq!(written, bytes);
        }
    }
}
