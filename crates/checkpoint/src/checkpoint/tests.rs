//! Valid and hostile headers.

use nsbridge_handler::Error;

use super::Checkpoint;
use crate::dtype::Dtype;
use crate::fixtures::{Memory, entry, safetensors};
use crate::header::{FIRST_LOOK, LONGEST_HEADER};
use crate::order::Order;

type Files<'a> = &'a [(&'a str, Vec<u8>)];

/// Checks that a model of these files is refused with a message that names the file.
#[track_caller]
fn check_files(files: Files<'_>, file: &str, reason: &str) {
    let error = Checkpoint::open(&Memory::new(files).model()).unwrap_err();
    let sentence = error.to_string();
    assert!(matches!(error, Error::Fatal(_)), "{sentence}");
    assert!(sentence.contains(file) && sentence.contains(reason), "{sentence}");
    assert!(!sentence.contains(char::is_control) && sentence.len() < 1000, "{sentence:?}");
}

#[track_caller]
fn check_bytes(bytes: Vec<u8>, reason: &str) {
    check_files(&[("model.safetensors", bytes)], "model.safetensors", reason);
}

/// Header of these entries, followed by 16 bytes of data.
#[track_caller]
fn check(entries: &[String], reason: &str) {
    check_bytes(safetensors(&format!("{{{}}}", entries.join(",")), 16), reason);
}

fn open(files: Files<'_>) -> Checkpoint {
    Checkpoint::open(&Memory::new(files).model()).unwrap()
}

#[test]
fn a_length_that_lies_is_refused_before_anything_is_read() {
    let claims = |length: u64| [&length.to_le_bytes()[..], &[b' '; 192]].concat();
    check_bytes(Vec::new(), "too short");
    check_bytes(vec![0; 7], "too short");
    check_bytes(claims(0), "its header is wrong");
    check_bytes(claims(193), "claims 193 bytes, the file has 200");
    check_bytes(claims(50 << 20), "the file has 200");
    check_bytes(claims(LONGEST_HEADER + 1), "the most is");
    check_bytes(claims(1 << 60), "the most is");
    check_bytes(claims(u64::MAX), "the most is");
}

#[test]
fn a_header_that_is_no_object_of_tensors_is_refused() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let headers = [
        "",
        "x",
        "null",
        "[]",
        "\"a\"",
        "{",
        "{} {}",
        "{\"a\":1}",
        "{\"a\":{}}",
        "{1:2}",
        "{\"__metadata__\":{\"a\":1}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16],\"dtype\":\"F32\"}}",
        &format!("{{\"a\":{deep}}}"),
        &format!("{{\"__metadata__\":{deep}}}"),
        &deep,
    ];
    for header in headers {
        check_bytes(safetensors(header, 16), "its header is wrong");
    }
    check_bytes([&3u64.to_le_bytes()[..], b"{\"\xff"].concat(), "its header is wrong");
}

#[test]
fn extents_that_leave_their_place_are_refused() {
    let a = |offsets: &str| entry("a", "F32", "[2]", offsets);
    let b = |offsets: &str| entry("b", "F32", "[2]", offsets);
    check(&[a("[0,8]"), b("[4,12]")], "b begins at byte 4 of the data, not at 8");
    check(&[a("[0,8]"), b("[0,8]")], "begins at byte 0 of the data, not at 8");
    check(&[a("[0,8]"), entry("b", "F32", "[1]", "[12,16]")], "b begins at byte 12");
    check(&[a("[4,12]")], "a begins at byte 4");
    check(&[a("[0,8]"), b("[8,7]")], "b ends before it begins");
    check(&[a("[0,8]")], "bytes that belong to no tensor");
    check(&[], "bytes that belong to no tensor");
    check(&[entry("a", "U8", "[17]", "[0,17]")], "a ends at byte 17 of the data's 16");
    check(&[entry("a", "U8", "[18446744073709551615]", "[0,18446744073709551615]")], "a ends at");
    let last = entry("b", "U8", "[0]", "[18446744073709551615,18446744073709551615]");
    check(&[entry("a", "U8", "[16]", "[0,16]"), last], "b begins at byte 18446744073709551615");
    for offsets in ["[-1,16]", "[0,1.5]", "[0,16,16]", "[0]", "[0,18446744073709551616]", "\"\""] {
        check(&[a(offsets)], "its header is wrong");
    }
}

#[test]
fn a_size_that_is_not_what_dtype_and_shape_say_is_refused() {
    let shapes = [
        "[3]",
        "[5]",
        "[]",
        "[4,0]",
        "[4294967296,4294967296]",
        "[4611686018427387905]",
        "[9223372036854775808,2,2]",
        "[18446744073709551615,18446744073709551615]",
    ];
    for shape in shapes {
        check(&[entry("a", "F32", shape, "[0,16]")], "as many bytes as its dtype and shape say");
    }
    // The tensor is empty, but the sizes of its parts would overflow.
    let nothing = entry("z", "F32", "[0,1099511627776,1099511627776]", "[0,0]");
    check(&[nothing, entry("a", "F32", "[4]", "[0,16]")], "z has not as many bytes");
    check(&[entry("a", "F4", "[32]", "[0,16]")], "a has the dtype F4, which is not known");
    check(&[entry("a", "Q9", "[4]", "[0,16]")], "unknown variant `Q9`");
}

#[test]
fn a_name_that_stands_twice_is_refused() {
    let a = |offsets: &str| entry("a", "F32", "[2]", offsets);
    check(&[a("[0,8]"), a("[8,16]")], "has two tensors a");
    let shard = || safetensors(&format!("{{{}}}", a("[0,8]")), 8);
    let files = [("1.safetensors", shard()), ("2.safetensors", shard())];
    check_files(&files, "1.safetensors and 2.safetensors", "both have a tensor a");
}

#[test]
fn what_a_file_says_stays_on_one_line_and_has_an_end() {
    check(&[entry(r"a\nb\u001b[2J", "F32", "[3]", "[0,16]")], r"a\nb\u{1b}[2J has not");
    check(&[entry("a", r"x\ny", "[3]", "[0,16]")], r"unknown variant `x\ny`");
    check(&[entry(&"a".repeat(1 << 20), "F32", "[3]", "[0,16]")], "aaa…");
}

#[test]
fn a_header_longer_than_the_first_look_is_read_whole() {
    let entries = entry("a", "F32", "[4]", "[0,16]");
    let header = format!("{{{entries}}}{}", " ".repeat(2 * FIRST_LOOK as usize));
    let checkpoint = open(&[("model.safetensors", safetensors(&header, 16))]);
    let weights = checkpoint.load(&Order::everything()).unwrap();
    let bytes: Vec<u8> = (0..16).collect();
    assert_eq!(*weights.tensor("a").unwrap().contiguous(), bytes);
}

#[test]
fn tensors_of_all_shards_are_ordered_by_name_whatever_their_files_say() {
    let b = [entry("l.2", "BF16", "[2,2]", "[0,8]"), entry("l.10", "I64", "[]", "[8,16]")];
    let a = entry("l.9", "F8_E4M3", "[0,3]", "[0,0]");
    let files = [
        ("b.safetensors", safetensors(&format!("{{{}}}", b.join(",")), 16)),
        ("a.safetensors", safetensors(&format!("{{\"__metadata__\":{{\"k\":\"v\"}},{a}}}"), 0)),
        ("deep/c.safetensors", b"not one of the model's".to_vec()),
    ];
    let checkpoint = open(&files);
    let found = checkpoint.tensors().iter().map(|t| (&*t.name, t.dtype, &*t.shape, t.bytes()));
    let expected: [(_, _, &[usize], _); 3] = [
        ("l.2", Dtype::BF16, &[2, 2], 8),
        ("l.9", Dtype::F8_E4M3, &[0, 3], 0),
        ("l.10", Dtype::I64, &[], 8),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    assert_eq!(checkpoint.files().collect::<Vec<_>>(), ["a.safetensors", "b.safetensors"]);
    assert_eq!(checkpoint.find("l.10").map(super::TensorInfo::elements), Some(1));
    assert!(checkpoint.find("l.1").is_none() && checkpoint.metadata().is_empty());
}

const INDEX: &str = super::INDEX;

/// Two shards that each have a tensor `a`, and an index.
fn with_index(index: &str) -> [(&str, Vec<u8>); 3] {
    let shard = |other: &str| {
        let entries = [entry("a", "U8", "[8]", "[0,8]"), entry(other, "U8", "[8]", "[8,16]")];
        safetensors(&format!("{{{}}}", entries.join(",")), 16)
    };
    [("1.safetensors", shard("b")), ("2.safetensors", shard("c")), (INDEX, index.into())]
}

#[test]
fn an_index_says_which_tensors_there_are_and_where() {
    let index = r#"{"weight_map":{"a":"2.safetensors","b":"1.safetensors"}}"#;
    let checkpoint = open(&with_index(index));
    let found = checkpoint.tensors().iter().map(|t| (&*t.name, t.file));
    assert_eq!(found.collect::<Vec<_>>(), [("a", 1), ("b", 0)], "c is not in the index");
}

#[test]
fn other_weights_beside_an_index_or_a_whole_file_are_left_out() {
    let file = |name: &str| safetensors(&format!("{{{}}}", entry(name, "U8", "[8]", "[0,8]")), 8);
    let index = r#"{"weight_map":{"a":"model-00001-of-00001.safetensors"}}"#;
    let all = [
        (INDEX, index.into()),
        ("consolidated.safetensors", file("a")),
        ("model-00001-of-00001.safetensors", file("a")),
        ("model.gguf", b"another format".to_vec()),
        ("model.safetensors", file("a")),
        ("original/x.safetensors", file("a")),
    ];
    let check = |files: Files<'_>, read: &str, left_out: &[&str]| {
        let checkpoint = open(files);
        assert_eq!(checkpoint.files().collect::<Vec<_>>(), [read]);
        assert_eq!(checkpoint.left_out().collect::<Vec<_>>(), left_out);
        assert!(checkpoint.find("a").is_some());
    };
    let beside = ["consolidated.safetensors", "model.gguf", "model.safetensors"];
    check(&all, "model-00001-of-00001.safetensors", &beside);
    let others = ["consolidated.safetensors", "model-00001-of-00001.safetensors", "model.gguf"];
    check(&all[1..], "model.safetensors", &others);
    check(&all[2..3], "model-00001-of-00001.safetensors", &[]);
}

#[test]
fn an_index_that_names_what_is_not_there_is_refused() {
    let check = |index: &str, reason| check_files(&with_index(index), INDEX, reason);
    check(r#"{"weight_map":{"a":"3.safetensors"}}"#, "3.safetensors, which is not there");
    check(r#"{"weight_map":{"a":"../1.safetensors"}}"#, "../1.safetensors, which is not there");
    check(r#"{"weight_map":{"a":"./1.safetensors"}}"#, "which is not there");
    check(r#"{"weight_map":{"a":"/etc/passwd"}}"#, "which is not there");
    check(r#"{"weight_map":{"a":""}}"#, "which is not there");
    check(r#"{"weight_map":{"a":"x\ny"}}"#, r"x\ny, which is not there");
    check(r#"{"weight_map":{"a":"1.safetensors","c":"1.safetensors"}}"#, "lacks c");
    check(r#"{"weight_map":{"x\ny":"1.safetensors"}}"#, r"1.safetensors in memory lacks x\ny");
    for index in ["", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{\"a\":1}}"] {
        check(index, "is not an index");
    }
    let itself = format!(r#"{{"weight_map":{{"a":"{INDEX}"}}}}"#);
    check(&itself, "cannot be used");
}

#[test]
fn a_model_without_weights_or_with_two_of_them_is_refused() {
    check_files(&[("config.json", b"{}".to_vec())], "memory", "no .safetensors and no .gguf");
    let two = [("a.gguf", Vec::new()), ("b.gguf", Vec::new())];
    check_files(&two, "memory", "has 2 .gguf files");
}

#[test]
fn names_of_parts_that_are_not_one_model_are_refused() {
    let check = |names: &[&str], reason: &str| {
        let files: Vec<_> = names.iter().map(|name| (*name, Vec::new())).collect();
        check_files(&files, "memory", reason);
    };
    let (first, second) = ("m-q4-00001-of-00002.gguf", "m-q4-00002-of-00002.gguf");
    check(&[first], "m-q4-00002-of-00002.gguf is not there");
    check(&[second], "m-q4-00001-of-00002.gguf is not there");
    // The choice between them is ambiguous.
    check(&[first, second, "m-q4.gguf"], "has 3 .gguf files");
    check(&[first, "n-00002-of-00002.gguf"], "has 2 .gguf files");
    for name in ["m-00001-of-00001.gguf", "m-1-of-2.gguf", "m-00003-of-00002.gguf", "m.gguf"] {
        check(&[name], "cannot be used");
    }
}
