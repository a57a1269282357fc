//! Tests of the import: command lines with the file and the report that each has.

mod files;
mod parsed;
mod random;
mod reports;
mod values;

use std::fs;
use std::path::Path;

use nsbridge::worker::Config;
use nsbridge_import::Imported;
use tempfile::TempDir;
use toml::Table;

use crate::{Request, import_in, shell};

/// Folder of a command, removed at the end of a test. It has a model in `models/bear`.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir_all(dir.path().join("models/bear")).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    fn import(&self, command: &str) -> Imported {
        import_in(&request(command), self.path()).unwrap()
    }

    /// Returns the file that is written in the folder.
    fn table(&self, imported: &Imported) -> Table {
        imported.text(self.path()).parse().unwrap()
    }

    /// Reads the file as a worker does.
    fn read(&self, imported: &Imported) -> Result<Config, String> {
        self.write("worker.toml", &imported.text(self.path()));
        Config::read(&self.path().join("worker.toml"), []).map_err(|error| error.to_string())
    }
}

/// Returns the request that a command line is.
fn request(command: &str) -> Request {
    Request { words: shell::commands(command).unwrap().concat(), ..Request::default() }
}
