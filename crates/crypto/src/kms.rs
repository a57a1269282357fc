//! Data keys from AWS KMS.
//!
//! A client has KMS make a data key and puts it, wrapped, into the header of each request that it
//! seals with it. A worker has KMS unwrap it. Both name the same context, which KMS binds to the
//! wrapped key and writes into its own log: the application, the model and the tenant. A worker
//! takes these from the header that it opens, so a key that was made for one tenant opens nothing
//! that claims to be another's.

mod cache;
mod endpoint;
mod service;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_types::SdkConfig;
use nsbridge_protocol::KeyId;
use sha2::{Digest, Sha256};

use crate::key::Provider;
use crate::{DataKey, Key, KeyError, KeyProvider, RequestFrame, Scope};
use cache::Cache;
use service::{Aws, Service};

/// How long a data key is used before KMS is asked again, on both ends. AWS recommends to cache;
/// this bounds how long a key that was disabled in KMS still works.
const KEPT_FOR: Duration = Duration::from_secs(5 * 60);

/// Requests that are sealed with one data key. Each has a salt of 256 bits, so this only bounds
/// what one key is worth.
const SEALINGS: u64 = 10_000;

/// Data keys that are held at once, of each kind.
const MOST: usize = 1024;

/// Seals with data keys that KMS makes, and opens with those that KMS unwraps.
///
/// # Contract
///
/// KMS is asked for nothing but the keys of the list: a request that names another one is denied
/// here. [`KeyError::Busy`] tells of everything that is no fault of the request: KMS throttles, is
/// away or broken, or this process has no valid credentials now.
#[derive(Debug)]
pub struct KmsProvider {
    /// The first one seals.
    keys: Vec<KeyId>,
    service: Arc<dyn Service>,
    sealing: Cache<Scope, DataKey>,
    opening: Cache<[u8; 32], Key>,
}

impl KmsProvider {
    /// A provider of these KMS keys: ARNs or aliases, as both ends call them. Clients seal with the
    /// first; workers open with any. An empty list opens nothing.
    pub fn new(config: &SdkConfig, keys: Vec<KeyId>) -> Self {
        Self::of(Arc::new(Aws::new(config)), keys)
    }

    fn of(service: Arc<dyn Service>, keys: Vec<KeyId>) -> Self {
        let sealing = Cache::new(MOST, KEPT_FOR, SEALINGS);
        Self { keys, service, sealing, opening: Cache::new(MOST, KEPT_FOR, u64::MAX) }
    }
}

#[async_trait]
impl KeyProvider for KmsProvider {
    async fn data_key(&self, scope: &Scope) -> Result<DataKey, KeyError> {
        let id = self.keys.first().ok_or(KeyError::OtherProvider)?;
        let made = async {
            let (key, wrapped) = self.service.generate(id, scope).await?;
            Ok(DataKey { id: id.clone(), key, provider: Provider::Kms, wrapped })
        };
        self.sealing.get(scope, made).await
    }

    async fn open_key(&self, frame: &RequestFrame<'_>) -> Result<Key, KeyError> {
        if frame.provider() != Provider::Kms {
            return Err(KeyError::OtherProvider);
        }
        let head = frame.head();
        let id = &head.key_id;
        if !self.keys.contains(id) {
            return Err(KeyError::Denied { id: id.clone(), why: "it is not on the list".into() });
        }
        let scope = Scope { model: head.model.clone(), tenant: head.tenant.clone() };
        let wrapped = frame.wrapped_key();
        let unwrapped = self.service.decrypt(id, wrapped, &scope);
        self.opening.get(&name(id, wrapped, &scope), unwrapped).await
    }

    /// The tenant is in the encryption context, on which the key's policy decides.
    fn proves_tenant(&self, frame: &RequestFrame<'_>) -> bool {
        frame.provider() == Provider::Kms
    }
}

/// What a wrapped key is remembered by: everything that KMS is asked with.
fn name(id: &KeyId, wrapped: &[u8], scope: &Scope) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [id.as_str().as_bytes(), wrapped, scope.model.as_str().as_bytes()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.update(scope.tenant.as_str());
    hash.finalize().into()
}

#[cfg(test)]
mod tests;
