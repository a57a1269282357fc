//! Small good files, from which a fuzzer starts.

mod text;
mod vocabulary;

use nsbridge::store::{Alias, Manifest, ManifestFile};

pub(super) use self::text::{CONFIG, TOKENIZER_CONFIG, byte_level, config, format, tokenizer};
pub(super) use self::vocabulary::{edited, vocabulary};

/// Names the tensors of [`shard`].
const INDEX: &[u8] =
    br#"{"metadata":{"total_size":28},"weight_map":{"w.1":"a.safetensors","w.2":"a.safetensors"}}"#;

/// A broker's first words, a delivery with headers and its body, and one that is too large and too deep.
pub(super) fn frames() -> Vec<Vec<u8>> {
    let version = entry_of("version", &long_text(b"S", b"4.0.5"));
    let capabilities =
        entry_of("capabilities", &long_text(b"F", &entry_of("basic.nack", b"t\x01")));
    let properties = long_text(b"", &[version, capabilities].concat());
    let texts = [long_text(b"", b"PLAIN AMQPLAIN"), long_text(b"", b"en_US")].concat();
    let start = frame(1, &[&[0, 10, 0, 10, 0, 9], &properties[..], &texts].concat());
    let deliver = [&[0, 60, 0, 60][..], b"\x01c", &1_u64.to_be_bytes(), b"\0\0\x01q"].concat();
    let deliver = frame(1, &deliver);
    let mut deep = b"t\x01".to_vec();
    for _ in 0..20 {
        deep = long_text(b"A", &[&b"V"[..], &long_text(b"F", &entry_of("k", &deep))].concat());
    }
    let values = [
        entry_of("nsb-model", &long_text(b"S", b"tale-7m")),
        entry_of("nsb-tries", b"l\0\0\0\0\0\0\0\x01"),
        entry_of("x-death", &long_text(b"A", &long_text(b"F", &entry_of("count", b"I\0\0\0\x02")))),
    ];
    let usual = header_frame(4, &values.concat());
    let large = header_frame(1 << 40, &entry_of("deep", &deep));
    let body = frame(3, b"body");
    vec![
        [&start[..], &frame(8, b"")].concat(),
        [&deliver[..], &usual, &body, &deliver, &header_frame(0, b"")].concat(),
        [&deliver[..], &large, &body, &body, &deliver, &usual, &body].concat(),
    ]
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&[kind, 0, u8::from(kind != 8)][..], &long_text(b"", payload), &[0xce]].concat()
}

/// A content header with a content type, these headers and a delivery mode.
fn header_frame(body: u64, headers: &[u8]) -> Vec<u8> {
    let flags = 0xb000_u16.to_be_bytes();
    let properties = [&entry_of("application/json", b"")[..], &long_text(b"", headers), &[2]];
    frame(2, &[&[0, 60, 0, 0][..], &body.to_be_bytes(), &flags, &properties.concat()].concat())
}

fn long_text(letter: &[u8], bytes: &[u8]) -> Vec<u8> {
    [letter, &(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

fn entry_of(name: &str, value: &[u8]) -> Vec<u8> {
    [&[name.len() as u8], name.as_bytes(), value].concat()
}

pub(super) fn safetensors() -> Vec<Vec<u8>> {
    let metadata = r#""__metadata__":{"format":"pt"}"#.to_owned();
    let empty = [metadata, entry("a", "BF16", "[0,8]", [0, 0])];
    let deep = [entry("a", "U8", "[2,2,2]", [0, 8]), entry("b", "I64", "[]", [8, 16])];
    vec![shard(), in_safetensors(&empty, 0), in_safetensors(&deep, 16), INDEX.into(), b"{}".into()]
}

/// The shard that the index among the seeds names.
pub(super) fn shard() -> Vec<u8> {
    let entries = [entry("w.1", "F32", "[2,3]", [0, 24]), entry("w.2", "F16", "[2]", [24, 28])];
    in_safetensors(&entries, 28)
}

fn entry(name: &str, dtype: &str, shape: &str, [start, end]: [u64; 2]) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

fn in_safetensors(entries: &[String], data: u8) -> Vec<u8> {
    let header = format!("{{{}}}", entries.join(","));
    let length = (header.len() as u64).to_le_bytes();
    [&length, header.as_bytes(), &(0..data).collect::<Vec<_>>()].concat()
}

pub(super) fn gguf() -> Vec<Vec<u8>> {
    let words = || [value("words", 9), number(8), long(2), text("a"), text("bc")].concat();
    let nested = || [value("n", 9), number(9), long(1), number(1), long(2), vec![1, 255]].concat();
    let align = || [value("general.alignment", 4), number(64)].concat();
    let all = (0..13).filter(|kind| *kind != 9).map(|kind| {
        let bytes = [1usize, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8][kind];
        [value(&format!("v{kind}"), kind as u32), vec![0; bytes]].concat()
    });
    let all: Vec<Vec<u8>> = all.collect();
    vec![
        in_gguf(3, &[], &[tensor("f", &[3, 2], 0, 0), tensor("q", &[64], 8, 32)], 32, 100),
        in_gguf(2, &[words(), align()], &[tensor("k", &[256, 1], 12, 0)], 64, 144),
        in_gguf(3, &[nested()], &[tensor("h", &[2, 2, 2, 2], 1, 0)], 32, 32),
        in_gguf(3, &all, &[], 32, 0),
    ]
}

fn in_gguf(
    version: u32,
    values: &[Vec<u8>],
    tensors: &[Vec<u8>],
    align: usize,
    data: usize,
) -> Vec<u8> {
    let counts = [long(tensors.len() as u64), long(values.len() as u64)].concat();
    let mut file =
        [b"GGUF".to_vec(), number(version), counts, values.concat(), tensors.concat()].concat();
    file.resize(file.len().next_multiple_of(align) + data, 7);
    file
}

/// The beginning of a value: its name and its type.
fn value(name: &str, kind: u32) -> Vec<u8> {
    [text(name), number(kind)].concat()
}

fn tensor(name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let sizes: Vec<u8> = dimensions.iter().flat_map(|&n| long(n)).collect();
    [text(name), number(dimensions.len() as u32), sizes, number(kind), long(offset)].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&long(text.len() as u64), text.as_bytes()].concat()
}

fn number(number: u32) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn long(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

/// Responses of each framing, one after an interim response, and a chunk of 2^64 bytes.
pub(super) fn manifest() -> Vec<Vec<u8>> {
    let files = vec![file("config.json", b"{}"), file("empty", b""), file("original/a", b"abc")];
    let mut small = Manifest::new("tale-7m", "2026-11-21", files);
    small.chunk_bytes = SMALL_CHUNK;
    let alias = Alias::new("2026-11-21", [7; 32]);
    vec![
        small.to_json(),
        alias.to_json(),
        b"s3://bucket/models/tale-7m@current".to_vec(),
        b"models/tale-7m".to_vec(),
    ]
}

/// Size of a chunk of the seeds' manifest, the smallest that a manifest may have.
const SMALL_CHUNK: u64 = 64 << 10;

/// A file of one chunk at most.
fn file(path: &str, bytes: &[u8]) -> ManifestFile {
    let mut file = ManifestFile::of(path, bytes, SMALL_CHUNK);
    file.etag = Some("\"9bb5\"".to_owned()).filter(|_| path == "empty");
    file
}
