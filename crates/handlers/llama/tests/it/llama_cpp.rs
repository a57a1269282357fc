//! Tests of GGUF files that are made here, against llama.cpp's logits for the same bytes.

use std::fs;
use std::path::{Path, PathBuf};

use nsbridge_checkpoint::Checkpoint;
use nsbridge_handler::Model;
use nsbridge_llama::{Mix, Setup, quantize};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::bundled::bundled;
use crate::network::{self, distance, logits};
use crate::tiny::write_drawn;

/// Recorded results of `by_llama_cpp.py`.
#[derive(Deserialize)]
struct Recorded {
    seed: u64,
    scale: f32,
    /// Tensor types that llama.cpp's own program chooses for the target, by mix and tensor.
    mixed: serde_json::Map<String, Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    mix: String,
    /// `None` for a bundled model.
    config: Option<Value>,
    sha256: String,
    tokens: Vec<u32>,
    /// Stride of the recorded logits.
    every: usize,
    likeliest: Vec<usize>,
    /// Logits by the number of tokens before them.
    logits: std::collections::BTreeMap<usize, Vec<f32>>,
}

impl Recorded {
    fn read() -> Self {
        serde_json::from_str(include_str!("../by_llama_cpp.json")).unwrap()
    }
}

/// Quantizes a model into a new folder. Returns the folder and the file's path.
fn quantized(from: &Path, mix: &str) -> (TempDir, PathBuf) {
    let to = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json"] {
        if let Ok(bytes) = fs::read(from.join(file)) {
            fs::write(to.path().join(file), bytes).unwrap();
        }
    }
    let file = to.path().join("model.gguf");
    let made = fs::File::create(&file).unwrap();
    quantize(&Model::in_dir(from), mix.parse().unwrap(), &made, |_| {}).unwrap();
    (to, file)
}

impl Case {
    fn quantized(&self, recorded: &Recorded) -> (TempDir, PathBuf) {
        let Some(config) = &self.config else { return quantized(&bundled(&self.name), &self.mix) };
        let drawn = tempfile::tempdir().unwrap();
        write_drawn(drawn.path(), config, recorded.seed, recorded.scale);
        quantized(drawn.path(), &self.mix)
    }

    /// Returns the tolerance of logits, as a ratio of root mean squares. llama.cpp rounds
    /// activations to f16 or bf16 before it multiplies them with such weights, and its 8-bit blocks
    /// of activations differ a little.
    fn tolerance(&self) -> f64 {
        match self.mix.as_str() {
            "f32" => 2e-5,
            "f16" => 2e-3,
            "bf16" => 2e-2,
            _ => 4e-2,
        }
    }
}

#[test]
fn logits_are_those_of_llama_cpp() {
    let recorded = Recorded::read();
    for case in &recorded.cases {
        let what = format!("{} in {}", case.name, case.mix);
        let (dir, file) = case.quantized(&recorded);
        let digest: String = Sha256::digest(fs::read(file).unwrap())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            digest, case.sha256,
            "{what}: not the file that llama.cpp read; run by_llama_cpp.py again"
        );
        let found = logits(&mut network::open(dir.path(), &Setup::default()), &case.tokens, 64);
        let mut worst = 0.0_f64;
        for (after, right) in &case.logits {
            let found = found[after - 1].iter().step_by(case.every);
            worst = worst.max(distance(right, found));
        }
        let likeliest = |row: &Vec<f32>| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
        let same = found
            .iter()
            .zip(&case.likeliest)
            .filter(|(row, right)| likeliest(row) == Some(**right))
            .count();
        println!("{what}: {worst:.2e}, {same} of {} tokens", found.len());
        assert!(worst < case.tolerance(), "{what}: {worst}");
        assert!(same + 2 >= found.len(), "{what}: only {same} tokens are the same");
    }
}

#[test]
fn mixes_are_those_of_llama_cpp() {
    for (mix, theirs) in Recorded::read().mixed {
        let (dir, _) = quantized(&bundled("tale-7m"), &mix);
        let ours = Checkpoint::open(&Model::in_dir(dir.path())).unwrap();
        let theirs = theirs.as_object().unwrap();
        assert_eq!(ours.tensors().len(), theirs.len());
        for tensor in ours.tensors() {
            assert_eq!(tensor.dtype.to_string(), theirs[&tensor.name], "{mix}: {}", tensor.name);
        }
    }
}

#[test]
fn a_file_in_sixteen_bits_gives_the_bits_of_the_model_it_was_made_of() {
    for name in ["tale-7m", "tale-1m"] {
        let tokens: Vec<u32> = (0..40).map(|i| i * i * 31 % 4096).collect();
        let run = |dir: &Path| logits(&mut network::open(dir, &Setup::default()), &tokens, 16);
        let right = run(&bundled(name));
        for mix in [Mix::Bf16, Mix::F32] {
            assert_eq!(run(quantized(&bundled(name), mix.name()).0.path()), right, "{name} {mix}");
        }
    }
}

#[test]
fn what_cannot_be_quantized_is_named() {
    let drawn = tempfile::tempdir().unwrap();
    let recorded = Recorded::read();
    let config = recorded.cases.iter().find_map(|case| case.config.as_ref()).unwrap();
    write_drawn(drawn.path(), config, recorded.seed, recorded.scale);
    let refused = |dir: &Path, mix: Mix| {
        let file = tempfile::tempfile().unwrap();
        let refused = quantize(&Model::in_dir(dir), mix, &file, |_| {});
        refused.unwrap_err().to_string()
    };

    let (quantized, _) = quantized(drawn.path(), "q8_0");
    let why = refused(quantized.path(), Mix::Q4KM);
    assert!(why.contains("is Q8_0 already"), "{why}");

    // Makes the last weight infinite.
    let path = drawn.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let why = refused(drawn.path(), Mix::Q4KM);
    assert!(why.contains("row ") && why.contains("no number"), "{why}");
}
