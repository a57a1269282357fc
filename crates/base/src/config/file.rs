//! File of a configuration, which may hold secrets.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use toml::{Table, Value};
use zeroize::{Zeroize as _, Zeroizing};

use crate::broker_urls;
use crate::config::broker::{FileMode, password_of};

/// Text of a configuration file. It is wiped when it is dropped.
pub struct ConfigFile {
    path: PathBuf,
    text: Zeroizing<String>,
    mode: FileMode,
}

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        let mut file = File::open(path)?;
        let mode = FileMode::of(&file)?;
        let mut text = Zeroizing::new(String::new());
        file.read_to_string(&mut text)?;
        Ok(Self { path: path.to_owned(), text, mode })
    }

    /// Returns the text of the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns a warning if others can read the file and it holds a secret: a password in the broker's
    /// URL, or one of these fields, each with its section. RabbitMQ's default password does not count,
    /// because RabbitMQ accepts it from its own machine only.
    pub fn exposed(&self, secrets: &[(&str, &str)]) -> Option<String> {
        (self.mode.is_open() && self.holds_secret(secrets)).then(|| {
            let (shown, mode) = (self.path.display(), self.mode);
            format!(
                "{shown} can be read by others ({mode}) and holds a password or a key: chmod 600 it"
            )
        })
    }

    fn holds_secret(&self, secrets: &[(&str, &str)]) -> bool {
        let Ok(mut table) = self.text.parse::<Table>() else { return false };
        let mut found = false;
        for (section, field) in secrets {
            let value = table.get_mut(*section).and_then(|section| section.get_mut(field));
            if let Some(Value::String(secret)) = value {
                secret.zeroize();
                found = true;
            }
        }
        let field = |name| table.get("broker").and_then(|broker| broker.get(name));
        let nodes = field("urls").and_then(Value::as_array).into_iter().flatten();
        let urls = field("url").into_iter().chain(nodes).filter_map(Value::as_str);
        let mut passwords = urls.flat_map(broker_urls).filter_map(password_of);
        found || passwords.any(|password| password != "guest")
    }
}

impl std::fmt::Debug for ConfigFile {
    /// Leaves out the text.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigFile").field("path", &self.path).finish_non_exhaustive()
    }
}
