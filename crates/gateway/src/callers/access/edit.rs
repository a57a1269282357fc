//! Changes of the API key file, for the command line.
//!
//! A change writes a temporary file in the same folder and renames it, so that a gateway never
//! reads half a file. The temporary file also keeps a second command from changing the file at the
//! same time.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nsbridge_base::private_file::PrivateFileError;

use super::file::{AccessError, load, to_json};
use super::{ApiKeyId, Entry};

/// Adds the entry of a key to the file. A missing file is created, readable by its owner alone.
///
/// # Errors
///
/// Returns an [`AccessError`] if the file cannot be read or written, if the entry has values that
/// the file cannot hold, or if the id is taken. Unless it is [`AccessError::Write`], the file is
/// unchanged.
pub fn add(path: &Path, entry: Entry) -> Result<(), AccessError> {
    change(path, true, |path, entries| {
        entry.check().map_err(|what| AccessError::Invalid { path: path.to_owned(), what })?;
        if entries.iter().any(|other| other.id == entry.id) {
            return Err(AccessError::Taken { id: entry.id, path: path.to_owned() });
        }
        entries.push(entry);
        Ok(())
    })
}

/// Returns the entries of the file in its order.
///
/// # Errors
///
/// Returns an [`AccessError`] if the file cannot be read or is not valid.
pub fn list(path: &Path) -> Result<Vec<Entry>, AccessError> {
    load(path)
}

/// Disables a key. A key that is disabled already stays so.
///
/// # Errors
///
/// Returns an [`AccessError`] if the file cannot be read or written, or if it has no such key.
/// Unless it is [`AccessError::Write`], the file is unchanged.
pub fn disable(path: &Path, id: ApiKeyId) -> Result<(), AccessError> {
    change(path, false, |path, entries| {
        let entry = entries.iter_mut().find(|entry| entry.id == id);
        entry.ok_or_else(|| AccessError::Unknown { id, path: path.to_owned() })?.disabled = true;
        Ok(())
    })
}

fn change(
    path: &Path,
    create: bool,
    edit: impl FnOnce(&Path, &mut Vec<Entry>) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    // A rename would replace a symbolic link instead of the file.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (beside, mut file) = Beside::create(&path)?;
    let mut entries = match load(&path) {
        Err(AccessError::File(PrivateFileError::Missing { .. })) if create => Vec::new(),
        entries => entries?,
    };
    edit(&path, &mut entries)?;
    let write = |source| AccessError::Write { path: path.clone(), source };
    let text = to_json(&entries).map_err(|error| write(error.into()))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(write)?;
    drop(file);
    beside.replace(&path).map_err(write)
}

/// Temporary file beside the API key file. It is removed on drop.
struct Beside {
    path: PathBuf,
    renamed: bool,
}

impl Beside {
    fn create(path: &Path) -> Result<(Self, fs::File), AccessError> {
        let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
        name.push(".new");
        let beside = path.with_file_name(name);
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside);
        match file {
            Ok(file) => Ok((Self { path: beside, renamed: false }, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(AccessError::Busy { path: beside })
            }
            Err(source) => Err(AccessError::Write { path: path.to_owned(), source }),
        }
    }

    fn replace(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.renamed = true;
        // The rename itself is durable only with the folder.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if !self.renamed {
            // Nothing can be done about an error; the next command tells the path.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::{add, disable, list};
    use crate::callers::access::{AccessError, ApiKey, Entry};

    fn entry() -> Entry {
        Entry::new(&ApiKey::generate().unwrap(), "acme".parse().unwrap())
    }

    #[test]
    fn keys_are_added_listed_and_disabled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.json");
        let (first, second) = (entry(), entry());
        add(&path, first.clone()).unwrap();
        add(&path, second.clone()).unwrap();
        disable(&path, first.id).unwrap();
        disable(&path, first.id).unwrap();
        let listed: Vec<_> =
            list(&path).unwrap().iter().map(|entry| (entry.id, entry.disabled)).collect();
        assert_eq!(listed, [(first.id, true), (second.id, false)]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file is left");
    }

    #[test]
    fn a_refused_change_leaves_the_file_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.json");
        let known = entry();
        assert!(matches!(disable(&path, known.id), Err(AccessError::File(_))));
        assert!(!path.exists());
        add(&path, known.clone()).unwrap();
        let before = fs::read_to_string(&path).unwrap();
        assert!(matches!(add(&path, known), Err(AccessError::Taken { .. })));
        assert!(matches!(disable(&path, entry().id), Err(AccessError::Unknown { .. })));
        let mut unlimited = entry();
        unlimited.limits.concurrent = Some(0);
        let error = add(&path, unlimited).unwrap_err().to_string();
        assert!(error.contains("`limits.concurrent`"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), before);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn two_changes_at_a_time_do_not_lose_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.json");
        let other = folder.path().join("access.json.new");
        fs::write(&other, "").unwrap();
        let error = add(&path, entry()).unwrap_err().to_string();
        assert!(error.contains(other.to_str().unwrap()), "{error}");
        assert!(other.exists(), "the other command's file was removed");
        fs::remove_file(&other).unwrap();
        add(&path, entry()).unwrap();
    }

    #[test]
    fn a_file_that_others_can_read_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.json");
        add(&path, entry()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = add(&path, entry()).unwrap_err().to_string();
        assert!(error.contains("mode 644") && error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_symbolic_link_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("access.json"), folder.path().join("link.json"));
        add(&path, entry()).unwrap();
        symlink(&path, &link).unwrap();
        add(&link, entry()).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(list(&path).unwrap().len(), 2);
    }
}
