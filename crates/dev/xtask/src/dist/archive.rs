//! Archive of the installed files, and the sums of all artefacts.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::release::Release;

/// File with the SHA-256 of each artefact, as `sha256sum --check` reads it.
pub(super) const SUMS: &str = "SHA256SUMS";

/// Writes a file, and makes the folder for it.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

/// Packs a folder under another name. Order, owners, times and modes are those of the release, not of
/// this machine.
pub(super) fn pack(folder: &Path, name: &str, to: &Path, release: &Release) -> Result<()> {
    let out = File::create(to).with_context(|| format!("writing {}", to.display()))?;
    let mut archive = Builder::new(gzip(out));
    for path in below(folder)? {
        let inside = Path::new(name).join(path.strip_prefix(folder)?);
        let mut header = Header::new_gnu();
        header.set_mtime(release.epoch);
        header.set_uid(0);
        header.set_gid(0);
        if path.is_dir() {
            header.set_entry_type(EntryType::Directory);
            header.set_mode(0o755);
            header.set_size(0);
            archive.append_data(&mut header, inside, std::io::empty())?;
        } else {
            let file = File::open(&path).with_context(|| format!("reading {}", path.display()))?;
            header.set_mode(mode(&file)?);
            header.set_size(file.metadata()?.len());
            archive.append_data(&mut header, inside, file)?;
        }
    }
    archive.into_inner()?.finish()?;
    Ok(())
}

/// Returns a compressor whose header has no time and no name.
pub(super) fn gzip(out: File) -> GzEncoder<File> {
    GzBuilder::new().write(out, Compression::best())
}

fn mode(file: &File) -> Result<u32> {
    let is_program = file.metadata()?.permissions().mode() & 0o100 != 0;
    Ok(if is_program { 0o755 } else { 0o644 })
}

/// Returns all files and folders below a folder, in the order of their names.
pub(super) fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    let entries = folder.read_dir().with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        // A link to a folder is no folder here.
        if entry.file_type()?.is_dir() {
            all.extend(below(&entry.path())?);
        }
        all.push(entry.path());
    }
    all.sort();
    Ok(all)
}

/// Writes the sums of all files of a folder.
pub(super) fn sum(folder: &Path) -> Result<()> {
    let mut lines = String::new();
    for path in below(folder)? {
        let name = path.strip_prefix(folder)?.display();
        writeln!(lines, "{}  {name}", sha256(&path)?)?;
    }
    write(&folder.join(SUMS), lines.as_bytes())
}

/// Returns the SHA-256 of a file in hexadecimal.
pub(super) fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("reading {}", path.display()))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
    }
    Ok(hash.finalize().iter().fold(String::new(), |mut all, byte| {
        let _ = write!(all, "{byte:02x}");
        all
    }))
}
