//! Errors of loading a model.

use std::path::{Path, PathBuf};

use nsbridge_handler::{Error, Model, quote};

/// Error of loading a model, as a sentence that names the file and the field.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file is missing or unreadable.
    #[error("{0}")]
    Read(String),
    /// A file does not have the format that its name implies.
    #[error("could not understand {}", path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// Error of its parser.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The model needs a feature that this engine does not have.
    #[error("cannot serve this model: {field} is {found}, and only {supported} is supported")]
    Unsupported {
        /// Name of the field, with its file.
        field: String,
        /// Value of the field.
        found: String,
        /// Supported values.
        supported: String,
    },
    /// The weights are quantized in a way that this engine does not have.
    #[error(
        "cannot serve this model: {0}; quantize the model that it was made of with `nsbridge model \
         quantize`, or use a GGUF file of it"
    )]
    Quantized(String),
    /// A part of the model is missing.
    #[error("the model is incomplete: {0}")]
    Missing(String),
    /// The worker's options, machine or build do not suit the model.
    #[error("{0}")]
    Worker(String),
    /// Loading took longer than the worker's options allow.
    #[error("the model was not loaded within model_loading_timeout, {0} s")]
    Slow(f64),
    /// The model's logits differ from those of a reference.
    #[error(
        "the model's logits are not those of {file}: the largest difference is {largest:.3e}, after {after} of \
         {tokens} tokens, which is above parity_tolerance, {tolerance:e}; another token is the \
         likeliest after {mismatches}"
    )]
    Differs {
        /// File of the reference.
        file: String,
        /// Largest difference that would have passed.
        tolerance: f32,
        /// Number of tokens in the reference.
        tokens: usize,
        /// Largest absolute difference of two logits; NaN if a logit is NaN.
        largest: f32,
        /// Number of tokens after which the largest difference was.
        after: usize,
        /// Number of tokens after which another token is the likeliest.
        mismatches: usize,
    },
}

impl From<nsbridge_kernels::Error> for LoadError {
    fn from(error: nsbridge_kernels::Error) -> Self {
        match error {
            nsbridge_kernels::Error::Unsupported { field, found, supported } => {
                Self::unsupported(field, found, supported)
            }
            error => Self::Worker(error.to_string()),
        }
    }
}

impl LoadError {
    pub(crate) fn unsupported(
        field: impl Into<String>,
        found: impl Into<String>,
        supported: impl Into<String>,
    ) -> Self {
        // Field and value are quoted, since they come from files, and tensor names do too.
        let (field, found) = (quote(field.into()), quote(found.into()));
        Self::Unsupported { field, found, supported: supported.into() }
    }

    /// Refuses weights for a reason that names a file's field or tensor.
    pub(crate) fn quantized(what: impl Into<String>) -> Self {
        Self::Quantized(quote(what.into()))
    }

    pub(crate) fn parse<E>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        move |source| Self::Parse { path: path.into(), source: source.into() }
    }

    /// Converts a handler error, which does not implement `std::error::Error`, by its message.
    #[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
    pub(crate) fn read(error: Error) -> Self {
        Self::Read(error.to_string())
    }

    /// Converts to a fatal error, since another try would not load the model either.
    pub(crate) fn fatal(self) -> Error {
        Error::fatal(self)
    }
}

/// Returns a file's path for messages.
pub(crate) fn within(model: &Model, path: &str) -> PathBuf {
    Path::new(&model.folder_place()).join(path)
}
