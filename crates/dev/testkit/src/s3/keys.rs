//! Access keys that the store accepts, with their expiry.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3Result, s3_error};

/// Secret, session token and limits of one access key.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) secret: String,
    /// Session token that requests with temporary credentials must carry.
    pub(super) token: Option<String>,
    pub(super) until: Option<Instant>,
    /// Number of requests that the key is still accepted for; `None` is no limit.
    pub(super) uses: Option<u64>,
}

/// All keys, by access key.
#[derive(Debug, Default)]
pub(super) struct Keys(Mutex<BTreeMap<String, Key>>);

impl Keys {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, access: &str, key: Key) {
        self.lock().insert(access.to_owned(), key);
    }

    /// Expires a key now.
    pub(super) fn expire(&self, access: &str) {
        if let Some(key) = self.lock().get_mut(access) {
            key.until = Some(Instant::now());
        }
    }

    fn take(&self, access: &str) -> S3Result<SecretKey> {
        let mut keys = self.lock();
        let Some(key) = keys.get_mut(access) else {
            return Err(s3_error!(InvalidAccessKeyId, "The access key does not exist."));
        };
        let late = key.until.is_some_and(|until| until <= Instant::now());
        if late || key.uses == Some(0) {
            return Err(s3_error!(ExpiredToken, "The provided token has expired."));
        }
        key.uses = key.uses.map(|uses| uses - 1);
        Ok(SecretKey::from(key.secret.clone()))
    }

    fn token(&self, access: &str) -> Option<String> {
        self.lock().get(access).and_then(|key| key.token.clone())
    }
}

/// Adapter that gives the keys to s3s for authentication and access checks.
#[derive(Clone, Debug)]
pub(super) struct Gate(pub(super) std::sync::Arc<Keys>);

#[async_trait::async_trait]
impl S3Auth for Gate {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        self.0.take(access_key)
    }
}

#[async_trait::async_trait]
impl S3Access for Gate {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let Some(credentials) = context.credentials() else {
            return Err(s3_error!(AccessDenied, "The request is not signed."));
        };
        let expected = self.0.token(&credentials.access_key);
        let header = context.headers().get("x-amz-security-token");
        let given = header.and_then(|token| token.to_str().ok());
        if given != expected.as_deref() {
            return Err(s3_error!(InvalidToken, "The provided token is malformed or another's."));
        }
        Ok(())
    }
}
