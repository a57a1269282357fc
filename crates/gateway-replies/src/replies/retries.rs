//! Retries: recognized by a hash, they join the reply that they repeat.

use std::sync::Arc;

use nsbridge_gateway_access::Caller;

use super::{Entry, Replies, RequestContext};
use crate::failure::Result;

impl Replies {
    /// Returns the reply that a retry with this hash repeats.
    pub(super) async fn repeated(
        self: &Arc<Self>,
        retry_hash: &[u8; 32],
    ) -> Result<Option<Arc<Entry>>> {
        let own = self.table.lock().repeated(retry_hash);
        match own {
            Some(entry) => Ok(Some(entry)),
            None => self.repeated_elsewhere(retry_hash).await,
        }
    }

    /// Returns the hash by which a retry of the request is recognized, and the hash of its content.
    pub(super) fn hashes(
        &self,
        kind: &str,
        caller: &Caller,
        context: &RequestContext,
        body: &[u8],
    ) -> ([u8; 32], [u8; 32]) {
        let content = *blake3::keyed_hash(&self.hash_key, body).as_bytes();
        let mut retry = blake3::Hasher::new_keyed(&self.hash_key);
        let caller = caller.id.to_string();
        let parts: [&[u8]; 3] = [
            caller.as_bytes(),
            kind.as_bytes(),
            match &context.idempotency_key {
                Some(key) => key.as_bytes(),
                None => &content,
            },
        ];
        for part in parts {
            retry.update(&(part.len() as u64).to_be_bytes());
            retry.update(part);
        }
        (*retry.finalize().as_bytes(), content)
    }
}
