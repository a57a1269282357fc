//! The model files a handler loads from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The models that the worker's configuration names, each ready to be read.
#[derive(Clone, Debug, Default)]
pub struct Models(BTreeMap<String, Model>);

impl Models {
    /// The model with this name in the configuration's `[models]` table.
    ///
    /// # Errors
    ///
    /// A sentence that names the table's key, if the configuration lacks it.
    pub fn get(&self, name: &str) -> Result<&Model> {
        self.find(name).ok_or_else(|| {
            Error::fatal(format!("the configuration names no model `{name}`: add it to [models]"))
        })
    }

    /// The same, for a model that is optional.
    pub fn find(&self, name: &str) -> Option<&Model> {
        self.0.get(name)
    }
}

impl FromIterator<(String, Model)> for Models {
    fn from_iter<T: IntoIterator<Item = (String, Model)>>(models: T) -> Self {
        Self(models.into_iter().collect())
    }
}

/// One model: a folder of files.
#[derive(Clone, Debug)]
pub struct Model {
    dir: PathBuf,
}

impl Model {
    /// The model in this folder.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The model's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a file of the model lies.
    ///
    /// # Errors
    ///
    /// A sentence that names the file, if the model has none of this name.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        self.find_file(name).ok_or_else(|| {
            Error::fatal(format!("the model in {} has no {name}", self.dir.display()))
        })
    }

    /// The same, for a file that is optional.
    pub fn find_file(&self, name: &str) -> Option<PathBuf> {
        let path = self.dir.join(name);
        path.is_file().then_some(path)
    }
}
