//! Valid and hostile heads of GGUF files.

use super::GgufValue::{Array, Bool, Bytes, Float, Signed, Text, Unsigned};
use super::MOST_VALUES;
use nsbridge_handler::{Error, Result};

use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::fixtures::Memory;
use crate::order::Order;

/// GGUF file under construction.
struct Gguf {
    version: u32,
    tensors: Vec<Vec<u8>>,
    values: Vec<Vec<u8>>,
    /// Counts in the head that replace the true ones.
    claims: Option<[u64; 2]>,
    align: usize,
    data: usize,
}

impl Default for Gguf {
    fn default() -> Self {
        let (tensors, values, claims) = Default::default();
        Self { version: 3, tensors, values, claims, align: 32, data: 0 }
    }
}

impl Gguf {
    fn bytes(&self) -> Vec<u8> {
        let counts = self.claims.unwrap_or([self.tensors.len() as u64, self.values.len() as u64]);
        let mut bytes = [b"GGUF", &self.version.to_le_bytes()[..], &longs(&counts)].concat();
        bytes.extend(self.values.concat());
        bytes.extend(self.tensors.concat());
        bytes.resize(bytes.len().next_multiple_of(self.align), 0);
        bytes.extend((0..self.data).map(|i| i as u8));
        bytes
    }
}

fn text(text: &str) -> Vec<u8> {
    [&longs(&[text.len() as u64]), text.as_bytes()].concat()
}

fn longs(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Metadata value: name, type and content.
fn value(name: &str, kind: u32, rest: &[u8]) -> Vec<u8> {
    [&*text(name), &kind.to_le_bytes(), rest].concat()
}

/// Array type and count, followed by the content.
fn array(kind: u32, count: u64, rest: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), &*longs(&[count]), rest].concat()
}

/// Tensor entry with the dimensions in the order of the format: the fastest first.
fn tensor(name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let count = (dimensions.len() as u32).to_le_bytes();
    let (dimensions, offset) = (longs(dimensions), longs(&[offset]));
    [&*text(name), &count, &dimensions, &kind.to_le_bytes(), &offset].concat()
}

fn open(bytes: Vec<u8>) -> Result<Checkpoint> {
    Checkpoint::open(&Memory::new(&[("model.gguf", bytes)]).model())
}

/// Checks that a file is refused with a message that names it.
#[track_caller]
fn check_bytes(bytes: Vec<u8>, reason: &str) {
    let error = open(bytes).unwrap_err();
    let sentence = error.to_string();
    assert!(matches!(error, Error::Fatal(_)), "{sentence}");
    assert!(sentence.contains("model.gguf") && sentence.contains(reason), "{sentence}");
    assert!(!sentence.contains(char::is_control) && sentence.len() < 1000, "{sentence:?}");
}

#[track_caller]
fn check_values(values: &[Vec<u8>], reason: &str) {
    check_bytes(Gguf { values: values.to_vec(), ..Gguf::default() }.bytes(), reason);
}

/// Tensors followed by 256 bytes of data.
#[track_caller]
fn check_tensors(tensors: &[Vec<u8>], reason: &str) {
    check_bytes(Gguf { tensors: tensors.to_vec(), data: 256, ..Gguf::default() }.bytes(), reason);
}

