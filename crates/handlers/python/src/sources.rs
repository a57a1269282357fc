//! Digest of a model's source files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum depth of packages.
const DEPTH: usize = 16;

/// Maximum number of source files.
const MAX_FILES: usize = 10_000;

/// Lists the modules of a folder: its `.py` files, and those of each subfolder that directly holds
/// some. Hidden folders and virtual environments do not count.
///
/// # Errors
///
/// Returns an error if a folder cannot be listed, or if there are too many files.
pub(crate) fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    modules(folder, 0, &mut files)?;
    files.sort();
    Ok(files)
}

fn modules(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut folders = Vec::new();
    let before = files.len();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if hidden {
            continue;
        }
        if path.extension().is_some_and(|extension| extension == "py") && path.is_file() {
            files.push(path);
        } else if path.is_dir() && !path.join("pyvenv.cfg").exists() {
            folders.push(path);
        }
    }
    if files.len() > MAX_FILES || depth > DEPTH {
        let what =
            format!("more than {MAX_FILES} Python files, or packages deeper than {DEPTH} folders");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    if files.len() > before {
        folders.iter().try_for_each(|folder| modules(folder, depth + 1, files))?;
    }
    Ok(())
}

/// Adds the paths within the folder and the content of its modules to a digest.
///
/// # Errors
///
/// Returns an error if a file cannot be read.
pub(crate) fn digest(folder: &Path, hasher: &mut blake3::Hasher) -> io::Result<()> {
    for file in list(folder)? {
        let within = file.strip_prefix(folder).unwrap_or(&file);
        add(hasher, within.as_os_str().as_encoded_bytes());
        add(hasher, &fs::read(&file)?);
    }
    Ok(())
}

/// Adds bytes and their number to a digest.
pub(crate) fn add(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_be_bytes()).update(bytes);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{digest, list};

    fn write(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn of(folder: &Path) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        digest(folder, &mut hasher).unwrap();
        hasher.finalize()
    }

    #[test]
    fn modules_beside_the_model_count_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for name in ["model.py", "b/inner.py", "b/c/deep.py", "a.py"] {
            write(folder, name, "");
        }
        for name in [".venv/x.py", "env/pyvenv.cfg", "env/y.py", "data/z/x.py", "b/note.txt"] {
            write(folder, name, "");
        }
        let names: Vec<_> = list(folder).unwrap();
        let names: Vec<_> = names.iter().map(|path| path.strip_prefix(folder).unwrap()).collect();
        let expected = ["a.py", "b/c/deep.py", "b/inner.py", "model.py"].map(Path::new);
        assert_eq!(names, expected);
    }

    #[test]
    fn a_changed_a_renamed_and_a_new_module_change_the_digest() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, "model.py", "a = 1");
        let first = of(folder);
        write(folder, "model.py", "a = 2");
        let changed = of(folder);
        fs::rename(folder.join("model.py"), folder.join("other.py")).unwrap();
        let renamed = of(folder);
        write(folder, "more/b.py", "");
        let grown = of(folder);
        let all = [first, changed, renamed, grown];
        assert!((0..4).all(|a| (0..a).all(|b| all[a] != all[b])), "{all:?}");
        write(folder, "data.txt", "not a module");
        assert_eq!(of(folder), grown);
    }
}
