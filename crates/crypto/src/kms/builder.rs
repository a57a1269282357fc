//! Construction of a [`KmsProvider`].

use std::sync::Arc;

use nsbridge_aws::Credentials;
use nsbridge_protocol::KeyId;

use super::KmsProvider;
use super::endpoint::is_private;
use super::service::Aws;

/// Error of the construction of a [`KmsProvider`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KmsError {
    /// The endpoint has no TLS and is not on this machine.
    #[error(
        "AWS KMS at {url} would be reached without TLS, and data keys would cross the network as \
         they are: set an https:// address (AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_KMS or the profile \
         set this one)"
    )]
    NoTls {
        /// Address of the endpoint.
        url: String,
    },
}

/// Builder of a [`KmsProvider`].
#[derive(Clone, Debug)]
#[must_use]
pub struct KmsProviderBuilder {
    keys: Vec<KeyId>,
    region: Option<String>,
    endpoint_url: Option<String>,
    credentials: Option<Credentials>,
}

impl KmsProviderBuilder {
    pub(super) fn new(keys: Vec<KeyId>) -> Self {
        Self { keys, region: None, endpoint_url: None, credentials: None }
    }

    /// Sets the region of the KMS keys, in place of the one that AWS's own tools would use.
    pub fn region(self, region: impl Into<String>) -> Self {
        Self { region: Some(region.into()), ..self }
    }

    /// Sets the address of KMS, if it is not AWS's own: `https://`, or `http://` on this machine.
    pub fn endpoint_url(self, url: impl Into<String>) -> Self {
        Self { endpoint_url: Some(url.into()), ..self }
    }

    /// Sets an access key, in place of the credentials that AWS's own tools would find.
    pub fn credentials(self, credentials: Credentials) -> Self {
        Self { credentials: Some(credentials), ..self }
    }

    /// Creates the provider. KMS is not called before the first key is needed.
    ///
    /// # Errors
    ///
    /// Returns [`KmsError::NoTls`] if KMS would be reached without TLS, wherever the endpoint is
    /// set: here, in `AWS_ENDPOINT_URL`, in `AWS_ENDPOINT_URL_KMS` or in the profile.
    pub async fn build(self) -> Result<KmsProvider, KmsError> {
        let Self { keys, region, endpoint_url, credentials } = self;
        let (region, endpoint) = (region.as_deref(), endpoint_url.as_deref());
        let sdk = nsbridge_aws::sdk_config(region, endpoint, credentials.as_ref()).await;
        // The service refuses each call to such an address. Reported here, it costs no request.
        match nsbridge_aws::endpoint(&sdk, "KMS") {
            Some(url) if !is_private(&url) => Err(KmsError::NoTls { url }),
            _ => Ok(KmsProvider::of(Arc::new(Aws::new(&sdk)), keys)),
        }
    }
}