#[test]
fn a_good_file_is_read_right() {
    let words = array(8, 3, &[text("<s>"), text("a"), text("\u{2581}b")].concat());
    let file = Gguf {
        values: vec![
            value("general.alignment", 4, &64u32.to_le_bytes()),
            value("general.architecture", 8, &text("llama")),
            value("tokenizer.ggml.tokens", 9, &words),
            value("deep", 9, &array(9, 1, &array(0, 2, &[1, 255]))),
            value("i8", 1, &[0xff]),
            value("i64", 11, &longs(&[u64::MAX - 1])),
            value("u64", 10, &longs(&[u64::MAX])),
            value("f32", 6, &1.5f32.to_le_bytes()),
            value("f64", 12, &(-2.5f64).to_le_bytes()),
            value("yes", 7, &[1]),
        ],
        tensors: vec![
            tensor("q8", &[64, 2], 8, 64),
            tensor("q4k", &[256, 1], 12, 256),
            tensor("f", &[3, 2], 0, 0),
        ],
        align: 64,
        data: 400,
        ..Gguf::default()
    };
    let checkpoint = open(file.bytes()).unwrap();
    let found = checkpoint.tensors().iter().map(|t| (&*t.name, t.dtype, &*t.shape, t.bytes()));
    let expected: [(_, _, &[usize], _); 3] = [
        ("f", Dtype::F32, &[2, 3], 24),
        ("q4k", Dtype::Q4_K, &[1, 256], 144),
        ("q8", Dtype::Q8_0, &[2, 64], 4 * 34),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let said = checkpoint.metadata();
    let token = |text: &str| Text(text.to_owned());
    let tokens = Array(vec![token("<s>"), token("a"), token("\u{2581}b")]);
    let expected = [
        ("general.alignment", Unsigned(64)),
        ("general.architecture", token("llama")),
        ("tokenizer.ggml.tokens", tokens),
        ("deep", Array(vec![Array(vec![Unsigned(1), Unsigned(255)])])),
        ("i8", Signed(-1)),
        ("i64", Signed(-2)),
        ("u64", Unsigned(u64::MAX)),
        ("f32", Float(1.5)),
        ("f64", Float(-2.5)),
        ("yes", Bool(true)),
    ];
    assert_eq!(said.len(), expected.len());
    expected.iter().for_each(|(name, value)| assert_eq!(said.get(*name), Some(value), "{name}"));
    let weights = checkpoint.load(&Order::everything()).unwrap();
    // Byte n of the data is n.
    let firsts = [("f", 0, 24), ("q8", 64, 136), ("q4k", 0, 144)];
    for (name, first, len) in firsts {
        let weight = weights.tensor(name).unwrap();
        let bytes = weight.contiguous();
        assert_eq!((bytes[0], bytes.len()), (first, len), "{name}");
    }
}

#[test]
fn a_head_of_megabytes_is_read_in_several_looks() {
    let words: Vec<u8> = (0..200_000).flat_map(|i| text(&format!("word{i}"))).collect();
    let file = Gguf {
        values: vec![value("tokens", 9, &array(8, 200_000, &words))],
        tensors: vec![tensor("a", &[8], 0, 0)],
        data: 32,
        ..Gguf::default()
    };
    let checkpoint = open(file.bytes()).unwrap();
    let Some(Array(tokens)) = checkpoint.metadata().get("tokens") else { panic!("no tokens") };
    assert_eq!(tokens[199_999], Text("word199999".to_owned()));
    let weights = checkpoint.load(&Order::everything()).unwrap();
    assert_eq!(weights.tensor("a").unwrap().contiguous()[..4], [0, 1, 2, 3]);
}

#[test]
fn a_string_that_is_not_utf_8_keeps_its_bytes() {
    let bytes = |bytes: &[u8]| [&*longs(&[bytes.len() as u64]), bytes].concat();
    let words = [bytes(b"\xff\xfe"), text("\u{fffd}")].concat();
    let file = Gguf { values: vec![value("a", 9, &array(8, 2, &words))], ..Gguf::default() };
    let checkpoint = open(file.bytes()).unwrap();
    let expected = Array(vec![Bytes(b"\xff\xfe".to_vec()), Text("\u{fffd}".to_owned())]);
    assert_eq!(checkpoint.metadata().get("a"), Some(&expected));
}

#[test]
fn what_is_no_gguf_of_a_known_version_is_refused() {
    check_bytes(Vec::new(), "its head has no end");
    check_bytes(b"GGU".to_vec(), "its head has no end");
    check_bytes(b"GGML\x03\0\0\0".to_vec(), "does not begin with GGUF");
    for version in [0, 1, 4] {
        let reason = format!("version {version} is not known");
        check_bytes(Gguf { version, ..Gguf::default() }.bytes(), &reason);
    }
    let swapped = Gguf { version: 3u32.swap_bytes(), ..Gguf::default() };
    check_bytes(swapped.bytes(), "it is big-endian");
    assert!(open(Gguf { version: 2, ..Gguf::default() }.bytes()).is_ok());
}

#[test]
fn counts_and_lengths_that_lie_meet_the_end_of_the_file() {
    for many in [1, 1 << 32, 1 << 60, u64::MAX] {
        let claims = |claims| Gguf { claims: Some(claims), align: 1, ..Gguf::default() }.bytes();
        check_bytes(claims([many, 0]), "no end");
        check_bytes(claims([0, many]), "no end");
        let array_of = |kind| Gguf {
            values: vec![value("a", 9, &array(kind, many, &[]))],
            align: 1,
            ..Gguf::default()
        };
        for kind in (0..13).filter(|kind| *kind != 9) {
            check_bytes(array_of(kind).bytes(), "no end");
        }
    }
    check_tensors(&[tensor("a", &[1 << 60, 1 << 60], 0, 0)], "which F32 cannot have");
    check_values(&[longs(&[1 << 60])], "a text of 1152921504606846976 bytes");
    check_values(&[value("a", 8, &longs(&[u64::MAX]))], "a text of 18446744073709551615 bytes");
    check_values(&[value("a", 8, &longs(&[50 << 20]))], "no end");
    check_values(&[value("a", 9, &array(8, 1, &longs(&[1 << 40])))], "a text of");
    check_tensors(&[tensor("a", &[1; 5], 0, 0)], "a claims 5 dimensions");
    let claims = [&*text("a"), &u32::MAX.to_le_bytes()].concat();
    check_tensors(&[claims], "claims 4294967295 dimensions");
}

#[test]
fn values_without_measure_are_refused() {
    let nested = |depth| (0..depth).fold(array(0, 0, &[]), |inner, _| array(9, 1, &inner));
    assert!(
        open(Gguf { values: vec![value("a", 9, &nested(3))], ..Gguf::default() }.bytes()).is_ok()
    );
    check_values(&[value("a", 9, &nested(4))], "arrays within arrays");
    check_values(&[value("a", 9, &nested(2000))], "arrays within arrays");
    let many = vec![0; MOST_VALUES as usize + 1];
    check_values(&[value("a", 9, &array(0, many.len() as u64, &many))], "too many values");
    check_values(&[value("a", 13, &[])], "unknown type 13");
    check_values(&[value("a", 9, &array(99, 1, &[]))], "unknown type 99");
    check_values(&[value("a", 7, &[1]), value("a", 7, &[0])], "it says a twice");
    check_values(&[value("a\nb", 7, &[1]), value("a\nb", 7, &[0])], r"it says a\nb twice");
}

#[test]
fn an_alignment_that_is_none_is_refused() {
    let alignment = |kind, bytes: &[u8]| vec![value("general.alignment", kind, bytes)];
    for bad in [0u32, 3, 33, 1 << 21, u32::MAX] {
        check_values(&alignment(4, &bad.to_le_bytes()), "no power of two");
    }
    check_values(&alignment(8, &text("32")), "no power of two");
    check_values(&alignment(10, &longs(&[1 << 63])), "no power of two");
    check_tensors(&[tensor("a", &[8], 0, 16)], "a is not aligned");
}

#[test]
fn tensors_that_leave_their_place_are_refused() {
    let a = || tensor("a", &[32], 0, 0);
    check_tensors(&[a(), tensor("b", &[32], 0, 96)], "a and b overlap");
    check_tensors(&[tensor("b", &[8], 0, 32), a()], "a and b overlap");
    check_tensors(&[a(), a()], "a and a overlap");
    check_tensors(&[a(), tensor("a", &[32], 0, 128)], "has two tensors a");
    check_tensors(&[tensor("a", &[65], 0, 0)], "a ends behind the file's");
    check_tensors(&[tensor("a", &[8], 0, 256)], "a ends behind the file's");
    check_tensors(&[tensor("a", &[8], 0, 1 << 60)], "a ends behind the file's");
    check_tensors(&[tensor("a", &[8], 0, u64::MAX - 31)], "a ends behind the file's");
    check_tensors(&[tensor("a", &[1 << 60], 24, 0)], "a ends behind the file's");
    // An empty tensor may lie anywhere within the file, also at the offset of another tensor.
    let tensors = vec![a(), tensor("z", &[0, 4], 0, 0), tensor("y", &[0], 0, 128)];
    assert!(open(Gguf { tensors, data: 256, ..Gguf::default() }.bytes()).is_ok());
}

#[test]
fn shapes_that_a_type_cannot_have_are_refused() {
    for (kind, rows) in [(8, 31), (8, 33), (8, 1), (12, 128), (12, 255), (2, 16)] {
        check_tensors(&[tensor("a", &[rows, 32], kind, 0)], "which Q");
    }
    check_tensors(&[tensor("a", &[], 8, 0)], "which Q8_0 cannot have");
    check_tensors(&[tensor("a", &[1 << 32, 1 << 32], 0, 0)], "which F32 cannot have");
    check_tensors(&[tensor("a", &[1 << 40, 1 << 40, 0], 0, 0)], "which F32 cannot have");
    check_tensors(&[tensor("a", &[0, 1 << 40, 1 << 40], 0, 0)], "which F32 cannot have");
    for kind in [4, 5, 31, 33, 36, 38, 40, 1000, u32::MAX] {
        check_tensors(&[tensor("a", &[32], kind, 0)], &format!("ggml's type {kind}"));
    }
}

/// Numbers of `ggml_type` and sizes of blocks, as llama.cpp's package `gguf` has them
/// (`GGML_QUANT_SIZES`).
#[test]
fn types_have_the_numbers_and_the_blocks_of_ggml() {
    for (name, number, block) in [
        ("Q4_0", 2, (32, 18)),
        ("Q4_1", 3, (32, 20)),
        ("Q5_0", 6, (32, 22)),
        ("Q5_1", 7, (32, 24)),
        ("Q8_0", 8, (32, 34)),
        ("Q8_1", 9, (32, 36)),
        ("Q2_K", 10, (256, 84)),
        ("Q3_K", 11, (256, 110)),
        ("Q4_K", 12, (256, 144)),
        ("Q5_K", 13, (256, 176)),
        ("Q6_K", 14, (256, 210)),
        ("Q8_K", 15, (256, 292)),
        ("IQ2_XXS", 16, (256, 66)),
        ("IQ2_XS", 17, (256, 74)),
        ("IQ3_XXS", 18, (256, 98)),
        ("IQ1_S", 19, (256, 50)),
        ("IQ4_NL", 20, (32, 18)),
        ("IQ3_S", 21, (256, 110)),
        ("IQ2_S", 22, (256, 82)),
        ("IQ4_XS", 23, (256, 136)),
        ("IQ1_M", 29, (256, 56)),
        ("BF16", 30, (1, 2)),
        ("TQ1_0", 34, (256, 54)),
        ("TQ2_0", 35, (256, 66)),
        ("MXFP4", 39, (32, 17)),
    ] {
        let dtype = Dtype::from_ggml(number).unwrap();
        assert_eq!((&*dtype.to_string(), dtype.block()), (name, block));
        assert_eq!(dtype.ggml_type(), Some(number));
    }
}

#[test]
fn a_part_of_a_model_must_have_the_name_of_a_part() {
    let part = |count: u16| {
        let values = vec![value("split.count", 2, &count.to_le_bytes())];
        Gguf { values, ..Gguf::default() }.bytes()
    };
    check_bytes(part(3), "a part of one model in 3 .gguf files");
    check_bytes(part(3), "NAME-00001-of-00003.gguf");
    // A merged file has 0, a file split into one part has 1.
    for whole in [0, 1] {
        assert!(open(part(whole)).is_ok());
    }
}

/// Part of a split model with one tensor, and the metadata that llama.cpp writes.
fn part(number: u16, count: u16, tensors: i32, name: &str) -> Vec<u8> {
    let mut values = vec![
        value("split.no", 2, &number.to_le_bytes()),
        value("split.count", 2, &count.to_le_bytes()),
        value("split.tensors.count", 5, &tensors.to_le_bytes()),
    ];
    if number == 0 {
        values.push(value("general.architecture", 8, &text("llama")));
    }
    let tensors = vec![tensor(name, &[8], 0, 0)];
    Gguf { values, tensors, data: 32, ..Gguf::default() }.bytes()
}

fn parts(parts: [Vec<u8>; 2]) -> Result<Checkpoint> {
    let [first, second] = parts;
    let files = [("m-00002-of-00002.gguf", second), ("m-00001-of-00002.gguf", first)];
    Checkpoint::open(&Memory::new(&files).model())
}

#[test]
fn the_parts_of_a_split_file_are_one_model() {
    let checkpoint = parts([part(0, 2, 2, "a"), part(1, 2, 2, "b")]).unwrap();
    let names: Vec<_> = checkpoint.tensors().iter().map(|tensor| &*tensor.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(checkpoint.files().count(), 2);
    assert_eq!(checkpoint.metadata()["general.architecture"], Text("llama".to_owned()));
    let weights = checkpoint.load(&Order::everything()).unwrap();
    assert_eq!(weights.tensor("b").unwrap().contiguous().len(), 32);
}

#[test]
fn parts_that_contradict_their_names_or_lack_tensors_are_refused() {
    let check = |files: [Vec<u8>; 2], reason: &str| {
        let sentence = parts(files).unwrap_err().to_string();
        assert!(sentence.contains(reason), "{sentence}");
    };
    let swapped = [part(1, 2, 2, "a"), part(0, 2, 2, "b")];
    check(swapped, "m-00001-of-00002.gguf in memory is not the part that its name says");
    check([part(0, 3, 2, "a"), part(1, 3, 2, "b")], "must be 0 and 2");
    check(
        [part(0, 2, 3, "a"), part(1, 2, 3, "b")],
        "have 2 tensors, and its split.tensors.count is 3",
    );
    check([part(0, 2, 2, "a"), part(1, 2, 2, "a")], "both have a tensor a");
}
