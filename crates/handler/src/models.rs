//! Models that a handler loads.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::source::{Folder, LoadProgress, Source, Tracked, gguf_in_folder, is_gguf};

/// Maximum size in bytes of a file that is read in one piece: configuration, tokenizer, template.
const MOST_IN_ONE_PIECE: u64 = 256 << 20;

/// Read size in bytes for files of any size: whole chunks, as a store has them.
const STRETCH: u64 = 64 << 20;

/// Models named in the worker's configuration, each ready to be read.
///
/// ```
/// use nsbridge_handler::{Model, Models};
///
/// let target = Model::in_dir("models/tale-7m");
/// let models: Models = [("target".to_owned(), target)].into_iter().collect();
/// assert!(models.require("target").is_ok());
/// assert!(models.get("draft").is_none());
/// let why = models.require("draft").unwrap_err().to_string();
/// assert!(why.contains("add it to [models]"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Models(BTreeMap<String, Model>);

impl Models {
    /// Returns the model with this name in the configuration's `[models]` table.
    ///
    /// # Errors
    ///
    /// Returns an error that names the missing key of the table if there is no such model.
    pub fn require(&self, name: &str) -> Result<&Model> {
        self.get(name).ok_or_else(|| {
            Error::fatal(format!("the configuration names no model `{name}`: add it to [models]"))
        })
    }

    /// Returns the model with this name, or `None`, for a model that is optional.
    pub fn get(&self, name: &str) -> Option<&Model> {
        self.0.get(name)
    }

    /// Iterates over all models with their names, in ascending order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Model)> {
        self.0.iter().map(|(name, model)| (name.as_str(), model))
    }
}

impl FromIterator<(String, Model)> for Models {
    fn from_iter<T: IntoIterator<Item = (String, Model)>>(models: T) -> Self {
        Self(models.into_iter().collect())
    }
}

/// One model: its files, wherever they are.
///
/// Small files are read with [`read`](Self::read), weights tensor by tensor with the
/// crate `nsbridge-checkpoint`. Code that wants plain paths asks for [`dir`](Self::dir),
/// and waits until all is there. All of it may block.
#[derive(Clone)]
pub struct Model(Arc<dyn Source>);

impl Model {
    /// Opens the model in this folder.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self::from_source(Arc::new(Folder::new(dir)))
    }

    /// Opens the model at this path: a folder, or one GGUF file. A path to any part of a split GGUF
    /// model opens all parts.
    ///
    /// Configuration and tokenizer files in the folder of a GGUF file belong to the model; other
    /// files beside it do not.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        match gguf_in_folder(&path) {
            Some((dir, name)) => Self::from_source(Arc::new(Folder::around(dir, name))),
            None => Self::in_dir(path),
        }
    }

    /// Opens a model with a custom source of bytes.
    pub fn from_source(source: Arc<dyn Source>) -> Self {
        Self(source)
    }

    /// Returns the same model, whose loads report to `progress`.
    #[must_use]
    pub fn tracked(&self, progress: &LoadProgress) -> Self {
        Self::from_source(Arc::new(Tracked::new(self.0.clone(), progress.clone())))
    }

    /// Returns the location of the model for messages: a folder or an address.
    pub fn place(&self) -> String {
        self.0.place()
    }

    /// Returns the location of the folder with the model's files, for messages that name one of them. The
    /// [place](Self::place) of a model of one file is that file.
    #[doc(hidden)]
    pub fn folder_place(&self) -> String {
        let place = self.place();
        match place.rsplit_once('/') {
            Some((folder, name)) if is_gguf(name) && self.index(name).is_some() => {
                folder.to_owned()
            }
            _ => place,
        }
    }

    /// Returns the revision of the model, if its source keeps revisions.
    pub fn revision(&self) -> Option<&str> {
        self.0.revision()
    }

    /// Returns the paths of the model's files in ascending order.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.0.files().iter().map(|file| file.path.as_str())
    }

    /// Reads a whole file.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file if the model has no such file, if the file is larger
    /// than 256 MiB, or if it cannot be read.
    pub fn read(&self, path: &str) -> Result<Vec<u8>> {
        self.read_optional(path)?.ok_or_else(|| self.has_no(path))
    }

    /// Reads a whole file that is optional.
    ///
    /// # Errors
    ///
    /// Returns an error as [`read`](Self::read) does, except that the file may be absent.
    pub fn read_optional(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.index(path) else { return Ok(None) };
        let size = self.0.files()[file].size;
        if size > MOST_IN_ONE_PIECE {
            let place = self.folder_place();
            return Err(Error::fatal(format!(
                "{path} in {place} has {size} bytes, which is too large to be read in one piece"
            )));
        }
        Ok(self.0.read(&[(file, 0..size)])?.pop())
    }

    /// Reads a file of any size in order, in parts of at most 64 MiB.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file if the model has no such file. A part that cannot be
    /// read is an error in the iterator.
    pub fn stretches(&self, path: &str) -> Result<impl Iterator<Item = Result<Vec<u8>>>> {
        let file = self.index(path).ok_or_else(|| self.has_no(path))?;
        let size = self.0.files()[file].size;
        let read = move |start| {
            let range = start..size.min(start + STRETCH);
            Ok(self.0.read(&[(file, range)])?.pop().unwrap_or_default())
        };
        Ok((0..size).step_by(STRETCH as usize).map(read))
    }

    /// Returns the BLAKE3 digest of a file's content, which is independent of its name and
    /// location.
    ///
    /// # Errors
    ///
    /// Returns an error as [`read`](Self::read) does, without the size limit.
    pub fn digest(&self, path: &str) -> Result<[u8; 32]> {
        self.0.digest(self.index(path).ok_or_else(|| self.has_no(path))?)
    }

    /// Returns a folder with all files of the model. Downloads them first if needed, which may take
    /// minutes.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file that cannot be provided.
    pub fn dir(&self) -> Result<PathBuf> {
        self.0.dir()
    }

    /// Returns the local path of a file. Downloads all files of the model first if needed.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file if the model has no such file.
    pub fn file(&self, path: &str) -> Result<PathBuf> {
        let _ = self.index(path).ok_or_else(|| self.has_no(path))?;
        Ok(self.0.dir()?.join(Path::new(path)))
    }

    /// Returns the place of a file in [`Source::files`].
    #[doc(hidden)]
    pub fn index(&self, path: &str) -> Option<usize> {
        let files = self.0.files();
        files.binary_search_by(|file| file.path.as_str().cmp(path)).ok()
    }

    /// Returns the place that the bytes come from.
    #[doc(hidden)]
    pub fn source(&self) -> &dyn Source {
        &*self.0
    }

    fn has_no(&self, path: &str) -> Error {
        Error::fatal(format!("the model in {} has no {path}", self.place()))
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Model({})", self.place())
    }
}
