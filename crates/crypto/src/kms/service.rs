//! Calls to KMS, and the classification of its errors.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_kms::Client;
use aws_sdk_kms::config::Builder;
use aws_sdk_kms::config::retry::RetryConfig;
use aws_sdk_kms::config::timeout::TimeoutConfig;
use aws_sdk_kms::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_kms::primitives::Blob;
use aws_sdk_kms::types::DataKeySpec;
use nsbridge_aws::SdkConfig;
use nsbridge_protocol::KeyId;
use zeroize::Zeroizing;

use super::endpoint::{self, Private};
use crate::key::Key;
use crate::provider::{KeyError, Scope};

/// Key service with the two calls that this crate needs.
#[async_trait]
pub(super) trait Service: Debug + Send + Sync {
    /// Generates a data key; returns it with its form wrapped under the KMS key.
    async fn generate(&self, id: &KeyId, scope: &Scope) -> Result<(Key, Vec<u8>), KeyError>;

    /// Unwraps a data key that was wrapped under this KMS key for this scope.
    async fn decrypt(
        &self,
        id: &KeyId,
        wrapped: &[u8],
        scope: &Scope,
    ) -> Result<UnwrappedKey, KeyError>;
}

/// Unwrapped data key.
#[derive(Debug)]
pub(super) struct UnwrappedKey {
    pub(super) key: Key,
    /// ARN of the KMS key, if the service names it.
    pub(super) arn: Option<KeyId>,
}

/// AWS KMS.
#[derive(Debug)]
pub(super) struct Aws(Client);

impl Aws {
    pub(super) fn new(config: &SdkConfig) -> Self {
        // A worker's slot waits for this call, and callers retry on their own with longer
        // back-offs.
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(Duration::from_secs(2))
            .operation_attempt_timeout(Duration::from_secs(4))
            .operation_timeout(Duration::from_secs(8))
            .build();
        let retries = RetryConfig::standard()
            .with_max_attempts(2)
            .with_initial_backoff(Duration::from_millis(200));
        let config = Builder::from(config).timeout_config(timeouts).retry_config(retries);
        let config = config.interceptor(Private);
        Self(Client::from_conf(config.build()))
    }
}

#[async_trait]
impl Service for Aws {
    async fn generate(&self, id: &KeyId, scope: &Scope) -> Result<(Key, Vec<u8>), KeyError> {
        let mut call = self.0.generate_data_key().key_id(id.as_str());
        call = call.key_spec(DataKeySpec::Aes256);
        for (name, value) in context(scope) {
            call = call.encryption_context(name, value);
        }
        let made = call.send().await.map_err(|error| judge(id, &error))?;
        let wrapped = made.ciphertext_blob.map(Blob::into_inner);
        let wrapped = wrapped.ok_or_else(|| denied(id, "it made a key and did not wrap it"))?;
        Ok((key(id, made.plaintext)?, wrapped))
    }

    async fn decrypt(
        &self,
        id: &KeyId,
        wrapped: &[u8],
        scope: &Scope,
    ) -> Result<UnwrappedKey, KeyError> {
        let mut call = self.0.decrypt().key_id(id.as_str()).ciphertext_blob(Blob::new(wrapped));
        for (name, value) in context(scope) {
            call = call.encryption_context(name, value);
        }
        let opened = call.send().await.map_err(|error| judge(id, &error))?;
        let arn = opened.key_id.and_then(|arn| arn.parse().ok());
        Ok(UnwrappedKey { key: key(id, opened.plaintext)?, arn })
    }
}

/// Returns the encryption context. It lacks the request id, because one data key serves many
/// requests.
fn context(scope: &Scope) -> [(&'static str, &str); 4] {
    [
        ("app", "nsbridge"),
        ("v", "1"),
        ("model", scope.model.as_str()),
        ("tenant", scope.tenant.as_str()),
    ]
}

fn key(id: &KeyId, plaintext: Option<Blob>) -> Result<Key, KeyError> {
    let bytes = Zeroizing::new(plaintext.map(Blob::into_inner).unwrap_or_default());
    let bytes = <[u8; 32]>::try_from(bytes.as_slice());
    bytes.map(Key::from_bytes).map_err(|_| denied(id, "it wraps no key of 32 bytes"))
}

fn denied(id: &KeyId, why: &str) -> KeyError {
    KeyError::Denied { id: id.clone(), why: why.to_owned() }
}

/// Error codes of temporary failures, or of this process's own credentials or clock. None of them
/// may fail a request.
const PASSING: [&str; 19] = [
    "DependencyTimeoutException",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InternalFailure",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "KeyUnavailableException",
    "KMSInternalException",
    "LimitExceededException",
    "MissingAuthenticationToken",
    "RequestExpired",
    "RequestLimitExceeded",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
    "SignatureDoesNotMatch",
    "Throttling",
    "ThrottlingException",
    "UnrecognizedClientException",
];

/// Classifies an error for the request whose key was needed.
///
/// The service's message text is left out, because its contents are unspecified.
fn judge<E>(id: &KeyId, error: &SdkError<E>) -> KeyError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let busy = |why: &str| KeyError::Busy { why: why.to_owned() };
    if let Some(exposed) = endpoint::exposed(error) {
        return busy(&exposed.to_string());
    }
    let SdkError::ServiceError(answer) = error else {
        return busy(match error {
            SdkError::TimeoutError(_) => "no answer in time",
            SdkError::DispatchFailure(failure) if failure.is_timeout() => "no answer in time",
            SdkError::DispatchFailure(failure) if failure.is_io() => "it cannot be reached",
            SdkError::ResponseError(_) => "its answer cannot be read",
            _ => "it cannot be asked: see to credentials, region and network",
        });
    };
    let status = answer.raw().status().as_u16();
    let Some(code) = answer.err().code() else {
        return busy(&format!("status {status}"));
    };
    match code {
        code if PASSING.contains(&code) || status >= 500 || status == 429 => busy(code),
        "DisabledException" => KeyError::Disabled { id: id.clone() },
        code => denied(id, code),
    }
}
