//! A model in a folder, read as it is.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{Extent, FileEntry, Source, Stream, check_range};
use crate::{Buffer, Error, Result};

/// How deep folders within a model may lie: a link that leads back ends there.
const DEPTH: usize = 8;

/// The files of a folder.
///
/// The listing is made once; a file that is replaced later is noticed by its size alone.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    files: Vec<FileEntry>,
}

#[derive(Debug)]
struct Reads {
    dir: PathBuf,
    files: Vec<FileEntry>,
    /// What is not taken yet.
    extents: Mutex<Vec<Option<Extent>>>,
}

impl Folder {
    /// Lists a folder. One that is not there has no files, and says so when it is read.
    pub(crate) fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        let mut files = Vec::new();
        let _ = list(&dir, "", DEPTH, &mut files, &mut |_| Ok(()));
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { files, dir }
    }
}

impl Source for Folder {
    fn place(&self) -> String {
        self.dir.display().to_string()
    }

    fn revision(&self) -> Option<&str> {
        None
    }

    fn files(&self) -> &[FileEntry] {
        &self.files
    }

    fn digest(&self, file: usize) -> Result<[u8; 32]> {
        digest_of(&self.dir.join(&self.files[file].path))
    }

    fn read(&self, wanted: &[(usize, Range<u64>)]) -> Result<Vec<Vec<u8>>> {
        let read = |(file, range): &(usize, Range<u64>)| {
            check_range(&self.files[*file], range)?;
            let mut bytes = vec![0; length(range)?];
            read_at(&self.dir, &self.files[*file], range.start, &mut bytes)?;
            Ok(bytes)
        };
        wanted.iter().map(read).collect()
    }

    fn stream(&self, extents: Vec<Extent>) -> Result<Box<dyn Stream>> {
        for extent in &extents {
            check_range(&self.files[extent.file], &extent.range)?;
        }
        Ok(Box::new(Reads {
            dir: self.dir.clone(),
            files: self.files.clone(),
            extents: Mutex::new(extents.into_iter().map(Some).collect()),
        }))
    }

    fn dir(&self) -> Result<PathBuf> {
        Ok(self.dir.clone())
    }
}

impl Stream for Reads {
    fn take(&self, extent: usize) -> Result<Buffer> {
        let taken = self.extents.lock().unwrap_or_else(PoisonError::into_inner)[extent].take();
        let Extent { file, range, align } =
            taken.ok_or_else(|| Error::fatal("a part of the model was taken twice"))?;
        let (filling, segments) = Buffer::filled_by(length(&range)?, align, &[])?;
        for mut segment in segments {
            read_at(&self.dir, &self.files[file], range.start, &mut segment)?;
        }
        filling.finish().map_err(|_| Error::fatal("a part of the model is still being read"))
    }
}

fn length(range: &Range<u64>) -> Result<usize> {
    usize::try_from(range.end - range.start).map_err(Error::fatal)
}

fn read_at(dir: &Path, file: &FileEntry, at: u64, into: &mut [u8]) -> Result<()> {
    let path = dir.join(&file.path);
    let read = File::open(&path).and_then(|file| file.read_exact_at(into, at));
    read.map_err(|error| cannot_read(&path, &error))
}

fn cannot_read(path: &Path, error: &io::Error) -> Error {
    Error::fatal(format!("could not read {}: {error}", path.display()))
}

/// BLAKE3 of a file on this machine, as `b3sum` prints it.
///
/// # Errors
///
/// A sentence that names the file.
pub fn digest_of(path: &Path) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let read = File::open(path).and_then(|file| hasher.update_reader(file).map(|_| ()));
    read.map_err(|error| cannot_read(path, &error))?;
    Ok(hasher.finalize().into())
}

/// The files of a folder and of those within, ascending by path; none whose name begins with a dot.
///
/// # Errors
///
/// A folder cannot be listed, lies too deep, or has a link that leads nowhere: files would be missing.
pub fn files_of(dir: &Path) -> io::Result<Vec<FileEntry>> {
    let mut files = Vec::new();
    let refuse = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    list(dir, "", DEPTH, &mut files, &mut |what| refuse(what))?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// The links of a folder that lead out of it: their paths within it, and where they lead.
///
/// Whoever made the folder chose what is there: a link may name a file that only its reader may read.
///
/// # Errors
///
/// A folder cannot be listed.
pub fn links_out_of(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut links = Vec::new();
    find_links(&dir.canonicalize()?, dir, "", DEPTH, &mut links)?;
    links.sort();
    Ok(links)
}

fn find_links(
    home: &Path,
    dir: &Path,
    prefix: &str,
    depth: usize,
    links: &mut Vec<(String, PathBuf)>,
) -> io::Result<()> {
    for entry in dir.read_dir()? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // One that leads nowhere is told when the folder is listed.
        let Ok(place) = entry.path().canonicalize() else { continue };
        if name.starts_with('.') {
            continue;
        }
        let path = format!("{prefix}{name}");
        if !place.starts_with(home) {
            links.push((path, place));
        } else if place.is_dir() && depth > 0 {
            find_links(home, &entry.path(), &format!("{path}/"), depth - 1, links)?;
        }
    }
    Ok(())
}

fn list(
    dir: &Path,
    prefix: &str,
    depth: usize,
    files: &mut Vec<FileEntry>,
    left_out: &mut dyn FnMut(String) -> io::Result<()>,
) -> io::Result<()> {
    for entry in dir.read_dir()? {
        let entry = entry?;
        // A name that is not UTF-8 is no file of a model.
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with('.') {
            continue;
        }
        let path = format!("{prefix}{name}");
        let Ok(what) = entry.path().metadata() else {
            left_out(format!("{} leads nowhere", entry.path().display()))?;
            continue;
        };
        if what.is_file() {
            files.push(FileEntry { path, size: what.len() });
        } else if what.is_dir() && depth > 0 {
            list(&entry.path(), &format!("{path}/"), depth - 1, files, left_out)?;
        } else if what.is_dir() {
            left_out(format!("{} lies too deep", entry.path().display()))?;
        }
    }
    Ok(())
}
