//! GGUF file of a model, read by all engines.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nsbridge_llama::testing::write_in;
use nsbridge_llama::{Format, Mix, quantize};

const FILE: &str = "model.gguf";

/// Formats of a file's matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Mix of `nsbridge model quantize`.
    Mix(Mix),
    /// One format for all, rounded to nearest.
    All(Format),
}

impl From<Mix> for Kind {
    fn from(mix: Mix) -> Self {
        Self::Mix(mix)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mix(mix) => mix.fmt(f),
            Self::All(format) => f.write_str(&format.to_string().to_lowercase()),
        }
    }
}

impl Kind {
    /// Returns the bytes of a weight of the embedding.
    pub(crate) fn of_embedding(self) -> f64 {
        let format = match self {
            Self::All(format) => format,
            Self::Mix(Mix::F32) => Format::F32,
            Self::Mix(Mix::F16) => Format::F16,
            Self::Mix(Mix::Bf16) => Format::Bf16,
            Self::Mix(Mix::Q8_0) => Format::Q8_0,
            Self::Mix(Mix::Q6K) => Format::Q6K,
            Self::Mix(Mix::Q5KM) => Format::Q5K,
            Self::Mix(Mix::Q4KM) => Format::Q4K,
            Self::Mix(other) => panic!("{other} has no format for the embedding"),
        };
        let (weights, bytes) = format.block_in_file();
        bytes as f64 / weights as f64
    }
}

/// Model in formats of one kind, in a folder of its own.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) dir: PathBuf,
}

impl Kept {
    /// Creates the file, unless it exists.
    pub(crate) fn of(model: &Path, kind: impl Into<Kind>, folder: &Path) -> Result<Self> {
        let kind = kind.into();
        let name = model.file_name().context("a model has a name")?.to_string_lossy();
        let kept = Self { dir: folder.join(format!("{name}-{kind}")) };
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
        let (files, file) = (nsbridge_handler::Model::in_dir(model), fs::File::create(&part)?);
        let written = match kind {
            Kind::Mix(mix) => quantize(&files, mix, &file, |_| {}),
            Kind::All(format) => write_in(&files, format, &file),
        };
        written.with_context(|| format!("writing {} in {kind}", model.display()))?;
        fs::rename(part, kept.file())?;
        Ok(kept)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join(FILE)
    }
}
