//! Requests that web pages of other hosts make to a gateway on this machine.
//!
//! A gateway without keys must not serve them. A page can send a request to any address, and by DNS
//! rebinding it can read the response as well; the headers `Host` and `Origin`, which a browser sets,
//! tell such requests apart.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};

/// Returns true if a request names an address of this machine, and is not that of a page of another
/// host. A program that is no browser may leave out both headers.
pub(crate) fn is_local(headers: &HeaderMap, uri: &Uri) -> bool {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    // HTTP/2 has the host in the target of the request.
    let host = match uri.authority() {
        Some(authority) => is_this_machine(authority.host()),
        None => text(header::HOST).is_none_or(|host| {
            host.parse::<Authority>().is_ok_and(|host| is_this_machine(host.host()))
        }),
    };
    host && text(header::ORIGIN).is_none_or(is_allowed)
}

/// Returns true for the origin of a page of this machine or of a program that is no web page, such as
/// `tauri://localhost`. A page in a sandboxed frame has the origin `null`.
fn is_allowed(origin: &str) -> bool {
    match origin.split_once("://") {
        Some(("http" | "https", host)) => {
            host.parse::<Authority>().is_ok_and(|host| is_this_machine(host.host()))
        }
        Some(_) => true,
        None => false,
    }
}

fn is_this_machine(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    // RFC 6761: names below `localhost` are addresses of this machine too.
    host == "localhost" || host.ends_with(".localhost") || address.is_ok_and(|it| it.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue, Uri, header};

    use super::is_local;

    #[track_caller]
    fn check(host: Option<&str>, origin: Option<&str>, expected: bool) {
        let mut headers = HeaderMap::new();
        for (name, value) in [(header::HOST, host), (header::ORIGIN, origin)] {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_str(value).unwrap());
            }
        }
        assert_eq!(is_local(&headers, &Uri::from_static("/v1/models")), expected);
    }

    #[test]
    fn addresses_of_this_machine_are_local() {
        for host in ["127.0.0.1:8080", "127.8.8.8", "LOCALHOST", "app.localhost:80", "[::1]:8080"] {
            check(Some(host), None, true);
            check(Some(host), Some(&format!("http://{host}")), true);
        }
        check(None, None, true);
        check(Some("localhost"), Some("tauri://localhost"), true);
    }

    #[test]
    fn other_hosts_and_their_pages_are_not() {
        for host in [
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1:8080",
            "127.0.0.1.evil.example",
            "",
            "@",
        ] {
            check(Some(host), None, false);
            check(Some("localhost"), Some(&format!("https://{host}")), false);
        }
        check(Some("localhost"), Some("null"), false);
        check(Some("localhost"), Some("http://user@evil.example"), false);
        let rebound = Uri::from_static("http://evil.example/v1/models");
        assert!(!is_local(&HeaderMap::new(), &rebound));
    }
}
