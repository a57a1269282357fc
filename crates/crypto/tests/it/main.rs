//! Integration tests of KMS over HTTP: with a fake server that gives prepared responses, and with
//! moto, which stores keys.

#![expect(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod answers;
mod moto;

use nsbridge_crypto::{
    AwsCredentials, DataKey, KmsProvider, KmsProviderBuilder, RequestFrame, RequestHead, Scope,
};
use nsbridge_protocol::RequestId;

/// Alias of a KMS key, which the fake server does not check.
const ALIAS: &str = "alias/nsbridge";

const REGION: &str = "eu-central-1";

fn credentials() -> AwsCredentials {
    AwsCredentials::new("test", "test")
}

fn builder(url: &str, key: &str) -> KmsProviderBuilder {
    let builder = KmsProvider::builder([key.parse().unwrap()]);
    builder.region(REGION).endpoint_url(url).credentials(credentials())
}

async fn provider(url: &str, key: &str) -> KmsProvider {
    builder(url, key).build().await.unwrap()
}

fn scope(tenant: &str) -> Scope {
    Scope { model: "tale-7m".parse().unwrap(), tenant: tenant.parse().unwrap() }
}

/// Seals a request under a data key, with a header that claims this scope.
fn sealed(data: &DataKey, scope: &Scope) -> Vec<u8> {
    let head = RequestHead {
        id: RequestId::from_bytes([1; 16]),
        created_at_ms: 0,
        expires_at_ms: 1,
        model: scope.model.clone(),
        tenant: scope.tenant.clone(),
        key_id: data.id.clone(),
    };
    data.seal(&head, b"x").unwrap().frame
}

fn parse(frame: &[u8]) -> RequestFrame<'_> {
    RequestFrame::parse(frame).unwrap()
}
