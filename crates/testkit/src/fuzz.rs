//! Fuzz targets: each parser of untrusted input, as a function of bytes.
//!
//! They panic on what must not be. `crates/testkit/fuzz` has libFuzzer call them; a test of this
//! crate calls them with some thousand mutations of the [seeds](Target::seeds).

mod memory;
mod model;
mod seeds;
mod store;

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
pub const TARGETS: [Target; 4] = [
    Target { name: "frames", run: frames, seeds: seeds::frames },
    Target { name: "safetensors", run: safetensors, seeds: seeds::safetensors },
    Target { name: "gguf", run: gguf, seeds: seeds::gguf },
    Target { name: "manifest", run: manifest, seeds: seeds::manifest },
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
