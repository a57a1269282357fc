//! Construction of a worker's key provider from its configuration.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nsbridge_base::chain;
use nsbridge_crypto::{
    ByProvider, Entry, KeyProvider, Keyring, Reread, Scope, State, WatchedKeyring,
};
use nsbridge_protocol::KeyId;
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::config::{ConfigError, KeysConfig};
use crate::error::Error;
use crate::observability::metrics::Metrics;
use crate::timing::Timing;

/// Opens the keys of a worker: a keyring, AWS KMS, or both. A keyring's file is followed from here
/// on; `withdrawn` is notified of each change that takes a key away.
pub(crate) async fn open(
    config: &KeysConfig,
    metrics: &Metrics,
    withdrawn: watch::Sender<()>,
    timing: &Timing,
) -> Result<Arc<dyn KeyProvider>, Error> {
    let keyring: Option<Arc<dyn KeyProvider>> = match (&config.keyring, &config.keyring_json) {
        (Some(path), None) => {
            let (metrics, poll) = (metrics.clone(), timing.keyring_poll);
            Some(follow(path, metrics, config.revoke_if_removed, withdrawn, poll)?)
        }
        _ => config.load()?.map(|ring| Arc::new(ring) as _),
    };
    Ok(Arc::new(ByProvider::new(keyring, kms(config).await?)))
}

impl KeysConfig {
    /// Opens the keys of this configuration, which open requests and seal them. AWS KMS seals if
    /// the configuration names a key of it. A keyring's file is read once.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Config`] if the configuration is not valid, and [`Error::Keys`] if the
    /// keyring cannot be used.
    pub async fn open(&self) -> Result<Arc<dyn KeyProvider>, Error> {
        self.check().map_err(ConfigError::new)?;
        let keyring = self.load()?.map(|ring| Arc::new(ring) as Arc<dyn KeyProvider>);
        Ok(Arc::new(ByProvider::new(keyring, kms(self).await?)))
    }
}

impl KeysConfig {
    /// Asks AWS KMS whether this process may decrypt with each of `kms_keys`. Without keys there, and without
    /// the feature `kms`, nothing is asked.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Config`] if the configuration is not valid, and [`Error::KeyService`] for the
    /// first key that cannot be used.
    #[cfg_attr(
        not(feature = "kms"),
        expect(clippy::unused_async, reason = "with the feature `kms` it is one")
    )]
    pub async fn probe_kms(&self, scope: &Scope) -> Result<(), Error> {
        #[cfg(feature = "kms")]
        if let Some(provider) = kms_provider(self).await? {
            provider.probe(scope).await?;
        }
        let _ = scope;
        Ok(())
    }
}

#[cfg(feature = "kms")]
async fn kms(config: &KeysConfig) -> Result<Option<Arc<dyn KeyProvider>>, Error> {
    Ok(kms_provider(config).await?.map(|provider| Arc::new(provider) as _))
}

#[cfg(feature = "kms")]
async fn kms_provider(config: &KeysConfig) -> Result<Option<nsbridge_crypto::KmsProvider>, Error> {
    let KeysConfig { kms_keys, region, endpoint_url, .. } = config;
    if kms_keys.is_empty() {
        return Ok(None);
    }
    let mut provider = nsbridge_crypto::KmsProvider::builder(kms_keys.clone());
    if let Some(region) = region {
        provider = provider.region(region);
    }
    if let Some(url) = endpoint_url {
        provider = provider.endpoint_url(url);
    }
    let provider = provider.build().await;
    Ok(Some(provider.map_err(|error| ConfigError::new(error.to_string()))?))
}

#[cfg(not(feature = "kms"))]
#[expect(clippy::unused_async, reason = "with the feature `kms` it is one")]
async fn kms(_: &KeysConfig) -> Result<Option<Arc<dyn KeyProvider>>, Error> {
    Ok(None)
}

