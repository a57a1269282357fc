//! Fuzz targets: each parser of untrusted input, as a function of bytes.
//!
//! They panic on what must not be. `crates/dev/testkit/fuzz` has libFuzzer call them; a test of this
//! crate calls them with some thousand mutations of the [seeds](Target::seeds).

mod format;
mod memory;
mod model;
mod seeds;
mod store;
mod text;

use std::borrow::Cow;

/// One parser, or a family of them.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its binary.
    pub name: &'static str,
    /// Reads the bytes, and holds what comes of it against what is promised.
    pub run: fn(&[u8]),
    /// Good files, from which mutations reach what no random bytes would.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All that is fuzzed.
pub const TARGETS: [Target; 8] = [
    Target { name: "frames", run: frames, seeds: seeds::frames },
    Target { name: "safetensors", run: safetensors, seeds: seeds::safetensors },
    Target { name: "gguf", run: gguf, seeds: seeds::gguf },
    Target { name: "manifest", run: manifest, seeds: seeds::manifest },
    Target { name: "config", run: config, seeds: seeds::config },
    Target { name: "tokenizer", run: tokenizer, seeds: seeds::tokenizer },
    Target { name: "format", run: format, seeds: seeds::format },
    Target { name: "vocabulary", run: vocabulary, seeds: seeds::vocabulary },
];

/// The bytes as frames from a broker.
pub fn frames(bytes: &[u8]) {
    nsbridge_queue::testing::read_frames(bytes);
}

/// The bytes as a model's safetensors file; as the index of a good one too, if they may be one.
pub fn safetensors(bytes: &[u8]) {
    model::read(&[("model.safetensors", bytes)]);
    if bytes.starts_with(b"{") {
        let shard = seeds::shard();
        model::read(&[("a.safetensors", &shard), ("model.safetensors.index.json", bytes)]);
    }
}

/// The bytes as a model's GGUF file.
pub fn gguf(bytes: &[u8]) {
    model::read(&[("model.gguf", bytes)]);
}

/// The bytes as a manifest, as an alias, and as the address of a model.
pub fn manifest(bytes: &[u8]) {
    store::manifest(bytes);
    store::alias(bytes);
    if let Ok(text) = str::from_utf8(bytes) {
        store::location(text);
    }
}

/// The bytes as a model's `config.json`, and as the `generation_config.json` beside a good one.
pub fn config(bytes: &[u8]) {
    text::config(&[("config.json", bytes)]);
    text::config(&[("config.json", seeds::CONFIG), ("generation_config.json", bytes)]);
}

/// The bytes as a model's `tokenizer.json`, and as the `tokenizer_config.json` beside a good one.
pub fn tokenizer(bytes: &[u8]) {
    text::tokenizer(&[
        ("tokenizer.json", bytes),
        ("tokenizer_config.json", seeds::TOKENIZER_CONFIG),
    ]);
    let tokenizer = seeds::byte_level();
    text::tokenizer(&[("tokenizer.json", &tokenizer), ("tokenizer_config.json", bytes)]);
}

/// The bytes as a GGUF file that is a model's vocabulary; as edits of a good one, if they are none.
pub fn vocabulary(bytes: &[u8]) {
    text::tokenizer(&[("model.gguf", &vocabulary_file(bytes))]);
}

/// Returns the file that [`vocabulary`] reads. Edits may make it longer than they are.
pub fn vocabulary_file(bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes.starts_with(b"GGUF") { bytes.into() } else { seeds::edited(bytes).into() }
}

/// The bytes as a request's `response_format`.
pub fn format(bytes: &[u8]) {
    format::format(bytes);
}
