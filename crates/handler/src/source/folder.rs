//! Model in a local folder, read in place.

#[cfg(test)]
mod tests;

use std::fs::{DirEntry, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::{Extent, FileEntry, Source, Stream, belongs_to, check_range};
use crate::buffer::Buffer;
use crate::error::{Error, Result};

/// Maximum nesting depth of subfolders, which also ends a loop of symbolic links.
const DEPTH: usize = 8;

/// Maximum number of files and folders in a folder, as many as a manifest names files. An entry
/// that several links lead to counts once for each path: a few links per folder make billions of
/// paths.
const MOST_ENTRIES: usize = 100_000;

/// Files of a folder, or one GGUF file and the files that belong to it.
///
/// The listing is made once. A file that is replaced later is detected only by its size.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    /// Name of the GGUF file, if the model is one file.
    name: Option<String>,
    /// Reason why the folder was not listed.
    unlisted: Option<String>,
    files: Vec<FileEntry>,
}

#[derive(Debug)]
struct Reads {
    dir: PathBuf,
    files: Vec<FileEntry>,
    /// Extents that are not taken yet.
    extents: Mutex<Vec<Option<Extent>>>,
}

impl Folder {
    /// Lists a folder. A missing folder has no files, and neither has one with more than 100,000
    /// entries; reading from it returns an error.
    pub(crate) fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        let (mut files, mut limit) = (Vec::new(), Limit::new());
        let _ = list(&dir, "", DEPTH, &mut files, &mut limit, &mut |_| Ok(()));
        let unlisted = limit.is_exceeded().then(|| Limit::MESSAGE.to_owned());
        if unlisted.is_some() {
            files.clear();
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { dir, name: None, unlisted, files }
    }

    /// Lists a GGUF file, the other parts of its split, and the small files beside it that a model
    /// of one file may have.
    pub(crate) fn around(dir: PathBuf, name: String) -> Self {
        // Other folders beside the file are of no concern, so only the folder itself is listed.
        let entries = dir.read_dir().into_iter().flatten().flatten();
        let files = entries.filter_map(|entry| {
            let path =
                entry.file_name().into_string().ok().filter(|path| belongs_to(&name, path))?;
            let what = entry.path().metadata().ok().filter(std::fs::Metadata::is_file)?;
            Some(FileEntry { path, size: what.len() })
        });
        let mut files: Vec<FileEntry> = files.collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { dir, name: Some(name), unlisted: None, files }
    }
}

impl Source for Folder {
    fn place(&self) -> String {
        let dir = self.dir.display();
        match (&self.unlisted, &self.name) {
            // The place is part of each message about a file that is not in the list.
            (Some(why), _) => format!("{dir} ({why})"),
            (None, Some(name)) => self.dir.join(name).display().to_string(),
            (None, None) => dir.to_string(),
        }
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
        let taken = self.extents.lock()[extent].take();
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

/// Returns the BLAKE3 digest of a local file, as `b3sum` prints it.
///
/// # Errors
///
/// Returns an error that names the file if it cannot be read.
pub fn digest_of(path: &Path) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let read = File::open(path).and_then(|file| hasher.update_reader(file).map(|_| ()));
    read.map_err(|error| cannot_read(path, &error))?;
    Ok(hasher.finalize().into())
}

/// Lists the files of a folder and its subfolders in ascending order of path, without names that
/// begin with a dot.
///
/// # Errors
///
/// Returns an error if a folder cannot be listed or is nested too deeply, or if a link is broken:
/// files would be missing from the list. Returns an error if there are more than 100,000 entries.
pub fn files_of(dir: &Path) -> io::Result<Vec<FileEntry>> {
    let mut files = Vec::new();
    let refuse = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    list(dir, "", DEPTH, &mut files, &mut Limit::new(), &mut |what| refuse(what))?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// Returns the links of a folder that point outside of it: their paths within the folder, and their
/// targets.
///
/// The author of the folder controls its links: a link may name a file that only the reading
/// process may read.
///
/// # Errors
///
/// Returns an error if a folder cannot be listed, or if there are more than 100,000 entries.
pub fn links_out_of(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut links = Vec::new();
    find_links(&dir.canonicalize()?, dir, "", DEPTH, &mut links, &mut Limit::new())?;
    links.sort();
    Ok(links)
}

/// Number of entries that a listing may still visit.
#[derive(Debug)]
struct Limit {
    left: Option<usize>,
}

impl Limit {
    const MESSAGE: &str = "it has more than 100000 files and folders; a link to a folder counts \
                           with everything in it";

    fn new() -> Self {
        Self { left: Some(MOST_ENTRIES) }
    }

    fn count(&mut self, entry: DirEntry) -> io::Result<DirEntry> {
        self.left = self.left.and_then(|left| left.checked_sub(1));
        match self.left {
            Some(_) => Ok(entry),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, Self::MESSAGE)),
        }
    }

    fn is_exceeded(&self) -> bool {
        self.left.is_none()
    }
}

fn find_links(
    home: &Path,
    dir: &Path,
    prefix: &str,
    depth: usize,
    links: &mut Vec<(String, PathBuf)>,
    limit: &mut Limit,
) -> io::Result<()> {
    for entry in dir.read_dir()? {
        let entry = limit.count(entry?)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Broken links are reported when the folder is listed.
        let Ok(place) = entry.path().canonicalize() else { continue };
        if name.starts_with('.') {
            continue;
        }
        let path = format!("{prefix}{name}");
        if !place.starts_with(home) {
            links.push((path, place));
        } else if place.is_dir() && depth > 0 {
            find_links(home, &entry.path(), &format!("{path}/"), depth - 1, links, limit)?;
        }
    }
    Ok(())
}

fn list(
    dir: &Path,
    prefix: &str,
    depth: usize,
    files: &mut Vec<FileEntry>,
    limit: &mut Limit,
    left_out: &mut dyn FnMut(String) -> io::Result<()>,
) -> io::Result<()> {
    for entry in dir.read_dir()? {
        let entry = limit.count(entry?)?;
        // Files of a model have UTF-8 names.
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
            list(&entry.path(), &format!("{path}/"), depth - 1, files, limit, left_out)?;
        } else if what.is_dir() {
            left_out(format!("{} lies too deep", entry.path().display()))?;
        }
    }
    Ok(())
}
