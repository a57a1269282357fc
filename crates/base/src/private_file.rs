//! Files of this user alone, such as API keys and the key of a TLS certificate.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// Opens a file to read and write it, and creates it if it does not exist. Only this user may read it.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn open_own(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path)?;
    // Earlier versions left it to the umask.
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Error of a file with secrets that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivateFileError {
    /// File that does not exist.
    #[error("there is no {what} {}: correct the path, or create the file", path.display())]
    Missing {
        /// Kind of the file.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
    },
    /// File that cannot be read.
    #[error("cannot read the {what} {}", path.display())]
    Io {
        /// Kind of the file.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// File that other users of this machine can access.
    #[error("the {what} {} can be read by others (mode {mode:o}): chmod 600 it", path.display())]
    Readable {
        /// Kind of the file.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// File that belongs to another user.
    #[error("the {what} {} belongs to user {owner}: it must be this process's own", path.display())]
    Foreign {
        /// Kind of the file.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// User id of the owner.
        owner: u32,
    },
    /// File that is too large.
    #[error("the {what} {} is larger than {most} bytes: correct the path", path.display())]
    TooLarge {
        /// Kind of the file.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Maximum size in bytes.
        most: u64,
    },
}

/// Kind of a file with secrets, and the rule for its owner and mode.
#[derive(Clone, Copy, Debug)]
pub struct PrivateFile {
    /// Noun for error messages, such as `API key file`.
    pub what: &'static str,
    /// Maximum size in bytes.
    pub most: u64,
    /// Accepts a file of root that a group can read: certificate tools and Kubernetes write such
    /// files.
    pub of_root: bool,
}

impl PrivateFile {
    /// Reads the file after a check of its owner and mode.
    ///
    /// # Errors
    ///
    /// Returns an error if the file does not exist, cannot be read, is open to other users, belongs to
    /// another user or is too large.
    pub fn read(self, path: &Path) -> Result<Zeroizing<Vec<u8>>, PrivateFileError> {
        let Self { what, most, .. } = self;
        let io = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => {
                PrivateFileError::Missing { what, path: path.to_owned() }
            }
            _ => PrivateFileError::Io { what, path: path.to_owned(), source },
        };
        // The file is opened only once, so that the file that was checked is also the one that is
        // read.
        let file = fs::File::open(path).map_err(io)?;
        let status = file.metadata().map_err(io)?;
        self.check(path, &status)?;
        // Reserved at once, because growth would leave copies of the content in freed memory.
        let size = usize::try_from(status.len().min(most)).unwrap_or_default();
        let mut content = Zeroizing::new(Vec::with_capacity(size.saturating_add(64)));
        file.take(most.saturating_add(1)).read_to_end(&mut content).map_err(io)?;
        if content.len() as u64 > most {
            return Err(PrivateFileError::TooLarge { what, path: path.to_owned(), most });
        }
        Ok(content)
    }

    fn check(self, path: &Path, status: &fs::Metadata) -> Result<(), PrivateFileError> {
        let what = self.what;
        let mode = status.permissions().mode() & 0o777;
        // Root may read every user's file. For root, too, a secret of another user is a mistake.
        let me = fs::metadata("/proc/self").map_or(status.uid(), |process| process.uid());
        let refused = self.refused_bits(me, status.uid()).ok_or_else(|| {
            PrivateFileError::Foreign { what, path: path.to_owned(), owner: status.uid() }
        })?;
        if mode & refused != 0 {
            return Err(PrivateFileError::Readable { what, path: path.to_owned(), mode });
        }
        Ok(())
    }

    /// Returns the permission bits that must not be set; `None` for a file of another user.
    fn refused_bits(self, me: u32, owner: u32) -> Option<u32> {
        match owner {
            0 if self.of_root => Some(0o037),
            _ if owner == me => Some(0o077),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::PrivateFile;

    const KIND: PrivateFile = PrivateFile { what: "API key file", most: 8, of_root: false };

    #[track_caller]
    fn check_read(content: &str, mode: u32, says: Option<&str>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        match (KIND.read(&path), says) {
            (Ok(read), None) => assert_eq!(*read, content.as_bytes()),
            (Err(error), Some(says)) => {
                let error = error.to_string();
                assert!(error.contains(says) && error.contains("API key file"), "{error}");
                assert!(error.contains(path.to_str().unwrap()), "{error}");
            }
            (read, says) => panic!("{read:?} instead of {says:?}"),
        }
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_too_large_is_refused() {
        check_read("12345678", 0o600, None);
        check_read("", 0o400, None);
        check_read("1", 0o640, Some("can be read by others (mode 640): chmod 600 it"));
        check_read("1", 0o604, Some("(mode 604)"));
        check_read("1", 0o620, Some("(mode 620)"));
        check_read("123456789", 0o600, Some("larger than 8 bytes"));
    }

    #[test]
    fn a_missing_file_and_a_folder_are_told_with_their_path() {
        let folder = tempfile::tempdir().unwrap();
        let missing = KIND.read(&folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.starts_with("there is no API key file /"), "{missing}");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let directory = KIND.read(folder.path()).unwrap_err().to_string();
        assert!(directory.starts_with("cannot read the API key file /"), "{directory}");
    }

    #[track_caller]
    fn check_bits(of_root: bool, me: u32, owner: u32, refused: Option<u32>) {
        let kind = PrivateFile { of_root, ..KIND };
        assert_eq!(kind.refused_bits(me, owner), refused, "{of_root} {me} {owner}");
    }

    #[test]
    fn only_a_tls_key_of_root_may_be_read_by_a_group() {
        check_bits(false, 1000, 1000, Some(0o077));
        check_bits(false, 1000, 0, None);
        check_bits(false, 0, 0, Some(0o077));
        check_bits(false, 0, 1000, None);
        check_bits(true, 1000, 1000, Some(0o077));
        check_bits(true, 1000, 0, Some(0o037));
        check_bits(true, 0, 0, Some(0o037));
        check_bits(true, 1000, 1001, None);
    }
}
