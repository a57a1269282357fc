//! Weights of blocks as llama.cpp's package `gguf` reads them; see `vectors/by_gguf.py`.

use super::bits;
use super::blocks::packed_blocks;
use crate::format::Format;
use crate::matrix::Source;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().map(|digit| digit.to_digit(16).unwrap()).collect();
    digits.as_chunks().0.iter().map(|[high, low]| (16 * high + low) as u8).collect()
}

#[test]
fn weights_of_blocks_are_those_of_llama_cpp_bit_for_bit() {
    let mut seen = Vec::new();
    for line in include_str!("../../../vectors/by_gguf.txt").lines() {
        let [name, block, weights] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("a line of three parts: {line}")
        };
        let named = |format: &Format| format.to_string() == name;
        let format = Format::ALL.into_iter().find(named).unwrap();
        let block = hex(block);
        let right: Vec<u32> =
            hex(weights).as_chunks().0.iter().map(|bytes| u32::from_be_bytes(*bytes)).collect();
        let (mut kept, mut read) = (vec![0.0; right.len()], vec![0.0; right.len()]);
        Source { name, format, bytes: &block }.read(0, &mut read);
        assert_eq!(bits(&read), right, "{name} {block:x?}");
        packed_blocks(format, &block, 1).row(0, &mut kept);
        assert_eq!(bits(&kept), right, "{name} {block:x?}");
        seen.push(format);
    }
    seen.dedup();
    // Q8_1 is in no file, and has no reader there.
    let blocks = Format::ALL.into_iter().filter(|format| format.unit() > 2);
    let missing: Vec<_> = blocks.filter(|format| !seen.contains(format)).collect();
    assert_eq!(missing, [Format::Q8_1]);
}
