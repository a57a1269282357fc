//! Address of the message broker.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::broker_urls;
use crate::config::ConfigError;

/// Mode bits that let users other than the owner access a file.
const OTHERS: u32 = 0o077;

/// Address of the broker.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct BrokerConfig {
    /// Broker URL: `amqp://user:password@host:5672/%2f`, or `amqps://` for TLS.
    pub url: Option<String>,
    /// URLs of the nodes of a cluster. A connection begins with a node by chance, and goes to the next
    /// one where that node cannot be reached.
    pub urls: Vec<String>,
    /// File that holds the URL, or those of the nodes in a line each, for passwords that must not be in
    /// the configuration.
    pub url_file: Option<PathBuf>,
    /// PEM file with the certificates of authorities that the broker's certificate may come from, beside
    /// those of the system.
    pub ca_file: Option<PathBuf>,
    /// PEM file with this client's certificate, for brokers that ask for one.
    pub cert_file: Option<PathBuf>,
    /// PEM file with the key of this client's certificate.
    pub key_file: Option<PathBuf>,
    /// SASL mechanism: `plain`, or `external` where the client's certificate is the login.
    pub auth_mechanism: Option<String>,
}

impl std::fmt::Debug for BrokerConfig {
    /// Leaves out the URL, which may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BrokerConfig").field("url_file", &self.url_file).finish_non_exhaustive()
    }
}

impl BrokerConfig {
    /// Creates the address of a broker from its URL.
    pub fn from_url(url: impl Into<String>) -> Self {
        Self { url: Some(url.into()), ..Self::default() }
    }

    /// Creates the address of a broker whose URL is in a file.
    pub fn from_url_file(path: impl Into<PathBuf>) -> Self {
        Self { url_file: Some(path.into()), ..Self::default() }
    }

    /// Checks that the section has exactly one of its fields.
    ///
    /// # Errors
    ///
    /// Returns an error that names them.
    pub fn check(&self) -> Result<(), ConfigError> {
        let given = [self.url.is_some(), !self.urls.is_empty(), self.url_file.is_some()];
        match given.into_iter().filter(|given| *given).count() {
            1 => Ok(()),
            _ => {
                Err(ConfigError::new("[broker] needs exactly one of `url`, `urls` and `url_file`"))
            }
        }
    }

    /// Returns the broker's URL, from the configuration or from the file it names; those of several nodes
    /// are separated by commas. The other fields are parameters of each.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no URL, or if the file cannot be read or is open to other
    /// users. The message is one sentence that names the file.
    pub fn read_url(&self) -> Result<String, ConfigError> {
        let bare = self.read_bare_url()?;
        let urls: Vec<String> = broker_urls(&bare).map(|url| self.with_parameters(url)).collect();
        Ok(urls.join(","))
    }

    fn with_parameters(&self, url: &str) -> String {
        let mut url = url.to_owned();
        let Self { ca_file, cert_file, key_file, auth_mechanism, .. } = self;
        let path =
            |file: &Option<PathBuf>| file.as_ref().map(|path| path.to_string_lossy().into_owned());
        for (name, value) in [
            ("cacertfile", path(ca_file)),
            ("certfile", path(cert_file)),
            ("keyfile", path(key_file)),
            ("auth_mechanism", auth_mechanism.clone()),
        ] {
            let Some(value) = value else { continue };
            url.push(if url.contains('?') { '&' } else { '?' });
            url.push_str(name);
            url.push('=');
            value.bytes().for_each(|byte| push_encoded(&mut url, byte));
        }
        url
    }

    fn read_bare_url(&self) -> Result<String, ConfigError> {
        let Some(path) = &self.url_file else {
            let missing = || ConfigError::new("[broker] has none of url, urls and url_file");
            let several = (!self.urls.is_empty()).then(|| self.urls.join(","));
            return self.url.clone().or(several).ok_or_else(missing);
        };
        let shown = path.display();
        let failed = |error| ConfigError::new(format!("[broker] url_file {shown}: {error}"));
        // The file is opened once, so that the checked file is the one that is read.
        let mut file = File::open(path).map_err(failed)?;
        let owner = file.metadata().map_err(failed)?.uid();
        let mode = FileMode::of(&file).map_err(failed)?;
        // A secret that an orchestrator mounts has another owner, and the orchestrator's mode.
        if mode.is_open() && owner == rustix::process::getuid().as_raw() {
            let what = "others can read it, and a password may stand in it";
            return Err(ConfigError::new(format!(
                "[broker] url_file {shown}: {what} ({mode}): chmod 600 it"
            )));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        // Editors of Windows write a byte order mark.
        Ok(text.trim_start_matches('\u{feff}').trim().to_owned())
    }

    /// Makes the paths of the files relative to a folder.
    pub fn resolve(&mut self, folder: &Path) {
        let Self { url_file, ca_file, cert_file, key_file, .. } = self;
        for path in [url_file, ca_file, cert_file, key_file].into_iter().flatten() {
            *path = folder.join(&*path);
        }
    }
}

/// Appends a byte of a parameter's value, percent-encoded if it is not plain.
fn push_encoded(url: &mut String, byte: u8) {
    if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
        url.push(char::from(byte));
    } else {
        url.push_str(&format!("%{byte:02X}"));
    }
}

/// Permission bits of a file that may hold a secret. Displayed as `mode 644`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileMode(u32);

impl FileMode {
    /// Reads the permission bits of an open file.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub(crate) fn of(file: &File) -> std::io::Result<Self> {
        Ok(Self(file.metadata()?.permissions().mode() & 0o777))
    }

    /// Returns true if users other than the owner can access the file.
    pub(crate) fn is_open(self) -> bool {
        self.0 & OTHERS != 0
    }
}

impl std::fmt::Display for FileMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mode {:o}", self.0)
    }
}

/// Returns the password in the URL of a broker's node, if there is one.
pub fn password_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let (login, _) = rest.split('/').next()?.rsplit_once('@')?;
    login.split_once(':').map(|(_, password)| password).filter(|password| !password.is_empty())
}

#[cfg(test)]
mod tests {
    //! Tests of the addresses of several nodes.

    use super::*;

    #[test]
    fn each_node_has_the_files_of_tls() {
        let config = BrokerConfig {
            urls: vec!["amqps://a/%2f".into(), "amqps://b?heartbeat=5".into()],
            ca_file: Some("/ca 1.pem".into()),
            ..BrokerConfig::default()
        };
        let expected =
            "amqps://a/%2f?cacertfile=/ca%201.pem,amqps://b?heartbeat=5&cacertfile=/ca%201.pem";
        assert_eq!(config.read_url().unwrap(), expected);
        assert!(config.check().is_ok());
        let both = BrokerConfig { url: Some("amqp://a".into()), ..config };
        assert!(both.check().unwrap_err().to_string().contains("exactly one of `url`, `urls`"));
    }
}
