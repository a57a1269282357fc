//! Where keys come from.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use nsbridge_protocol::{ErrorCode, KeyId, ModelName, Tenant};

use crate::{DataKey, Error, Key, Provider, RequestFrame, Result};

/// What a key is to be used for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The model that will read the request.
    pub model: ModelName,
    /// Who the request is for.
    pub tenant: Tenant,
}

/// Gives keys to clients and workers.
#[async_trait]
pub trait KeyProvider: Debug + Send + Sync {
    /// A key to seal a request of this scope with.
    ///
    /// # Errors
    ///
    /// A [`KeyError`]; its kind says whether to try again.
    async fn data_key(&self, scope: &Scope) -> Result<DataKey, KeyError>;

    /// The key that a request claims to be sealed with, if it may be used for what the request
    /// claims. Whether the claims are true shows when the frame opens under the key.
    ///
    /// # Errors
    ///
    /// A [`KeyError`]; its kind says what becomes of the request.
    async fn open_key(&self, frame: &RequestFrame<'_>) -> Result<Key, KeyError>;

    /// Returns true if the key that a request names is one that only the request's tenant can seal
    /// with. The tenant of a request under another key is a word that its client chose.
    fn proves_tenant(&self, frame: &RequestFrame<'_>) -> bool {
        let _ = frame;
        false
    }
}

/// The provider that a request names: for a worker whose clients move from one to the other.
#[derive(Clone, Debug, Default)]
pub struct ByProvider {
    /// Keys that both ends hold.
    pub keyring: Option<Arc<dyn KeyProvider>>,
    /// Data keys of AWS KMS; they seal where both are there.
    pub kms: Option<Arc<dyn KeyProvider>>,
}

impl ByProvider {
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

/// Why there is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// No key of this name is known; it may be on its way in a rotation.
    #[error("no key `{id}` is known here")]
    Unknown {
        /// The name.
        id: KeyId,
    },
    /// The key is not for this model or tenant.
    #[error("the key `{id}` does not serve this model and tenant")]
    OutOfScope {
        /// The key's name.
        id: KeyId,
    },
    /// The key was switched off.
    #[error("the key `{id}` is disabled")]
    Disabled {
        /// The key's name.
        id: KeyId,
    },
    /// The request's key provider is not set up here.
    #[error("this process has no provider for the request's key")]
    OtherProvider,
    /// The key service said no, for good.
    #[error("the key `{id}` was refused: {why}")]
    Denied {
        /// The key's name.
        id: KeyId,
        /// What the service calls it.
        why: String,
    },
    /// The key service cannot answer now. No request is at fault.
    #[error("the key service cannot answer now: {why}")]
    Busy {
        /// What the service calls it, or what came between.
        why: String,
    },
}

impl KeyError {
    /// What both ends call this.
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
