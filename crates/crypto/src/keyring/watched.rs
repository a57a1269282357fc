//! Keyring whose file may change at runtime, which allows key rotation without a restart.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use nsbridge_base::FileStamp;
use parking_lot::{Mutex, MutexGuard};

use super::{Keyring, KeyringError};
use crate::key::{DataKey, Key};
use crate::provider::{KeyError, KeyProvider, Scope};
use crate::request::RequestFrame;

/// Keyring file that is reloaded when it changes.
///
/// It needs no runtime: the file is checked when a key is requested, at most once per interval. A
/// file that cannot be read or is no keyring leaves the keys unchanged. A request that has obtained
/// its key keeps it, whatever happens to the file.
pub struct WatchedKeyring {
    path: PathBuf,
    every: Duration,
    revoke_if_removed: bool,
    tell: Box<dyn Fn(Reread<'_>) + Send + Sync>,
    state: Mutex<State>,
}

/// Outcome of reloading a changed file.
#[derive(Debug)]
pub enum Reread<'a> {
    /// New keys, in use from now on.
    Taken(&'a Keyring),
    /// Removed file: all keys are withdrawn, so this empty keyring opens nothing.
    Removed(&'a Keyring),
    /// Unusable file: the old keys stay in use.
    Refused(&'a KeyringError),
}

struct State {
    ring: Arc<Keyring>,
    stamp: Option<FileStamp>,
    looked: Instant,
}

impl WatchedKeyring {
    /// Loads a keyring file and watches it, checking for changes at most once per interval `every`.
    ///
    /// `tell` is called for each change, for example to write a log line.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyring::load`]. Errors of later versions of the file only go to
    /// `tell`.
    pub fn open(
        path: &Path,
        every: Duration,
        tell: impl Fn(Reread<'_>) + Send + Sync + 'static,
    ) -> Result<Self, KeyringError> {
        // Taken before the file is read, so that a version that arrives during the read is noticed
        // later.
        let stamp = FileStamp::of(path);
        let state = State { ring: Arc::new(Keyring::load(path)?), stamp, looked: Instant::now() };
        let (path, tell) = (path.to_owned(), Box::new(tell));
        Ok(Self { path, every, revoke_if_removed: false, tell, state: Mutex::new(state) })
    }

    /// Sets the behavior for a removed file: `true` withdraws all keys, `false` keeps the old ones.
    #[must_use]
    pub fn revoke_if_removed(mut self, revoke: bool) -> Self {
        self.revoke_if_removed = revoke;
        self
    }

    /// Returns the current keys, after a check of the file if the interval has passed.
    pub fn ring(&self) -> Arc<Keyring> {
        if self.state.lock().looked.elapsed() >= self.every {
            self.look();
        }
        self.state.lock().ring.clone()
    }

    /// Checks the file now, and reloads it if it has changed.
    pub fn look(&self) {
        let stamp = FileStamp::of(&self.path);
        let mut state = self.state.lock();
        state.looked = Instant::now();
        if state.stamp != stamp {
            state.stamp = stamp;
            self.read(state);
        }
    }

    /// Reloads the file now, even if it has not changed.
    pub fn reread(&self) {
        let stamp = FileStamp::of(&self.path);
        let mut state = self.state.lock();
        (state.stamp, state.looked) = (stamp, Instant::now());
        self.read(state);
    }

    fn read(&self, mut state: MutexGuard<'_, State>) {
        match Keyring::load(&self.path) {
            Ok(ring) => {
                state.ring = Arc::new(ring);
                let ring = state.ring.clone();
                drop(state);
                (self.tell)(Reread::Taken(&ring));
            }
            Err(KeyringError::Missing { .. }) if self.revoke_if_removed => {
                state.ring = Arc::new(Keyring::empty());
                let ring = state.ring.clone();
                drop(state);
                (self.tell)(Reread::Removed(&ring));
            }
            Err(error) => {
                drop(state);
                (self.tell)(Reread::Refused(&error));
            }
        }
    }
}

#[async_trait]
impl KeyProvider for WatchedKeyring {
    async fn data_key(&self, scope: &Scope) -> Result<DataKey, KeyError> {
        self.ring().data_key(scope).await
    }

    async fn open_key(&self, frame: &RequestFrame<'_>) -> Result<Key, KeyError> {
        self.ring().open_key(frame).await
    }

    fn proves_tenant(&self, frame: &RequestFrame<'_>) -> bool {
        self.ring().proves_tenant(frame)
    }
}

impl fmt::Debug for WatchedKeyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedKeyring").field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use nsbridge_base::FileStamp;
    use tempfile::TempDir;

    use super::{Reread, WatchedKeyring};
    use crate::key::Key;
    use crate::keyring::{Entry, Keyring, State};

    struct Stage {
        _home: TempDir,
        path: PathBuf,
        said: Arc<Mutex<Vec<String>>>,
    }

    impl Stage {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let path = home.path().join("keys.json");
            let stage = Self { path, _home: home, said: Arc::default() };
            stage.write("one");
            stage
        }

        /// Installs a keyring with this key, as `nsbridge keys rotate` does.
        fn write(&self, id: &str) {
            let key = Entry::new(id.parse().unwrap(), Key::generate().unwrap(), State::Primary);
            self.replace(&Keyring::of(vec![key]).unwrap().to_json());
        }

        fn replace(&self, text: &str) {
            let beside = self.path.with_extension("new");
            fs::write(&beside, text).unwrap();
            fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
            fs::rename(beside, &self.path).unwrap();
        }

        fn watch(&self, every: Duration) -> WatchedKeyring {
            let said = self.said.clone();
            let tell = move |reread: Reread<'_>| {
                said.lock().unwrap().push(match reread {
                    Reread::Taken(ring) => ring.entries()[0].id.to_string(),
                    Reread::Removed(ring) => format!("removed, {} left", ring.entries().len()),
                    Reread::Refused(error) => error.to_string(),
                });
            };
            WatchedKeyring::open(&self.path, every, tell).unwrap()
        }

        fn said(&self) -> Vec<String> {
            self.said.lock().unwrap().clone()
        }
    }

    fn id(ring: &WatchedKeyring) -> String {
        ring.ring().entries()[0].id.to_string()
    }

    #[test]
    fn a_file_that_was_replaced_is_read_at_its_next_use() {
        let stage = Stage::new();
        let ring = stage.watch(Duration::ZERO);
        assert_eq!(id(&ring), "one");
        stage.write("two");
        assert_eq!(id(&ring), "two");
        assert_eq!(id(&ring), "two");
        assert_eq!(stage.said(), ["two"], "a change is told once");
    }

    #[test]
    fn a_file_is_not_looked_at_more_often_than_it_is_to_be() {
        let stage = Stage::new();
        let ring = stage.watch(Duration::from_secs(3600));
        stage.write("two");
        assert_eq!(id(&ring), "one");
        ring.look();
        assert_eq!(id(&ring), "two");
    }

    #[test]
    fn a_broken_file_leaves_the_keys_and_is_told_once() {
        let stage = Stage::new();
        let ring = stage.watch(Duration::ZERO);
        stage.replace("{\"schema\": 1");
        assert_eq!((id(&ring), id(&ring)), ("one".to_owned(), "one".to_owned()));
        fs::remove_file(&stage.path).unwrap();
        assert_eq!((id(&ring), id(&ring)), ("one".to_owned(), "one".to_owned()));
        let said = stage.said();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("the keyring is not valid") && said[1].contains("there is no"));
        stage.write("two");
        assert_eq!(id(&ring), "two");
    }

