//! Endpoint check: no data key may cross a network in plaintext.

use std::error::Error;
use std::net::IpAddr;

use aws_sdk_kms::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_kms::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_kms::error::BoxError;

/// Interceptor that refuses calls to an endpoint without TLS, unless it is on this machine.
///
/// It checks the address of each call just before the call is made. It therefore covers every
/// source of the address: this project's configuration, `AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_KMS`
/// and profiles.
#[derive(Debug)]
pub(super) struct Private;

/// Error of a refused endpoint.
#[derive(Debug, thiserror::Error)]
#[error(
    "its endpoint {0} has no TLS, and data keys would cross the network as they are: set an \
     https:// address (AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_KMS or the profile set this one)"
)]
pub(super) struct Exposed(String);

impl Intercept for Private {
    fn name(&self) -> &'static str {
        "nsbridge: KMS over TLS"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let uri = context.request().uri();
        if is_private(uri) { Ok(()) } else { Err(Exposed(origin(uri).to_owned()).into()) }
    }
}

/// Returns the endpoint refusal in an error's chain of causes, if there is one.
pub(super) fn exposed<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Exposed> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(exposed) = error.downcast_ref() {
            return Some(exposed);
        }
        cause = error.source();
    }
    None
}

/// Returns scheme, host and port.
fn origin(uri: &str) -> &str {
    let from = uri.find("://").map_or(0, |at| at + 3);
    let length = uri[from..].find(['/', '?', '#']).unwrap_or(uri.len() - from);
    &uri[..from + length]
}

pub(super) fn is_private(uri: &str) -> bool {
    let Some((scheme, authority)) = origin(uri).split_once("://") else { return false };
    if scheme.eq_ignore_ascii_case("https") {
        return true;
    }
    let host = match authority.strip_prefix('[') {
        Some(ipv6) => ipv6.split(']').next().unwrap_or_default(),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    };
    let loopback = host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    scheme.eq_ignore_ascii_case("http") && (loopback || host.eq_ignore_ascii_case("localhost"))
}

#[cfg(test)]
mod tests {
    use super::is_private;

    #[test]
    fn only_tls_and_this_machine_are_private() {
        for private in [
            "https://kms.eu-central-1.amazonaws.com/",
            "HTTPS://10.0.0.7",
            "http://localhost:5000/",
            "http://127.0.0.2:80/?x",
            "http://[::1]:5000/",
        ] {
            assert!(is_private(private), "{private}");
        }
        for exposed in [
            "http://10.0.0.7/",
            "http://kms.internal:5000/",
            "http://127.0.0.1@kms.internal/",
            "http://127.0.0.1.kms.internal/",
            "http://127.1/",
            "http://[fe80::1]/",
            "http://localhost@kms.internal:80/",
            "ftp://localhost/",
            "localhost",
        ] {
            assert!(!is_private(exposed), "{exposed}");
        }
    }
}
