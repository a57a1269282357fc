//! GGUF file of a model, read by all engines.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nsbridge_llama::{Mix, quantize};

const FILE: &str = "model.gguf";

/// Model in one quantization mix, in a folder of its own.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) dir: PathBuf,
}

impl Kept {
    /// Creates the file, unless it exists.
    pub(crate) fn of(model: &Path, mix: Mix, folder: &Path) -> Result<Self> {
        let name = model.file_name().context("a model has a name")?.to_string_lossy();
        let kept = Self { dir: folder.join(format!("{name}-{mix}")) };
        if kept.file().exists() {
            return Ok(kept);
        }
        fs::create_dir_all(&kept.dir)?;
        for file in ["config.json", "tokenizer.json"] {
            if model.join(file).exists() {
                fs::copy(model.join(file), kept.dir.join(file))?;
            }
        }
        // The file has a temporary name until it is complete, because a run may be interrupted.
        let part = kept.dir.join("part");
        quantize(&nsbridge_handler::Model::in_dir(model), mix, &fs::File::create(&part)?, |_| {})
            .with_context(|| format!("writing {} in {mix}", model.display()))?;
        fs::rename(part, kept.file())?;
        Ok(kept)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join(FILE)
    }
}
