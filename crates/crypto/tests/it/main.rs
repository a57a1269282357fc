//! Integration tests of KMS over HTTP: with a fake server that gives prepared responses, and with
//! moto, which stores keys.

#![expect(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod answers;
mod moto;

use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_http_client::Builder;
use aws_types::SdkConfig;
use aws_types::region::Region;
use nsbridge_crypto::{DataKey, KmsProvider, RequestFrame, RequestHead, Scope};
use nsbridge_protocol::RequestId;

/// Alias of a KMS key, which the fake server does not check.
const ALIAS: &str = "alias/nsbridge";

fn config(url: &str) -> SdkConfig {
    let credentials = Credentials::new("test", "test", None, None, "a test");
    SdkConfig::builder()
        .behavior_version(aws_sdk_kms::config::BehaviorVersion::latest())
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .region(Region::new("eu-central-1"))
        .endpoint_url(url)
        .http_client(Builder::new().build_http())
        .build()
}

fn provider(url: &str, key: &str) -> KmsProvider {
    KmsProvider::new(&config(url), vec![key.parse().unwrap()])
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
