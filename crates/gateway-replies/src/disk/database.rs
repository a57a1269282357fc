//! Embedded database that is opened again after a failure, and compacted at start.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use redb::{Database, ReadTransaction, ReadableDatabase, WriteTransaction};

/// Size of the database's cache in memory, in bytes. redb's own default is 1 GiB.
const CACHE_BYTES: usize = 16 << 20;

/// Minimum size of a file that is compacted, in bytes.
const MIN_COMPACTED_BYTES: u64 = 64 << 20;

type Result<T> = std::result::Result<T, redb::Error>;

/// Opens the database, for the first time or again.
type Opening = dyn Fn() -> Result<Database> + Send + Sync;

/// Database in its place.
pub(super) struct Place {
    opening: Box<Opening>,
    /// `None` while it cannot be opened again.
    open: RwLock<Option<Database>>,
    fails: AtomicBool,
}

impl Place {
    /// Opens the database of a file. One that is half empty gives its space back.
    pub(super) fn of_file(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        let opening = {
            let path = path.clone();
            move || Ok(Database::builder().set_cache_size(CACHE_BYTES).create(&path)?)
        };
        let mut database = opening()?;
        let size = path.metadata().map_or(0, |status| status.len());
        if size >= MIN_COMPACTED_BYTES && used(&database)? < size / 2 {
            database.compact().map_err(redb::Error::from)?;
            let left = path.metadata().map_or(0, |status| status.len());
            tracing::info!(from = size, to = left, "the store was compacted");
        }
        Ok(Self::of(Box::new(opening), database))
    }

    fn of(opening: Box<Opening>, database: Database) -> Self {
        Self { opening, open: RwLock::new(Some(database)), fails: AtomicBool::new(false) }
    }

    pub(super) fn begin_read(&self) -> Result<ReadTransaction> {
        let open = self.open.read();
        Ok(open.as_ref().ok_or(redb::Error::PreviousIo)?.begin_read()?)
    }

    /// Begins to write. After a failed write, redb refuses all others until the database was closed,
    /// so it is opened again.
    pub(super) fn begin_write(&self) -> Result<WriteTransaction> {
        if let Some(database) = &*self.open.read()
            && let Ok(transaction) = database.begin_write()
        {
            return Ok(transaction);
        }
        let mut open = self.open.write();
        *open = None;
        let transaction = open.insert((self.opening)()?).begin_write()?;
        tracing::info!("the store was opened again");
        Ok(transaction)
    }

    /// Notes the result of a write.
    pub(super) fn wrote(&self, succeeded: bool) {
        self.fails.store(!succeeded, Ordering::Relaxed);
    }

    /// Returns true if the last write failed.
    pub(super) fn fails(&self) -> bool {
        self.fails.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("fails", &self.fails()).finish_non_exhaustive()
    }
}

/// Returns the bytes of the database's pages in use.
fn used(database: &Database) -> Result<u64> {
    let stats = database.begin_write()?.stats()?;
    Ok(stats.allocated_pages() * stats.page_size() as u64)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use redb::backends::InMemoryBackend;
    use redb::{Database, StorageBackend, TableDefinition};

    use super::{MIN_COMPACTED_BYTES, Place};

    const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("t");

    /// Disk that outlives its database, and can be full.
    #[derive(Clone, Debug)]
    struct Disk {
        bytes: Arc<InMemoryBackend>,
        is_full: Arc<AtomicBool>,
    }

    impl StorageBackend for Disk {
        fn len(&self) -> io::Result<u64> {
            self.bytes.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.bytes.read(offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.bytes.set_len(len)
        }

        fn sync_data(&self) -> io::Result<()> {
            self.bytes.sync_data()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            if self.is_full.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.bytes.write(offset, data)
        }
    }

    fn write(place: &Place, key: u64) -> Result<(), redb::Error> {
        let transaction = place.begin_write()?;
        transaction.open_table(TABLE)?.insert(key, [0; 100_000].as_slice())?;
        Ok(transaction.commit()?)
    }

    #[test]
    fn m4_a_database_is_written_again_when_the_disk_has_room_again() {
        let is_full = Arc::new(AtomicBool::new(false));
        let disk = Disk { bytes: Arc::new(InMemoryBackend::new()), is_full: is_full.clone() };
        let opening = move || Ok(Database::builder().create_with_backend(disk.clone())?);
        let place = Place::of(Box::new(opening.clone()), opening().unwrap());
        write(&place, 1).unwrap();
        is_full.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            assert!(write(&place, 2).is_err());
        }
        is_full.store(false, Ordering::SeqCst);
        write(&place, 3).unwrap();
        let table = place.begin_read().unwrap().open_table(TABLE).unwrap();
        let there = [1, 2, 3].map(|key| table.get(key).unwrap().is_some());
        assert_eq!(there, [true, false, true]);
    }

    #[test]
    fn m4_a_database_that_is_half_empty_shrinks_at_start() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("s.redb");
        let place = Place::of_file(&path).unwrap();
        for part in 0..3 {
            let transaction = place.begin_write().unwrap();
            let mut table = transaction.open_table(TABLE).unwrap();
            for key in 0..32 {
                table.insert(part * 32 + key, vec![7; 1 << 20].as_slice()).unwrap();
            }
            drop(table);
            transaction.commit().unwrap();
        }
        let transaction = place.begin_write().unwrap();
        transaction.open_table(TABLE).unwrap().retain(|key, _| key == 95).unwrap();
        transaction.commit().unwrap();
        let size = || path.metadata().unwrap().len();
        let before = size();
        assert!(before > MIN_COMPACTED_BYTES, "{before}");
        drop(place);
        let place = Place::of_file(&path).unwrap();
        assert!(size() < before / 4, "{} of {before}", size());
        let table = place.begin_read().unwrap().open_table(TABLE).unwrap();
        assert_eq!(table.get(95).unwrap().unwrap().value().len(), 1 << 20);
    }
}
