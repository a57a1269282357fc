//! Folder with a model in Python.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nsbridge_handler::{Error, Models, testing};
use nsbridge_python::{Options, Python};
use serde_json::Value;
use tempfile::TempDir;

/// Temporary folder with a `model.py`.
pub(crate) struct Folder(TempDir);

impl Folder {
    /// Writes a model. Its lines may be indented like the test.
    pub(crate) fn with(model: &str) -> Self {
        let folder = Self(TempDir::new().unwrap());
        folder.write("model.py", model);
        folder
    }

    /// Writes a module, without the indentation of its first line.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let text = text.trim_start_matches('\n');
        let indent = text.len() - text.trim_start_matches(' ').len();
        let lines = text.lines().map(|line| line.get(indent..).unwrap_or_default());
        let text: Vec<_> = lines.collect();
        fs::write(self.path(name), text.join("\n") + "\n").unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn options(&self) -> Options {
        Options::new(self.path("model.py"))
    }

    /// Reads a file that the model writes; empty if it has not been written.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until the model has written a file.
    pub(crate) fn wait_for(&self, name: &str) {
        let started = Instant::now();
        while self.read(name).is_empty() {
            assert!(started.elapsed() < Duration::from_secs(20), "no {name}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn load(&self) -> Arc<Python> {
        load(self.options())
    }
}

/// Loads a model without files.
#[track_caller]
pub(crate) fn load(options: Options) -> Arc<Python> {
    testing::load(options, Models::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the pieces of the reply to this input, with seed 7.
pub(crate) fn answer(python: &Arc<Python>, input: &Value) -> Result<Vec<Value>, Error> {
    let (pieces, _) = testing::answer(python, input, 7, &[])?;
    Ok(pieces.iter().map(|piece| serde_json::from_str(piece.get()).unwrap()).collect())
}
