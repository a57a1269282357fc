//! Objects with numbered parts, sealed: files with their chunks, and batches with their results.
//!
//! All functions block: callers run them off the threads of the runtime.

use nsbridge_protocol::Uuid;
use redb::{ReadableTable, TableDefinition, WriteTransaction};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{DiskStore, Place, open};
use crate::store::Unstored;

type Records = TableDefinition<'static, [u8; 16], &'static [u8]>;
type Parts = TableDefinition<'static, ([u8; 16], u64), &'static [u8]>;

/// Kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// File, whose parts are its chunks.
    File,
    /// Batch, whose parts are the results of its lines.
    Batch,
}

impl Kind {
    fn records(self) -> Records {
        match self {
            Self::File => TableDefinition::new("files"),
            Self::Batch => TableDefinition::new("batches"),
        }
    }

    fn parts(self) -> Parts {
        match self {
            Self::File => TableDefinition::new("file chunks"),
            Self::Batch => TableDefinition::new("batch results"),
        }
    }

    fn record(self, id: Uuid) -> Place {
        match self {
            Self::File => Place::File(id),
            Self::Batch => Place::Batch(id),
        }
    }

    fn part(self, id: Uuid, at: u64) -> Place {
        match self {
            Self::File => Place::Chunk(id, at),
            Self::Batch => Place::Result(id, at),
        }
    }
}

/// Size of a chunk of a file, in bytes. The pages of redb have sizes that are powers of two, so a chunk
/// of 1 MiB with its seal and its key would take 2 MiB on disk and in memory.
pub const CHUNK_BYTES: usize = (1 << 20) - (1 << 10);

/// Maximum number of parts that one transaction removes.
const MAX_REMOVED_AT_ONCE: u64 = 4096;

/// Change of the objects. Several changes are made in one transaction.
#[derive(Debug)]
pub enum Edit {
    /// Sealed record of an object.
    Record(Kind, Uuid, Vec<u8>),
    /// Sealed part of an object, with its number.
    Part(Kind, Uuid, u64, Vec<u8>),
}

/// Logs the cause of a failure.
fn unstored(error: &impl std::fmt::Display) -> Unstored {
    tracing::error!(%error, "files and batches cannot be read or written");
    Unstored
}

/// Creates the tables.
pub(super) fn create_tables(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    for kind in [Kind::File, Kind::Batch] {
        transaction.open_table(kind.records())?;
        transaction.open_table(kind.parts())?;
    }
    Ok(())
}

/// Returns the number of the first part that an object has.
fn first_part(
    parts: &impl ReadableTable<([u8; 16], u64), &'static [u8]>,
    key: [u8; 16],
) -> Result<Option<u64>, redb::Error> {
    let first = parts.range((key, 0)..=(key, u64::MAX))?.next().transpose()?;
    Ok(first.map(|(place, _)| place.value().1))
}

impl DiskStore {
    /// Returns the change that stores a record.
    ///
    /// # Errors
    ///
    /// Returns an error if the record cannot be sealed.
    pub fn record(&self, kind: Kind, id: Uuid, record: &impl Serialize) -> Result<Edit, Unstored> {
        let record = serde_json::to_vec(record).map_err(|error| unstored(&error))?;
        let sealed = self.seal.seal(&kind.record(id).bytes(), &record);
        let sealed = sealed.map_err(|error| unstored(&error))?;
        Ok(Edit::Record(kind, id, sealed))
    }

    /// Returns the change that stores a part.
    ///
    /// # Errors
    ///
    /// Returns an error if the part cannot be sealed.
    pub fn part(&self, kind: Kind, id: Uuid, at: u64, bytes: &[u8]) -> Result<Edit, Unstored> {
        let sealed = self.seal.seal(&kind.part(id, at).bytes(), bytes);
        let sealed = sealed.map_err(|error| unstored(&error))?;
        Ok(Edit::Part(kind, id, at, sealed))
    }

