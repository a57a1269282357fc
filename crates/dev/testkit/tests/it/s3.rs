//! Tests of the object store through AWS's client.

mod conformance;
mod credentials;
mod faults;
mod others;

use aws_credential_types::Credentials;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::{BehaviorVersion, Config, Region};
use nsbridge_testkit::s3::S3Server;

/// Returns a client without retries.
fn client(endpoint: &str, credentials: Credentials) -> Client {
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .endpoint_url(endpoint)
        .region(Region::from_static("us-east-1"))
        .force_path_style(true)
        .retry_config(RetryConfig::disabled())
        .credentials_provider(credentials);
    Client::from_conf(config.build())
}

fn client_of(server: &S3Server) -> Client {
    let (access, secret) = (server.access_key(), server.secret_key());
    client(&server.endpoint(), Credentials::new(access, secret, None, None, "test"))
}

/// Returns bytes of which no two ranges are equal.
fn pattern(length: usize) -> Vec<u8> {
    let word = |index: u64| index.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let mut bytes: Vec<u8> = (0..length as u64 / 8 + 1).flat_map(word).collect();
    bytes.truncate(length);
    bytes
}
