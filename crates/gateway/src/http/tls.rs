//! TLS of the gateway's listener: certificates from files, reloaded when they change.
//!
//! The provider of the cryptography is ring. TLS 1.2 and 1.3 are spoken, and HTTP/2 and HTTP/1.1
//! are offered by ALPN, so the HTTP server must speak both.

mod listener;

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nsbridge_base::{FileStamp, Reload};
use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

pub(crate) use listener::TlsListener;

use nsbridge_base::private_file::{PrivateFile, PrivateFileError};

const KEY: PrivateFile = PrivateFile { what: "TLS key", most: 64 << 10, of_root: true };
const MOST_CHAIN_BYTES: u64 = 1 << 20;

/// Error of a certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Key file that cannot be read or that others can access.
    #[error(transparent)]
    Key(#[from] PrivateFileError),
    /// Key file without a key.
    #[error("the TLS key {} holds no private key in PEM: name the file with the key", path.display())]
    NoKey {
        /// Path of the key file.
        path: PathBuf,
    },
    /// Certificate file that cannot be read.
    #[error("cannot read the TLS certificate {}", path.display())]
    Certificate {
        /// Path of the certificate file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Certificate file without a certificate, or with a broken one.
    #[error("the TLS certificate {} is not a chain in PEM: name the file with it", path.display())]
    NoCertificate {
        /// Path of the certificate file.
        path: PathBuf,
    },
    /// Certificate and key that do not fit together, or of a kind that is not supported.
    #[error(
        "the TLS certificate {} cannot be used with the key {}: replace both files",
        certificate.display(), key.display()
    )]
    Pair {
        /// Path of the certificate file.
        certificate: PathBuf,
        /// Path of the key file.
        key: PathBuf,
        /// Error of the TLS library.
        source: rustls::Error,
    },
    /// TLS library that supports no version of the protocol.
    #[error("the TLS library cannot be set up")]
    Setup {
        /// Error of the TLS library.
        source: rustls::Error,
    },
}

/// Certificate chain and key in two PEM files, reloaded when one of them changes.
#[derive(Debug)]
pub(crate) struct Certificates {
    certificate: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    resolver: Arc<Resolver>,
    seen: Mutex<Stamps>,
}

type Stamps = [Option<FileStamp>; 2];

impl Certificates {
    /// Loads a certificate chain, the server's certificate first, and its key.
    ///
    /// The key file must belong to this process's user and be accessible to no other; a key file of
    /// root may be readable by a group.
    ///
    /// # Errors
    ///
    /// Returns a [`TlsError`] if a file cannot be read, if others can access the key, or if
    /// certificate and key do not fit together.
    pub(crate) fn open(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        // Taken before the files are read, so that a version that arrives during the read is
        // noticed later.
        let seen = Mutex::new([FileStamp::of(certificate), FileStamp::of(key)]);
        let pair = Arc::new(load(certificate, key, &provider)?);
        let resolver = Arc::new(Resolver { pair: RwLock::new(pair) });
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        Ok(Self { certificate, key, provider, resolver, seen })
    }

    /// Returns the configuration of a TLS server that always uses the current certificate.
    ///
    /// # Errors
    ///
    /// Returns [`TlsError::Setup`] if the TLS library supports no version of the protocol.
    pub(crate) fn server_config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|source| TlsError::Setup { source })?
            .with_no_client_auth()
            .with_cert_resolver(self.resolver.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Reloads certificate and key if one of the files has changed since the last look. Connections
    /// that are established go on.
    ///
    /// It reads the file system, so call it on a thread that may block.
    ///
    /// # Errors
    ///
    /// Returns the error of changed files that cannot be used, once per change. The old certificate
    /// stays in use. Between the replacement of one file and of the other, the two do not fit: that
    /// error is gone with the next change.
    pub(crate) fn reload_if_changed(&self) -> Result<Reload, TlsError> {
        let mut seen = self.seen.lock();
        let now = [FileStamp::of(&self.certificate), FileStamp::of(&self.key)];
        if *seen == now {
            return Ok(Reload::Unchanged);
        }
        *seen = now;
        let pair = Arc::new(load(&self.certificate, &self.key, &self.provider)?);
        *self.resolver.pair.write() = pair;
        Ok(Reload::Taken)
    }
}

#[derive(Debug)]
struct Resolver {
    pair: RwLock<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.pair.read().clone())
    }
}

fn load(
    certificate: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let chain = read_chain(certificate)?;
    let content = KEY.read(key)?;
    // The error is dropped: it may quote a line of the key.
    let der = PrivateKeyDer::from_pem_slice(&content)
        .map_err(|_| TlsError::NoKey { path: key.to_owned() })?;
    CertifiedKey::from_der(chain, der, provider).map_err(|source| TlsError::Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        source,
    })
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let io = |source| TlsError::Certificate { path: path.to_owned(), source };
    let mut content = Vec::new();
    let file = fs::File::open(path).map_err(io)?;
    file.take(MOST_CHAIN_BYTES).read_to_end(&mut content).map_err(io)?;
    // The error is dropped: a path that was mixed up may lead to a key.
    match CertificateDer::pem_slice_iter(&content).collect::<Result<Vec<_>, _>>() {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        _ => Err(TlsError::NoCertificate { path: path.to_owned() }),
    }
}

#[cfg(test)]
mod tests;