    /// Makes changes in one transaction, and returns when they are on disk.
    ///
    /// # Errors
    ///
    /// Returns an error if nothing was changed.
    pub fn edit(&self, edits: &[Edit]) -> Result<(), Unstored> {
        let write = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            for edit in edits {
                match edit {
                    Edit::Record(kind, id, sealed) => {
                        let mut records = transaction.open_table(kind.records())?;
                        records.insert(*id.as_bytes(), sealed.as_slice())?;
                    }
                    Edit::Part(kind, id, at, sealed) => {
                        let mut parts = transaction.open_table(kind.parts())?;
                        parts.insert((*id.as_bytes(), *at), sealed.as_slice())?;
                    }
                }
            }
            transaction.commit()?;
            Ok(())
        };
        write().map_err(|error| unstored(&error))
    }

    /// Removes the parts of an object and then its record. Up to 4,096 parts and the record
    /// go in one transaction. After an error or a crash the record may be there with some of its parts.
    ///
    /// # Errors
    ///
    /// Returns an error if the record is left.
    pub fn remove_object(&self, kind: Kind, id: Uuid) -> Result<(), Unstored> {
        self.remove_in_turns(kind, id, true)
    }

    /// Removes the parts of an object, and keeps its record.
    ///
    /// # Errors
    ///
    /// Returns an error if some may be left.
    pub fn remove_parts(&self, kind: Kind, id: Uuid) -> Result<(), Unstored> {
        self.remove_in_turns(kind, id, false)
    }

    /// Removes a number of parts in each transaction: a transaction has the pages that it changes in
    /// memory, and a batch may have a million parts.
    fn remove_in_turns(&self, kind: Kind, id: Uuid, record: bool) -> Result<(), Unstored> {
        let key = *id.as_bytes();
        let remove = || -> Result<bool, redb::Error> {
            let transaction = self.database.begin_write()?;
            let more = {
                let mut parts = transaction.open_table(kind.parts())?;
                if let Some(at) = first_part(&parts, key)? {
                    let some = (key, at)..(key, at.saturating_add(MAX_REMOVED_AT_ONCE));
                    parts.retain_in(some, |_, _| false)?;
                }
                first_part(&parts, key)?.is_some()
            };
            if record && !more {
                transaction.open_table(kind.records())?.remove(key)?;
            }
            transaction.commit()?;
            Ok(more)
        };
        while remove().map_err(|error| unstored(&error))? {}
        Ok(())
    }

    /// Returns all records of a kind. Those that were sealed under another key are left out.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    pub fn records<T: DeserializeOwned>(&self, kind: Kind) -> Result<Vec<(Uuid, T)>, Unstored> {
        let read = || -> Result<Vec<(Uuid, T)>, redb::Error> {
            let mut found = Vec::new();
            let transaction = self.database.begin_read()?;
            for entry in transaction.open_table(kind.records())?.iter()? {
                let (id, sealed) = entry?;
                let id = Uuid::from_bytes(id.value());
                if let Some(record) = open(&self.seal, kind.record(id), sealed.value()) {
                    found.push((id, record));
                }
            }
            Ok(found)
        };
        read().map_err(|error| unstored(&error))
    }

    /// Reads a part; `None` if there is none, or if it was sealed under another key.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    pub fn read_part(&self, kind: Kind, id: Uuid, at: u64) -> Result<Option<Vec<u8>>, Unstored> {
        let read = || -> Result<Option<Vec<u8>>, redb::Error> {
            let transaction = self.database.begin_read()?;
            let parts = transaction.open_table(kind.parts())?;
            let sealed = parts.get((*id.as_bytes(), at))?;
            let place = kind.part(id, at).bytes();
            Ok(sealed.and_then(|sealed| self.seal.open(&place, sealed.value()).ok()))
        };
        read().map_err(|error| unstored(&error))
    }

    /// Reads a chunk of a file.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such chunk.
    pub fn chunk(&self, file: Uuid, at: u64) -> Result<Vec<u8>, Unstored> {
        self.read_part(Kind::File, file, at)?.ok_or(Unstored)
    }

    /// Reads all parts of an object in their order.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    pub fn each_part(
        &self,
        kind: Kind,
        id: Uuid,
        mut each: impl FnMut(u64, Vec<u8>),
    ) -> Result<(), Unstored> {
        let mut read = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_read()?;
            let parts = transaction.open_table(kind.parts())?;
            let key = *id.as_bytes();
            for entry in parts.range((key, 0)..=(key, u64::MAX))? {
                let (at, sealed) = entry?;
                let at = at.value().1;
                if let Ok(part) = self.seal.open(&kind.part(id, at).bytes(), sealed.value()) {
                    each(at, part);
                }
            }
            Ok(())
        };
        read().map_err(|error| unstored(&error))
    }
}