/// Reads a keyring now, whenever its file changes, and on SIGHUP.
fn follow(
    path: &Path,
    metrics: Metrics,
    revoke_if_removed: bool,
    withdrawn: watch::Sender<()>,
    poll: Duration,
) -> Result<Arc<WatchedKeyring>, Error> {
    let shown = path.display().to_string();
    let opening = Arc::new(Mutex::new(BTreeSet::new()));
    let before = opening.clone();
    let changed = move |ring: &Keyring| {
        let mut before = before.lock();
        let now = that_open(ring);
        if !before.is_subset(&now) {
            withdrawn.send_replace(());
        }
        *before = now;
    };
    let ring = WatchedKeyring::open(path, poll, move |reread| match reread {
        Reread::Taken(ring) => {
            metrics.keyring_reloaded(true);
            tracing::info!(keyring = shown, keys = ring.entries().len(), "the keyring was read");
            changed(ring);
        }
        Reread::Removed(ring) => {
            metrics.keyring_reloaded(true);
            tracing::error!(keyring = shown, "the keyring was removed: all keys are withdrawn");
            changed(ring);
        }
        Reread::Refused(error) => {
            metrics.keyring_reloaded(false);
            let error = chain(error);
            tracing::error!(keyring = shown, error, "the keyring has changed and cannot be used");
        }
    })?;
    let ring = Arc::new(ring.revoke_if_removed(revoke_if_removed));
    *opening.lock() = that_open(&ring.ring());
    let mut hang_up = signal(SignalKind::hangup())
        .map_err(|source| Error::System { what: "listen for signals", source })?;
    let followed = Arc::downgrade(&ring);
    tokio::spawn(async move {
        loop {
            let asked = tokio::select! {
                asked = hang_up.recv() => asked.is_some(),
                () = tokio::time::sleep(poll) => false,
            };
            let Some(ring) = followed.upgrade() else { return };
            if asked { ring.reread() } else { ring.look() }
        }
    });
    Ok(ring)
}

/// Returns id and check value of the keys of a ring that open requests.
fn that_open(ring: &Keyring) -> BTreeSet<(KeyId, String)> {
    let opens = |entry: &&Entry| entry.state != State::Disabled;
    let entries = ring.entries().iter().filter(opens);
    entries.map(|entry| (entry.id.clone(), entry.check_value())).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use nsbridge_crypto::{Entry, Key, Keyring, State};
    use tokio::sync::watch;

    use super::follow;
    use crate::observability::metrics::Metrics;

    #[tokio::test]
    async fn a_hang_up_has_the_keyring_read_and_a_broken_one_is_counted() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("keys.json");
        let key = Entry::new("one".parse().unwrap(), Key::generate().unwrap(), State::Primary);
        std::fs::write(&path, &*Keyring::of(vec![key]).unwrap().to_json()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let metrics = Metrics::new(&"tale-7m".parse().unwrap());
        let (sender, mut withdrawn) = watch::channel(());
        let ring = follow(&path, metrics.clone(), true, sender, Duration::from_millis(20)).unwrap();
        let counted = async |result: &str| {
            let result = format!("\"{result}\"");
            let value = || {
                let text = metrics.text();
                let mut lines = text.lines().filter(|line| line.contains("keyring_reloads_total"));
                lines.any(|line| line.contains(&result) && line.ends_with(" 1"))
            };
            let counted = async {
                while !value() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), counted).await.is_ok()
        };
        let pid = std::process::id().to_string();
        std::process::Command::new("kill").args(["-HUP", &pid]).status().unwrap();
        assert!(counted("taken").await);
        std::fs::write(&path, "{").unwrap();
        assert!(counted("refused").await, "the file is looked at by itself, too");
        assert_eq!(ring.ring().entries()[0].id.as_str(), "one");
        assert!(!withdrawn.has_changed().unwrap(), "no key was withdrawn");
        std::fs::remove_file(&path).unwrap();
        withdrawn.changed().await.unwrap();
        assert_eq!(ring.ring().entries().len(), 0, "a ring that is gone opens nothing");
    }
}
