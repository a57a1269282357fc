//! Tracking of created files and folders, so that a failed run can remove them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use parking_lot::{Mutex, MutexGuard};

/// Cleanup guard: removes the created files and folders on drop unless they are kept.
///
/// A failure drops it, and so does Ctrl-C. On Ctrl-C a thread with a [`Making`] may still be
/// writing, so dropping the guard also stops it from creating anything further.
#[derive(Debug, Default)]
pub(super) struct Made(Making);

/// Creates files and folders and records them for cleanup.
#[derive(Clone, Debug, Default)]
pub(super) struct Making(Arc<Mutex<Paths>>);

#[derive(Debug, Default)]
struct Paths {
    files: Vec<PathBuf>,
    /// Outer folders come before inner ones.
    folders: Vec<PathBuf>,
    /// True once nothing more may be created.
    over: bool,
}

impl Made {
    /// Returns the handle for the writing thread.
    pub(super) fn making(&self) -> Making {
        self.0.clone()
    }

    /// Keeps all files and folders.
    pub(super) fn keep(self) {
        *self.0.0.lock() = Paths { over: true, ..Paths::default() };
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let mut paths = self.0.0.lock();
        paths.over = true;
        // Errors are ignored. A folder with files of another process is not empty and stays.
        for file in paths.files.drain(..) {
            let _ = fs::remove_file(file);
        }
        for folder in paths.folders.drain(..).rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

impl Making {
    /// Creates a folder and its missing parents.
    pub(super) fn folder(&self, path: &Path) -> Result<()> {
        let mut paths = self.going_on()?;
        let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let missing: Vec<_> = path.ancestors().take_while(missing).collect();
        for folder in missing.into_iter().rev() {
            match fs::create_dir(folder) {
                Ok(()) => paths.folders.push(folder.to_owned()),
                // Another process created it in between.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
                Err(error) => {
                    let what = format!("making the folder {}", folder.display());
                    return Err(error).context(what);
                }
            }
        }
        Ok(())
    }

    /// Creates a file that must not exist yet.
    pub(super) fn file(&self, path: &Path) -> Result<File> {
        let mut paths = self.going_on()?;
        let file = File::create_new(path).with_context(|| format!("making {}", path.display()))?;
        paths.files.push(path.to_owned());
        Ok(file)
    }

    /// Renames a file that this run created.
    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut paths = self.going_on()?;
        fs::rename(from, to).with_context(|| format!("writing {}", to.display()))?;
        paths.files.push(to.to_owned());
        Ok(())
    }

    fn going_on(&self) -> Result<MutexGuard<'_, Paths>> {
        let paths = self.0.lock();
        if paths.over {
            bail!("the command was stopped");
        }
        Ok(paths)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Made;

    #[test]
    fn what_was_made_goes_what_was_there_stays_and_nothing_comes_behind() {
        let place = tempfile::tempdir().unwrap();
        let (outer, theirs) = (place.path().join("a"), place.path().join("theirs"));
        fs::write(&theirs, "kept").unwrap();
        let made = Made::default();
        let making = made.making();
        making.folder(&outer.join("b/c")).unwrap();
        making.folder(place.path()).unwrap();
        making.file(&outer.join("b/one.part")).unwrap();
        making.rename(&outer.join("b/one.part"), &outer.join("b/one")).unwrap();
        assert!(making.file(&theirs).is_err());
        assert!(outer.join("b/one").exists());
        drop(made);
        assert!(!outer.exists());
        assert_eq!(fs::read(&theirs).unwrap(), b"kept");
        assert!(making.folder(&outer).is_err() && making.file(&place.path().join("x")).is_err());
        assert_eq!(place.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn what_is_kept_stays() {
        let place = tempfile::tempdir().unwrap();
        let made = Made::default();
        made.making().file(&place.path().join("one")).unwrap();
        made.keep();
        assert!(place.path().join("one").exists());
    }
}
