//! Requests that web pages of other hosts make to a gateway on this machine.
//!
//! A gateway without keys must not serve them. A page can send a request to any address, and by DNS
//! rebinding it can read the response as well; the headers `Host` and `Origin`, which a browser sets,
//! tell such requests apart.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};

/// Returns true if a request names an address of this machine, and is not that of a page of another
/// host that is not listed. A program that is no browser may leave out both headers.
pub(crate) fn is_local(headers: &HeaderMap, uri: &Uri, allow_origins: &[String]) -> bool {
    // Of several headers of one name, each must be allowed.
    let all = |name, is_allowed: &dyn Fn(&str) -> bool| {
        let mut values = headers.get_all(name).iter();
        values.all(|value| value.to_str().is_ok_and(is_allowed))
    };
    let is_allowed = |origin: &str| is_listed(origin, allow_origins) || is_allowed(origin);
    // HTTP/2 has the host in the target of the request.
    let target = uri.authority().is_none_or(|authority| is_this_machine(authority.host()));
    target && all(header::HOST, &is_local_host) && all(header::ORIGIN, &is_allowed)
}

/// Returns true if an origin is one of those in the configuration.
pub(super) fn is_listed(origin: &str, allow_origins: &[String]) -> bool {
    allow_origins.iter().any(|listed| listed == "*" || listed.eq_ignore_ascii_case(origin))
}

fn is_local_host(host: &str) -> bool {
    host.parse::<Authority>().is_ok_and(|host| is_this_machine(host.host()))
}

/// Schemes of documents that a browser shows and that are no programs of this machine's user, such as
/// a file that was downloaded.
const DOCUMENTS: [&str; 10] =
    ["about", "blob", "content", "data", "file", "filesystem", "ftp", "view-source", "ws", "wss"];

/// Returns true for the origin of a page of this machine or of a program that is no web page, such as
/// `tauri://localhost`. A page in a sandboxed frame has the origin `null`.
pub(super) fn is_allowed(origin: &str) -> bool {
    let Some((scheme, host)) = origin.split_once("://") else { return false };
    match scheme.to_ascii_lowercase().as_str() {
        "http" | "https" => is_local_host(host),
        scheme => !DOCUMENTS.contains(&scheme),
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
        assert_eq!(is_local(&headers, &Uri::from_static("/v1/models"), &[]), expected);
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
        assert!(!is_local(&HeaderMap::new(), &rebound, &[]));
        for document in ["file://", "FILE://", "content://x", "blob://localhost", "data://"] {
            check(Some("localhost"), Some(document), false);
        }
    }

    #[test]
    fn pages_of_listed_origins_may_call_an_open_gateway_of_this_machine() {
        let listed = ["https://app.example".to_owned()];
        let target = Uri::from_static("/v1/models");
        for (host, origin, expected) in [
            ("localhost", "https://app.example", true),
            ("localhost", "https://other.example", false),
            ("app.example", "https://app.example", false),
        ] {
            let value = HeaderValue::from_static;
            let headers = HeaderMap::from_iter([
                (header::HOST, value(host)),
                (header::ORIGIN, value(origin)),
            ]);
            assert_eq!(is_local(&headers, &target, &listed), expected, "{host} {origin}");
            assert!(is_local(&headers, &target, &["*".to_owned()]) == (host == "localhost"));
        }
    }

    #[test]
    fn l4_each_of_several_headers_must_be_allowed() {
        let target = Uri::from_static("/v1/models");
        for name in [header::HOST, header::ORIGIN] {
            for (first, second) in [(true, false), (false, true), (true, true)] {
                let mut headers = HeaderMap::new();
                for local in [first, second] {
                    let host = if local { "localhost" } else { "evil.example" };
                    let scheme = if name == header::ORIGIN { "http://" } else { "" };
                    let value = HeaderValue::from_str(&format!("{scheme}{host}")).unwrap();
                    headers.append(&name, value);
                }
                assert_eq!(is_local(&headers, &target, &[]), first && second, "{name}");
            }
        }
    }
}
