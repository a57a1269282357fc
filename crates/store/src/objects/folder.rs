//! Backend for files in a local folder.

use std::fs::{File, Metadata};
use std::io;
use std::io::{Read, Seek as _, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use nsbridge_base::random::random;
use nsbridge_handler::Model;
use nsbridge_handler::source::files_of;

use super::{Object, Objects, Reading, unusable};
use crate::chunk_writer::ChunkWriter;
use crate::error::{Fault, StoreError};

/// Folder on the local disk.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    /// GGUF file that is the model, if it is not the whole folder.
    file: Option<String>,
}

impl Folder {
    pub(crate) fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), file: None }
    }

    /// Restricts the listing to the files of the model that this GGUF file is.
    pub(crate) fn around(self, file: Option<String>) -> Self {
        Self { file, ..self }
    }

    /// Runs work on a thread for blocking operations.
    async fn blocking<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce(PathBuf) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let path = self.dir.join(path);
        let lost = |_| Fault::Lasting(StoreError::GivenUp);
        tokio::task::spawn_blocking(move || work(path)).await.map_err(lost)?
    }
}

#[async_trait]
impl Objects for Folder {
    fn address(&self, path: &str) -> String {
        self.dir.join(path).display().to_string()
    }

    async fn list(&self) -> Result<Vec<Object>, Fault> {
        let file = self.file.clone();
        self.blocking("", move |dir| {
            let files = match file {
                Some(name) => Model::at(dir.join(name)).source().files().to_vec(),
                None => files_of(&dir).map_err(|error| fault(&dir, error))?,
            };
            files.into_iter().map(|file| stat(&dir.join(&file.path), &file.path)).collect()
        })
        .await
    }

    async fn get(&self, path: &str, most: u64) -> Result<Option<Bytes>, Fault> {
        self.blocking(path, move |path| {
            let mut bytes = Vec::new();
            let read =
                File::open(&path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
            match read {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(fault(&path, error)),
                Ok(_) if bytes.len() as u64 > most => {
                    let why = format!("it has more than {most} bytes");
                    Err(unusable(path.display().to_string(), &why))
                }
                Ok(_) => Ok(Some(bytes.into())),
            }
        })
        .await
    }

    async fn read(
        &self,
        object: &Object,
        range: Range<u64>,
        writer: ChunkWriter,
        how: Reading<'_>,
    ) -> (ChunkWriter, Result<(), Fault>) {
        let (path, object) = (self.dir.join(&object.path), object.clone());
        let before = writer.received();
        let read = move || {
            let mut writer = writer;
            let done = read_range(&path, &object, &range, &mut writer);
            (writer, done)
        };
        match tokio::task::spawn_blocking(read).await {
            Ok((writer, done)) => {
                how.arrived.add(writer.received() - before);
                (writer, done)
            }
            // A blocking task is dropped only while its runtime shuts down.
            Err(_) => (ChunkWriter::new(Vec::new(), None), Err(StoreError::GivenUp.into())),
        }
    }

    async fn put(&self, path: &str, content: Vec<u8>, only_new: bool) -> Result<bool, Fault> {
        self.blocking(path, move |path| {
            let new = path.with_extension(format!("{:016x}.part", random()));
            let write = || {
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                std::fs::write(&new, &content)?;
                // A hard link fails if the name is taken. A rename would replace the file.
                let placed = if only_new {
                    std::fs::hard_link(&new, &path)
                } else {
                    std::fs::rename(&new, &path)
                };
                let _ = std::fs::remove_file(&new);
                placed
            };
            match write() {
                Ok(()) => Ok(true),
                Err(error) if only_new && error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(fault(&path, error)),
            }
        })
        .await
    }

    async fn names(&self, prefix: &str, most: usize) -> Result<Vec<String>, Fault> {
        let (folder, begin) = prefix.rsplit_once('/').unwrap_or(("", prefix));
        let (within, begin) = (folder.to_owned(), begin.to_owned());
        self.blocking(folder, move |dir| {
            let entries = match dir.read_dir() {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(fault(&dir, error)),
            };
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            let mut names: Vec<String> = names.filter(|name| name.starts_with(&begin)).collect();
            names.sort_unstable();
            names.truncate(most);
            let whole = |name| if within.is_empty() { name } else { format!("{within}/{name}") };
            Ok(names.into_iter().map(whole).collect())
        })
        .await
    }

    async fn remove(&self, path: &str) -> Result<(), Fault> {
        self.blocking(path, |path| match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fault(&path, error)),
            _ => Ok(()),
        })
        .await
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.dir)
    }
}

fn read_range(
    path: &Path,
    object: &Object,
    range: &Range<u64>,
    writer: &mut ChunkWriter,
) -> Result<(), Fault> {
    let mut file = File::open(path).map_err(|error| fault(path, error))?;
    let found = file.metadata().map_err(|error| fault(path, error))?;
    if found.len() != object.size || object.etag.as_ref().is_some_and(|tag| *tag != etag(&found)) {
        return Err(StoreError::Changed { object: path.display().to_string() }.into());
    }
    let read = file.seek(SeekFrom::Start(range.start)).and_then(|_| writer.fill(&mut file));
    read.map_err(|error| fault(path, error))
}

fn stat(path: &Path, name: &str) -> Result<Object, Fault> {
    let found = path.metadata().map_err(|error| fault(path, error))?;
    Ok(Object { path: name.to_owned(), size: found.len(), etag: Some(etag(&found)) })
}

/// Returns a version tag. Writing to a file changes its time or size; replacing it changes its
/// inode.
fn etag(found: &Metadata) -> String {
    format!("{}-{}-{}-{}", found.ino(), found.mtime(), found.mtime_nsec(), found.len())
}

fn fault(path: &Path, error: io::Error) -> Fault {
    let object = path.display().to_string();
    Fault::Lasting(match error.kind() {
        io::ErrorKind::NotFound => StoreError::Missing { object },
        io::ErrorKind::UnexpectedEof => StoreError::Changed { object },
        io::ErrorKind::PermissionDenied => {
            StoreError::Denied { object, code: "permission denied".to_owned() }
        }
        _ => StoreError::System { what: format!("read {object}"), source: error },
    })
}
