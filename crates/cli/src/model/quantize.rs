//! `nsbridge model quantize`: a model in fewer bits.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use nsbridge::store::{MANIFEST, Opened};
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
        let bytes = model.read(path).map_err(|error| anyhow!("{error}"))?;
        let place = to.join(path);
        if let Some(folder) = place.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("making the folder {}", folder.display()))?;
        }
        fs::write(&place, bytes).with_context(|| format!("writing {}", place.display()))?;
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

/// Tensors in whatever format they come beside each other, or where they are.
fn is_weights(path: &str) -> bool {
    const ENDS: [&str; 10] = [
        ".safetensors",
        ".safetensors.index.json",
        ".gguf",
        ".bin",
        ".bin.index.json",
        ".pt",
        ".pth",
        ".onnx",
        ".h5",
        ".msgpack",
    ];
    ENDS.iter().any(|end| path.ends_with(end))
}