    #[test]
    fn a_file_that_is_removed_withdraws_all_keys_where_that_is_asked_for() {
        let stage = Stage::new();
        let ring = stage.watch(Duration::ZERO).revoke_if_removed(true);
        stage.replace("{\"schema\": 1");
        assert_eq!(id(&ring), "one", "a broken file withdraws none");
        fs::remove_file(&stage.path).unwrap();
        assert!(ring.ring().entries().is_empty());
        assert_eq!(stage.said()[1..], ["removed, 0 left"]);
        stage.write("two");
        assert_eq!(id(&ring), "two");
    }

    #[test]
    fn a_mode_that_was_corrected_is_noticed() {
        let stage = Stage::new();
        let ring = stage.watch(Duration::ZERO);
        let mode = |mode| fs::set_permissions(&stage.path, fs::Permissions::from_mode(mode));
        mode(0o644).unwrap();
        assert_eq!(id(&ring), "one");
        assert!(stage.said()[0].contains("can be read by others"), "{:?}", stage.said());
        // File times have a limited resolution.
        let before = FileStamp::of(&stage.path);
        while FileStamp::of(&stage.path) == before {
            mode(0o600).unwrap();
        }
        assert_eq!(id(&ring), "one");
        assert_eq!(stage.said()[1..], ["one"]);
    }

    #[test]
    fn who_asks_for_it_has_the_file_read_again_unchanged() {
        let stage = Stage::new();
        let ring = stage.watch(Duration::from_secs(3600));
        ring.reread();
        assert_eq!(stage.said(), ["one"]);
    }
}
