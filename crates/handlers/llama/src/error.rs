//! Why a model cannot be loaded.

use std::path::PathBuf;

use nsbridge_handler::Error;

/// Why a model cannot be loaded: a sentence that names the file and the field.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file cannot be read.
    #[error("could not read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
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
}

impl LoadError {
    pub(crate) fn unsupported(
        field: impl Into<String>,
        found: impl Into<String>,
        supported: impl Into<String>,
    ) -> Self {
        Self::Unsupported { field: field.into(), found: found.into(), supported: supported.into() }
    }

    pub(crate) fn read(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Read { path: path.into(), source }
    }

    pub(crate) fn parse<E>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        move |source| Self::Parse { path: path.into(), source: source.into() }
    }

    /// A model that does not load here will not load on the next try either.
    pub(crate) fn fatal(self) -> Error {
        Error::fatal(self)
    }
}
