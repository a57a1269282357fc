//! Typed access to the metadata of a GGUF file.
//!
//! Metadata keys: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod stops;
mod tokens;

use std::path::PathBuf;

use nsbridge_checkpoint::{Checkpoint, GgufValue, Metadata};

use crate::error::{LoadError, within};

pub(crate) use self::stops::{special, stop_ids};
pub(crate) use self::tokens::{Kind, TYPES, Token, tokens};

/// Version of the reading; increased when the metadata of a file could mean another vocabulary or other
/// tokens that end a reply.
pub(crate) const VERSION: u32 = 3;

/// Id that means "none" where converters write -1 as an unsigned number.
const NONE: u64 = u32::MAX as u64;

/// Metadata of one file.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    metadata: &'a Metadata,
    /// Name of the file.
    file: String,
    /// Path of the file, for errors.
    path: PathBuf,
}

impl<'a> Facts<'a> {
    /// Returns the metadata of a checkpoint, or `None` if it was not read from GGUF.
    pub(crate) fn of(checkpoint: &'a Checkpoint) -> Option<Self> {
        let metadata = checkpoint.metadata();
        let model = checkpoint.model();
        let gguf = |path: &&str| path.ends_with(".gguf");
        let file = checkpoint.files().next().or_else(|| model.files().find(gguf))?.to_owned();
        let path = within(model, &file);
        (!metadata.is_empty()).then_some(Self { metadata, file, path })
    }

    /// Returns the name of the file.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// Returns the error for a value that contradicts the format.
    pub(crate) fn broken(&self, what: impl Into<String>) -> LoadError {
        LoadError::parse(&self.path)(what.into())
    }

    /// Returns the error for a value that this engine does not support.
    pub(crate) fn unsupported(&self, key: &str, found: &str, supported: &str) -> LoadError {
        LoadError::unsupported(format!("{key} in {}", self.file), found, supported)
    }

    /// Returns the error for a missing value.
    pub(crate) fn missing(&self, key: &str) -> LoadError {
        LoadError::Missing(format!("{} has no {key}", self.path.display()))
    }

    /// Returns true if the file has a value.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.metadata.contains_key(key)
    }

    /// Returns a text, if the file has it.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, LoadError> {
        self.value(key, "a text in UTF-8", |value| match value {
            GgufValue::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// Returns a boolean, if the file has it.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.value(key, "true or false", |value| match value {
            GgufValue::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// Returns the id of a token, if the file has it. The id must be below `size`.
    pub(crate) fn id(&self, key: &str, size: usize) -> Result<Option<u32>, LoadError> {
        let number = self.value(key, "a token's id", |value| match value {
            GgufValue::Unsigned(number) => Some(*number),
            GgufValue::Signed(-1) => Some(NONE),
            GgufValue::Signed(number) => u64::try_from(*number).ok(),
            _ => None,
        })?;
        let Some(number) = number.filter(|number| *number != NONE) else { return Ok(None) };
        let id = u32::try_from(number).ok().filter(|id| (*id as usize) < size);
        let beyond = || self.broken(format!("{key} is {number}, and there are {size} tokens"));
        id.map(Some).ok_or_else(beyond)
    }

    /// Returns the elements of an array, if the file has it.
    pub(crate) fn array<T>(
        &self,
        key: &str,
        expected: &str,
        element: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<Vec<T>>, LoadError> {
        let array = self.value(key, "an array", |value| match value {
            GgufValue::Array(values) => Some(values),
            _ => None,
        })?;
        let Some(values) = array else { return Ok(None) };
        let mut elements = Vec::with_capacity(values.len());
        for (index, value) in values.iter().enumerate() {
            let wrong = || self.broken(format!("element {index} of {key} is not {expected}"));
            elements.push(element(value).ok_or_else(wrong)?);
        }
        Ok(Some(elements))
    }

    /// Returns an array of texts, if the file has it.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, LoadError> {
        self.array(key, "a text in UTF-8", |value| match value {
            GgufValue::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    fn value<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        let wrong = || self.broken(format!("{key} is not {expected}"));
        read(value).map(Some).ok_or_else(wrong)
    }
}
