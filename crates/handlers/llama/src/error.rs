//! Why a model cannot be loaded.

use std::path::PathBuf;

use nsbridge_handler::{Error, quote};

/// Why a model cannot be loaded: a sentence that names the file and the field.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file cannot be had.
    #[error("{0}")]
    Read(String),
    /// A file is not what its name says.
    #[error("could not understand {}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What its reader says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The model needs what this engine does not do.
    #[error("cannot serve this model: {field} is {found}, and only {supported} is supported")]
    Unsupported {
        /// The field, with its file.
        field: String,
        /// Its value.
        found: String,
        /// What it may be.
        supported: String,
    },
    /// A part of the model is not there.
    #[error("the model is incomplete: {0}")]
    Missing(String),
    /// The worker's options, its machine or its build are not what the model takes.
    #[error("{0}")]
    Worker(String),
    /// It took longer than the worker's options allow.
    #[error("the model was not loaded within model_loading_timeout, {0} s")]
    Slow(f64),
    /// It does not compute what a reference says.
    #[error(
        "the model's logits are not those of {file}: the largest difference is {largest:.3e}, after {after} of \
         {tokens} tokens, which is above parity_tolerance, {tolerance:e}; another token is the \
         likeliest after {mismatches}"
    )]
    Differs {
        /// The reference.
        file: String,
        /// What would have been taken for equal.
        tolerance: f32,
        /// How many tokens the reference has.
        tokens: usize,
        /// The largest difference of two logits; NaN if one is.
        largest: f32,
        /// Number of tokens after which the largest difference was.
        after: usize,
        /// Number of tokens after which another token is the likeliest.
        mismatches: usize,
    },
}

impl LoadError {
    pub(crate) fn unsupported(
        field: impl Into<String>,
        found: impl Into<String>,
        supported: impl Into<String>,
    ) -> Self {
        // What is found stands in a file, and in names of tensors too.
        let (field, found) = (quote(field.into()), quote(found.into()));
        Self::Unsupported { field, found, supported: supported.into() }
    }

    pub(crate) fn parse<E>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        move |source| Self::Parse { path: path.into(), source: source.into() }
    }

    /// The handler's own errors are no `std::error::Error`; their sentence is what counts.
    #[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
    pub(crate) fn read(error: Error) -> Self {
        Self::Read(error.to_string())
    }

    /// A model that does not load here will not load on the next try either.
    pub(crate) fn fatal(self) -> Error {
        Error::fatal(self)
    }
}
