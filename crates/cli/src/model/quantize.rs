//! `nsbridge model quantize`: a model in fewer bits.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use nsbridge::store::{MANIFEST, Opened};
use nsbridge_handler::Model;
use nsbridge_handler::source::files_of;
use nsbridge_llama::{Mix, Writing, quantise};
use serde_json::{Value, json};

use super::bar::{Bar, size};
use crate::failure::note;

/// Reads the name of a mix.
pub(super) fn mix() -> impl TypedValueParser<Value = Mix> {
    PossibleValuesParser::new(Mix::ALL.map(Mix::name)).try_map(|name| name.parse::<Mix>())
}

/// Writes the model's other files, and then its weights: a folder with a GGUF file is whole.
pub(super) fn run(opened: &Opened, to: &Path, dtype: Mix, json: bool) -> Result<Value> {
    let (model, folder) = (&opened.model, to.display());
    fs::create_dir_all(to).with_context(|| format!("making the folder {folder}"))?;
    let found = files_of(to).with_context(|| format!("reading the folder {folder}"))?;
    if let Some(other) = found.first() {
        bail!("{folder} is not empty, it has {}: give a folder of its own", other.path);
    }
    for path in model.files().filter(|path| !is_weights(path) && *path != MANIFEST) {
        copy(model, path, &to.join(path))?;
    }
    let bar = Bar::new("writing", json);
    let told = |step| match step {
        Writing::Planned(bytes) => bar.expect(bytes),
        Writing::Written(bytes) => bar.add(bytes),
    };
    let place = to.join(format!("model-{dtype}.gguf"));
    // Under another name until it is whole.
    let part = to.join(format!(".model-{dtype}.gguf.part"));
    let bytes = quantise(model, dtype, &part, told).inspect_err(|_| {
        let _ = fs::remove_file(&part);
    })?;
    fs::rename(&part, &place).with_context(|| format!("writing {}", place.display()))?;
    bar.end();
    note(&format!("{} is in {}, {}", model.place(), place.display(), size(bytes)));
    Ok(json!({ "place": model.place(), "file": place, "dtype": dtype.name(), "bytes": bytes }))
}

fn copy(model: &Model, path: &str, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("making the folder {}", folder.display()))?;
    }
    let writing = || format!("writing {}", to.display());
    let mut file = File::create(to).with_context(writing)?;
    for stretch in model.stretches(path).map_err(|error| anyhow!("{error}"))? {
        let bytes = stretch.map_err(|error| anyhow!("{error}"))?;
        file.write_all(&bytes).with_context(writing)?;
    }
    Ok(())
}

/// Tensors in whatever format they come beside each other, or where they are.
fn is_weights(path: &str) -> bool {
    const ENDS: [&str; 16] = [
        ".safetensors",
        ".safetensors.index.json",
        ".gguf",
        ".bin",
        ".bin.index.json",
        ".pt",
        ".pth",
        ".ckpt",
        ".ot",
        ".npz",
        ".h5",
        ".h5.index.json",
        ".msgpack",
        ".msgpack.index.json",
        ".tflite",
        ".mlmodel",
    ];
    let name = path.rsplit('/').next().unwrap_or(path);
    // What an ONNX file leaves out of itself is called after it: .onnx_data, .onnx.data, .onnx_data_1.
    ENDS.iter().any(|end| name.ends_with(end)) || name.contains(".onnx")
}
