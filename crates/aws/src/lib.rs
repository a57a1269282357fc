//! Configuration of clients for AWS services: credentials, region, endpoint and TLS.
//!
//! The crates that call a service load their configuration here, so that all of them look for
//! credentials in the same places and use one TLS library. Their own public APIs have no type of
//! the AWS SDK.

mod credentials;

use aws_config::{BehaviorVersion, Region};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_runtime_api::client::http::SharedHttpClient;
pub use aws_types::SdkConfig;
use aws_types::service_config::ServiceConfigKey;
pub use credentials::Credentials;

/// Loads the configuration that every client of an AWS service is made with.
///
/// Without `credentials`, they come from where AWS's own tools look: the environment, the profile,
/// the task's or the instance's role. So does the region where none is given. `endpoint_url` is for
/// services that are not AWS's own.
pub async fn sdk_config(
    region: Option<&str>,
    endpoint_url: Option<&str>,
    credentials: Option<&Credentials>,
) -> SdkConfig {
    let mut config = aws_config::defaults(BehaviorVersion::latest()).http_client(http_client());
    if let Some(region) = region {
        config = config.region(Region::new(region.to_owned()));
    }
    if let Some(url) = endpoint_url {
        config = config.endpoint_url(url);
    }
    if let Some(own) = credentials {
        config = config.credentials_provider(own.provider());
    }
    config.load().await
}

/// Returns the endpoint that a service's client takes from this configuration, if something sets one:
/// the caller, `AWS_ENDPOINT_URL_<SERVICE>`, `AWS_ENDPOINT_URL`, or the profile.
pub fn endpoint(config: &SdkConfig, service: &str) -> Option<String> {
    let general = || config.endpoint_url().map(str::to_owned);
    if config.get_origin("endpoint_url").is_client_config() {
        return general();
    }
    let key = ServiceConfigKey::builder().service_id(service).env("AWS_ENDPOINT_URL");
    let key = key.profile("endpoint_url").build().ok();
    let own = config.service_config().zip(key).and_then(|(own, key)| own.load_config(key));
    own.or_else(general)
}

/// Returns an HTTP client on ring, as every TLS connection of this process.
pub fn http_client() -> SharedHttpClient {
    Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https()
}
