//! Key providers.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use nsbridge_protocol::{ErrorCode, KeyId, ModelName, Tenant};

use crate::error::Result;
use crate::key::{DataKey, Key, Provider};
use crate::request::RequestFrame;

/// Model and tenant that a key is used for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    /// Model that will read the request.
    pub model: ModelName,
    /// Tenant that the request belongs to.
    pub tenant: Tenant,
}

/// Source of keys for clients and workers.
///
/// ```
/// use nsbridge_crypto::{Key, KeyProvider, Keyring, Scope};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let keyring = Keyring::of_key("2026-11".parse()?, Key::generate()?);
/// let scope = Scope { model: "tale-7m".parse()?, tenant: "acme".parse()? };
/// assert_eq!(keyring.data_key(&scope).await?.id.as_str(), "2026-11");
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait KeyProvider: Debug + Send + Sync {
    /// Returns a key for sealing a request of this scope.
    ///
    /// # Errors
    ///
    /// Returns a [`KeyError`], whose variant decides whether a retry makes sense.
    async fn data_key(&self, scope: &Scope) -> Result<DataKey, KeyError>;

    /// Returns the key that the header names, if it may be used for the header's scope.
    ///
    /// The header is not authenticated yet. It is confirmed when the frame opens under the key.
    ///
    /// # Errors
    ///
    /// Returns a [`KeyError`], whose variant decides how the worker handles the request.
    async fn open_key(&self, frame: &RequestFrame<'_>) -> Result<Key, KeyError>;

    /// Returns true if only the request's tenant can seal with the key that the request names.
    ///
    /// For any other key, the tenant is a claim of the client.
    fn proves_tenant(&self, frame: &RequestFrame<'_>) -> bool {
        let _ = frame;
        false
    }
}

/// Provider that selects by the request's header, for workers whose clients migrate between two.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ByProvider {
    /// Provider of keys that both ends hold.
    pub keyring: Option<Arc<dyn KeyProvider>>,
    /// Provider of data keys from AWS KMS. It seals if both providers are set.
    pub kms: Option<Arc<dyn KeyProvider>>,
}

impl ByProvider {
    /// Creates a provider that selects between these two.
    pub fn new(keyring: Option<Arc<dyn KeyProvider>>, kms: Option<Arc<dyn KeyProvider>>) -> Self {
        Self { keyring, kms }
    }

    fn of(&self, frame: &RequestFrame<'_>) -> Option<&dyn KeyProvider> {
        let provider = match frame.provider() {
            Provider::Keyring => &self.keyring,
            Provider::Kms => &self.kms,
        };
        provider.as_deref()
    }
}

#[async_trait]
impl KeyProvider for ByProvider {
    async fn data_key(&self, scope: &Scope) -> Result<DataKey, KeyError> {
        let provider = self.kms.as_ref().or(self.keyring.as_ref());
        provider.ok_or(KeyError::OtherProvider)?.data_key(scope).await
    }

    async fn open_key(&self, frame: &RequestFrame<'_>) -> Result<Key, KeyError> {
        self.of(frame).ok_or(KeyError::OtherProvider)?.open_key(frame).await
    }

    fn proves_tenant(&self, frame: &RequestFrame<'_>) -> bool {
        self.of(frame).is_some_and(|provider| provider.proves_tenant(frame))
    }
}

/// Error of a key provider.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Unknown key id. The key may be on its way in a rotation.
    #[error("no key `{id}` is known here")]
    Unknown {
        /// Id of the key.
        id: KeyId,
    },
    /// Key that does not serve this model or tenant.
    #[error(
        "the key `{id}` does not serve this model and tenant: name the model and the tenant of the keyring"
    )]
    OutOfScope {
        /// Id of the key.
        id: KeyId,
    },
    /// Disabled key.
    #[error("the key `{id}` is disabled")]
    Disabled {
        /// Id of the key.
        id: KeyId,
    },
    /// Request whose key provider is not configured here.
    #[error("this process has no provider for the request's key")]
    OtherProvider,
    /// Permanent refusal by the key service.
    #[error("the key `{id}` was refused: {why}")]
    Denied {
        /// Id of the key.
        id: KeyId,
        /// Error code of the service.
        why: String,
    },
    /// Temporary failure of the key service, caused by no request.
    #[error("the key service cannot answer now: {why}")]
    Busy {
        /// Error code of the service, or the reason why it could not be called.
        why: String,
    },
}

impl KeyError {
    /// Returns the protocol's error code for this error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown { .. } => ErrorCode::UnknownKey,
            Self::OutOfScope { .. } => ErrorCode::KeyScope,
            Self::OtherProvider => ErrorCode::UnsupportedVersion,
            Self::Disabled { .. } | Self::Denied { .. } => ErrorCode::KeyDenied,
            Self::Busy { .. } => ErrorCode::Internal,
        }
    }
}
