//! What a run has made, so that it can be taken away again.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, bail};

/// Files and folders that go when this is dropped before it is kept.
///
/// A failure drops it, and so does Ctrl-C: the command is dropped while a thread with a [`Making`]
/// still writes, and nothing may come behind the cleaning.
#[derive(Debug, Default)]
pub(super) struct Made(Making);

/// Makes files and folders, and remembers them.
#[derive(Clone, Debug, Default)]
pub(super) struct Making(Arc<Mutex<Paths>>);

#[derive(Debug, Default)]
struct Paths {
    files: Vec<PathBuf>,
    /// Outer ones before those within.
    folders: Vec<PathBuf>,
    /// Nothing may be made any more.
    over: bool,
}

impl Made {
    /// For the thread that writes.
    pub(super) fn making(&self) -> Making {
        self.0.clone()
    }

    /// All is well: it stays.
    pub(super) fn keep(self) {
        *self.0.paths() = Paths { over: true, ..Paths::default() };
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let mut paths = self.0.paths();
        paths.over = true;
        // What cannot be taken away stays; a folder stays if somebody else has put something in it.
        for file in paths.files.drain(..) {
            let _ = fs::remove_file(file);
        }
        for folder in paths.folders.drain(..).rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

impl Making {
    /// Makes a folder, and those around it that are not there.
    pub(super) fn folder(&self, path: &Path) -> Result<()> {
        let mut paths = self.going_on()?;
        let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let missing: Vec<_> = path.ancestors().take_while(missing).collect();
        for folder in missing.into_iter().rev() {
            match fs::create_dir(folder) {
                Ok(()) => paths.folders.push(folder.to_owned()),
                // Somebody else's, made just now.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
                Err(error) => {
                    let what = format!("making the folder {}", folder.display());
                    return Err(error).context(what);
                }
            }
        }
        Ok(())
    }

    /// Makes a file that is not there.
    pub(super) fn file(&self, path: &Path) -> Result<File> {
        let mut paths = self.going_on()?;
        let file = File::create_new(path).with_context(|| format!("making {}", path.display()))?;
        paths.files.push(path.to_owned());
        Ok(file)
    }

    /// Gives a file of its own another name.
    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut paths = self.going_on()?;
        fs::rename(from, to).with_context(|| format!("writing {}", to.display()))?;
        paths.files.push(to.to_owned());
        Ok(())
    }

    fn going_on(&self) -> Result<MutexGuard<'_, Paths>> {
        let paths = self.paths();
        if paths.over {
            bail!("the command was stopped");
        }
        Ok(paths)
    }

    fn paths(&self) -> MutexGuard<'_, Paths> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
