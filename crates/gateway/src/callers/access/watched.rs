//! API key file that may change at runtime: keys come and go without a restart.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nsbridge_base::{FileStamp, Reload};
use parking_lot::{Mutex, RwLock};

use super::file::{self, AccessError};
use super::{Entry, Table};

/// API key file that is reloaded when it changes.
///
/// A file that is missing, unreadable or invalid leaves the keys unchanged. To revoke all keys,
/// write a file without keys.
pub struct AccessFile {
    path: PathBuf,
    table: RwLock<Arc<Table>>,
    seen: Mutex<Option<FileStamp>>,
}

impl AccessFile {
    /// Loads an API key file.
    ///
    /// # Errors
    ///
    /// Returns an [`AccessError`] if the file is missing, unreadable or invalid, if other users can
    /// access it, or if it belongs to another user.
    pub fn open(path: &Path) -> Result<Self, AccessError> {
        // Taken before the file is read, so that a version that arrives during the read is noticed
        // later.
        let seen = Mutex::new(FileStamp::of(path));
        let table = RwLock::new(Arc::new(Table::of(file::load(path)?, None)));
        Ok(Self { path: path.to_owned(), table, seen })
    }

    /// Reloads the file if it has changed since the last look.
    ///
    /// It reads the file system, so call it on a thread that may block. Requests are not held up:
    /// they use the old keys until the new ones are ready.
    ///
    /// # Errors
    ///
    /// Returns the error of a changed file that cannot be used, once per change. The old keys stay
    /// in use.
    pub fn reload_if_changed(&self) -> Result<Reload, AccessError> {
        // Held during the read, so that of two calls the later one does not lose to the earlier.
        let mut seen = self.seen.lock();
        let now = FileStamp::of(&self.path);
        if *seen == now {
            return Ok(Reload::Unchanged);
        }
        *seen = now;
        self.take(file::load(&self.path)?);
        Ok(Reload::Taken)
    }

    /// Returns the number of keys in the file, disabled and expired ones included.
    pub fn keys(&self) -> usize {
        self.table().len()
    }

    fn take(&self, entries: Vec<Entry>) {
        let table = Arc::new(Table::of(entries, Some(&*self.table())));
        let mut current = self.table.write();
        let old = std::mem::replace(&mut *current, table);
        drop(current);
        // Freed outside of the lock: a table may be large.
        drop(old);
    }

    pub(super) fn table(&self) -> Arc<Table> {
        self.table.read().clone()
    }
}

impl fmt::Debug for AccessFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessFile")
            .field("path", &self.path)
            .field("keys", &self.keys())
            .finish_non_exhaustive()
    }
}
