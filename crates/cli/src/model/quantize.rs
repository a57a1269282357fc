//! `nsbridge model quantize`: writes a model with quantized weights.

mod created_files;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use nsbridge_handler::source::files_of;
use nsbridge_handler::{Model, quote};
use nsbridge_llama::{Config, Mix, QuantizeError, Writing, quantize};
use nsbridge_store::{MANIFEST, Opened};
use serde_json::{Value, json};

use self::created_files::{Made, Making};
use crate::failure::note;
use crate::progress::{Bar, size};

/// Prefix and suffix of the name of an incomplete file. The leading dot hides it, so it is not
/// taken for a file of the model.
const PART: (&str, &str) = (".model-", ".gguf.part");

/// Returns a parser for the name of a mix.
pub(super) fn mix() -> impl TypedValueParser<Value = Mix> {
    PossibleValuesParser::new(Mix::ALL.map(Mix::name)).try_map(|name| name.parse::<Mix>())
}

/// Writes the quantized model into a folder. A failed run leaves the folder as it was.
pub(super) async fn run(opened: Opened, to: PathBuf, dtype: Mix, json: bool) -> Result<Value> {
    let made = Made::default();
    let making = made.making();
    // Weights are quantized on other threads, so this task keeps handling Ctrl-C.
    let place = opened.model.place();
    let work = move || write(&opened.model, &to, dtype, &making, json);
    let (file, bytes) = tokio::task::spawn_blocking(work).await??;
    made.keep();
    note(&format!("{place} is in {}, {}", file.display(), size(bytes)));
    Ok(json!({ "place": place, "file": file, "dtype": dtype.name(), "bytes": bytes }))
}

/// Writes the model's other files and then its weights, so a folder with a GGUF file is complete.
///
/// Returns the path and the size of the GGUF file.
fn write(
    model: &Model,
    to: &Path,
    dtype: Mix,
    making: &Making,
    json: bool,
) -> Result<(PathBuf, u64)> {
    // A model that cannot be served is refused before any file is copied.
    Config::read(model)?;
    making.folder(to)?;
    refuse_what_is_there(to)?;
    let place = to.join(format!("model-{dtype}.gguf"));
    let part = to.join(format!("{}{dtype}{}", PART.0, PART.1));
    // The partial file is created first, so that a concurrent run finds it.
    let file = making.file(&part)?;
    for path in model.files().filter(|path| !is_weights(path) && *path != MANIFEST) {
        copy(model, path, &to.join(path), making)?;
    }
    let bar = Bar::new("writing", json);
    let told = |step| match step {
        Writing::Planned(bytes) => bar.expect(bytes),
        Writing::Written(bytes) => bar.add(bytes),
        _ => {}
    };
    let bytes = quantize(model, dtype, &file, told).map_err(|error| match error {
        QuantizeError::Write(error) => {
            anyhow::Error::from(error).context(format!("writing {}", part.display()))
        }
        error => error.into(),
    })?;
    making.rename(&part, &place)?;
    bar.end();
    Ok((place, bytes))
}

/// Refuses a folder with files in it, since they would be taken for files of the model.
fn refuse_what_is_there(to: &Path) -> Result<()> {
    let folder = to.display();
    let reading = || format!("reading the folder {folder}");
    for entry in to.read_dir().with_context(reading)? {
        let name = entry.with_context(reading)?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PART.0) && name.ends_with(PART.1) {
            bail!(
                "{folder} has {}, of a run that was killed or is still under way: if it was \
                 killed, empty the folder and run this again",
                quote(name)
            );
        }
    }
    let found = files_of(to).with_context(reading)?;
    if let Some(other) = found.first() {
        bail!("{folder} is not empty, it has {}: give a folder of its own", quote(&other.path));
    }
    Ok(())
}

fn copy(model: &Model, path: &str, to: &Path, making: &Making) -> Result<()> {
    if let Some(folder) = to.parent() {
        making.folder(folder)?;
    }
    let mut file = making.file(to)?;
    for stretch in model.stretches(path).map_err(|error| anyhow!("{error}"))? {
        let bytes = stretch.map_err(|error| anyhow!("{error}"))?;
        file.write_all(&bytes).with_context(|| format!("writing {}", to.display()))?;
    }
    Ok(())
}

/// Returns true for files with tensors in any common format, and for their indices.
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
    // External data of an ONNX file is named after it: .onnx_data, .onnx.data, .onnx_data_1.
    ENDS.iter().any(|end| name.ends_with(end)) || name.contains(".onnx")
}
