//! Location of a model: `s3://bucket/models/tale-7m@current`, a folder, or one GGUF file in either.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nsbridge_handler::source::{gguf_in_folder, is_gguf};

use crate::manifest::check_revision;

/// Alias that is followed if the location names none.
pub const CURRENT: &str = "current";

/// Location of a model.
///
/// ```
/// use nsbridge_store::Location;
///
/// let location: Location = "s3://bucket/models/tale-7m@2026-11-21".parse()?;
/// assert_eq!(location.to_string(), "s3://bucket/models/tale-7m@2026-11-21");
/// assert_eq!("models/tale".parse(), Ok(Location::Folder("models/tale".into())));
/// assert!("gs://bucket/models".parse::<Location>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Location {
    /// Folder on this machine, or a GGUF file.
    Folder(PathBuf),
    /// Prefix in a bucket, or the key of a GGUF file.
    S3 {
        /// Name of the bucket.
        bucket: String,
        /// Prefix of the keys, without a slash at either end; empty for the whole bucket.
        prefix: String,
        /// Name of a revision or of an alias.
        version: Option<String>,
    },
}

impl Location {
    /// Resolves a relative folder against `base`. S3 locations are unchanged.
    #[must_use]
    pub fn within(self, base: &Path) -> Self {
        match self {
            Self::Folder(path) => Self::Folder(base.join(path)),
            s3 @ Self::S3 { .. } => s3,
        }
    }

    /// Checks that a folder or a GGUF file on this machine exists. S3 locations are not looked up.
    ///
    /// # Errors
    ///
    /// Returns a sentence if there is nothing at the path, or a file that is no model.
    pub fn check_exists(&self) -> Result<(), String> {
        let Self::Folder(path) = self else { return Ok(()) };
        if path.is_dir() || self.gguf_file().is_some() && path.is_file() {
            return Ok(());
        }
        let place = path.display();
        Err(if path.exists() {
            let hint = if is_gguf_inside(path) {
                ": it is a GGUF file, so give it such a name, as by `ln -s FILE model.gguf`"
            } else {
                ""
            };
            format!("{place} is a file, but a model is a folder or a .gguf file{hint}")
        } else {
            format!("there is no model in {place}: name a folder or a .gguf file")
        })
    }

    /// Splits the location of a GGUF file into its folder and its name. Returns `None` for the
    /// location of a folder.
    pub(crate) fn gguf_file(&self) -> Option<(Self, String)> {
        match self {
            Self::Folder(path) => gguf_in_folder(path).map(|(dir, name)| (Self::Folder(dir), name)),
            Self::S3 { bucket, prefix, version } => {
                let (folder, name) = prefix.rsplit_once('/').unwrap_or(("", prefix));
                let (bucket, prefix) = (bucket.clone(), folder.to_owned());
                let folder = Self::S3 { bucket, prefix, version: version.clone() };
                is_gguf(name).then(|| (folder, name.to_owned()))
            }
        }
    }
}

/// Returns true if a file begins as GGUF files do. Some tools store them by their digests.
fn is_gguf_inside(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"GGUF"
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("s3://") else {
            if let Some((scheme, _)) = text.split_once("://") {
                return Err(format!(
                    "`{scheme}://` is not known: use s3://bucket/prefix, a folder or a GGUF file"
                ));
            }
            return Ok(Self::Folder(text.into()));
        };
        let (rest, version) = match rest.rsplit_once('@') {
            Some((rest, version)) => (rest, Some(version.to_owned())),
            None => (rest, None),
        };
        version.as_deref().map_or(Ok(()), check_revision)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        if bucket.is_empty() || prefix.starts_with('/') {
            return Err(format!("`{text}` names no bucket: use s3://bucket/prefix"));
        }
        Ok(Self::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned(), version })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "{}", path.display()),
            Self::S3 { bucket, prefix, version } => {
                write!(f, "s3://{bucket}/{prefix}")?;
                version.as_ref().map_or(Ok(()), |version| write!(f, "@{version}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Location;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        let read = text.parse::<Location>().map(|location| location.to_string());
        match expected {
            Ok(shown) => assert_eq!(read.as_deref(), Ok(shown)),
            Err(part) => assert!(read.as_ref().unwrap_err().contains(part), "{read:?}"),
        }
    }

    #[test]
    fn an_address_is_read_and_a_wrong_one_is_named() {
        check("models/tale-7m", Ok("models/tale-7m"));
        check("s3://b/models/tale-7m/", Ok("s3://b/models/tale-7m"));
        check("s3://b/models/tale-7m@2026-11-21", Ok("s3://b/models/tale-7m@2026-11-21"));
        check("s3://b", Ok("s3://b/"));
        check("s3:///x", Err("names no bucket"));
        check("gs://b/x", Err("`gs://` is not known"));
        check("s3://b/x@../y", Err("not a revision"));
    }

    #[test]
    fn a_place_without_a_model_is_told_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| Location::Folder(folder.path().join(name));
        for name in ["model.bin", "model.gguf"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(at("").check_exists(), Ok(()));
        assert_eq!(at("model.gguf").check_exists(), Ok(()));
        let why = at("model.bin").check_exists().unwrap_err();
        assert!(
            why.ends_with("model.bin is a file, but a model is a folder or a .gguf file"),
            "{why}"
        );
        std::fs::write(folder.path().join("sha256-0a"), "GGUF and more").unwrap();
        let why = at("sha256-0a").check_exists().unwrap_err();
        assert!(why.ends_with("as by `ln -s FILE model.gguf`"), "{why}");
        for name in ["absent", "absent.gguf"] {
            let why = at(name).check_exists().unwrap_err();
            assert!(why.contains("there is no model in") && why.contains(name), "{why}");
        }
        assert_eq!("s3://b/absent".parse::<Location>().unwrap().check_exists(), Ok(()));
    }

    #[test]
    fn a_gguf_file_is_in_a_folder() {
        let split = |text: &str| {
            let (folder, name) = text.parse::<Location>().unwrap().gguf_file()?;
            Some((folder.to_string(), name))
        };
        let expected = |folder: &str, name: &str| Some((folder.to_owned(), name.to_owned()));
        assert_eq!(split("models/a.gguf"), expected("models", "a.gguf"));
        assert_eq!(split("a.gguf"), expected(".", "a.gguf"));
        assert_eq!(split("s3://b/m/a.gguf@r7"), expected("s3://b/m@r7", "a.gguf"));
        assert_eq!(split("s3://b/a.gguf"), expected("s3://b/", "a.gguf"));
        assert_eq!(split("models/a"), None);
        assert_eq!(split("s3://b/m/a"), None);
    }
}
