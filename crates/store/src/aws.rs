//! Client configuration for AWS services: credentials, region and TLS.

use aws_config::{BehaviorVersion, Region};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_types::SdkConfig;
use aws_types::service_config::ServiceConfigKey;

/// Loads the configuration that every client of an AWS service is made with.
///
/// Credentials, and the region where none is given, come from where AWS's own tools look: the
/// environment, the profile, the task's or the instance's role. `endpoint_url` is for services that
/// are not AWS's own.
pub async fn sdk_config(region: Option<&str>, endpoint_url: Option<&str>) -> SdkConfig {
    let mut config = aws_config::defaults(BehaviorVersion::latest()).http_client(http_client());
    if let Some(region) = region {
        config = config.region(Region::new(region.to_owned()));
    }
    if let Some(url) = endpoint_url {
        config = config.endpoint_url(url);
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

/// On ring, as every TLS connection of this process.
pub fn http_client() -> SharedHttpClient {
    Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https()
}
