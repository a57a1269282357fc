//! Addresses of metrics pages, of the management API and of the broker.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::PathAndQuery;
use nsbridge_base::broker_urls;
use percent_encoding::percent_decode_str;

/// Login of RabbitMQ where the URL has none.
const DEFAULT_LOGIN: &str = "guest";

/// Parses the address of a metrics page. The scheme may be absent, and so may the path `/metrics`.
///
/// # Errors
///
/// Returns a sentence that says what is wrong with the address.
pub fn page(text: &str) -> Result<Uri, String> {
    let uri = http(text)?;
    if uri.path() == "/" { at(&uri, "/metrics") } else { Ok(uri) }
}

/// Parses the address of a management API.
///
/// # Errors
///
/// Returns a sentence that says what is wrong with the address.
pub fn management(text: &str) -> Result<Uri, String> {
    http(text)
}

fn http(text: &str) -> Result<Uri, String> {
    let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let uri: Uri = whole.parse().map_err(|error| format!("{error}"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("an address begins with http:// or https://".to_owned());
    }
    let authority = uri.authority().ok_or("an address has a host")?;
    if authority.as_str().contains('@') {
        // All users of this machine can read the arguments of a process.
        return Err("an address has no user and no password; the management API is asked as the \
                    user of --broker"
            .to_owned());
    }
    if authority.host().is_empty() {
        return Err("an address has a host".to_owned());
    }
    Ok(uri)
}

/// Returns the address of another page of a server.
pub fn at(uri: &Uri, path: &str) -> Result<Uri, String> {
    let mut parts = uri.clone().into_parts();
    let path = path.parse::<PathAndQuery>().map_err(|error| format!("{error}"))?;
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).map_err(|error| format!("{error}"))
}

/// Returns the host and the port of a page, as a short name of its process.
pub fn host(uri: &Uri) -> String {
    uri.authority().map_or_else(String::new, |authority| authority.as_str().to_owned())
}

/// Returns the URLs of a broker's nodes without users, passwords and parameters.
pub fn without_login(urls: &str) -> String {
    let of_node = |url: &str| {
        let url = url.split('?').next().unwrap_or_default();
        match (url.split_once("://"), url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
            _ => url.to_owned(),
        }
    };
    broker_urls(urls).map(of_node).collect::<Vec<_>>().join(",")
}

/// Returns the URL whose login and virtual host are those of the broker: all nodes of a cluster have the
/// same ones.
fn first(urls: &str) -> &str {
    broker_urls(urls).next().unwrap_or_default()
}

/// Returns the header with the login of a broker's URLs, for its management API.
pub fn authorization(urls: &str) -> Option<HeaderValue> {
    let authority = authority(first(urls))?;
    let login = authority.rsplit_once('@').map_or("", |(login, _)| login);
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let or_default =
        |part: &str| if login.is_empty() { DEFAULT_LOGIN.to_owned() } else { decoded(part) };
    let login = format!("{}:{}", or_default(user), or_default(password));
    let mut header: HeaderValue =
        format!("Basic {}", BASE64_STANDARD.encode(login)).parse().ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// Returns the virtual host of a broker's URLs, encoded as it is there.
pub fn virtual_host(urls: &str) -> &str {
    let url = first(urls);
    let place = url.split_once("://").map_or(url, |(_, place)| place);
    let place = place.split('?').next().unwrap_or_default();
    let path = place.split_once('/').map_or("", |(_, path)| path);
    if path.is_empty() { "%2f" } else { path }
}

/// Returns a parameter of the first of a broker's URLs.
pub fn parameter(urls: &str, name: &str) -> Option<String> {
    let (_, parameters) = first(urls).split_once('?')?;
    let mut pairs = parameters.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(known, _)| *known == name).map(|(_, value)| decoded(value))
}

/// Returns the host of the first of a broker's URLs.
pub fn host_of_broker(urls: &str) -> Option<&str> {
    let place = authority(first(urls))?;
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    let host = match place.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => place,
    };
    Some(host).filter(|host| !host.is_empty())
}

fn authority(url: &str) -> Option<&str> {
    let (_, place) = url.split_once("://")?;
    place.split(['/', '?']).next()
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::{
        authorization, host, host_of_broker, management, page, parameter, virtual_host,
        without_login,
    };

    #[test]
    fn the_scheme_and_the_path_of_a_page_may_be_absent() {
        for (text, expected) in [
            ("worker:9464", "http://worker:9464/metrics"),
            ("http://worker:9464", "http://worker:9464/metrics"),
            ("https://worker/", "https://worker/metrics"),
            ("http://[::1]:9464/a/metrics?b=c", "http://[::1]:9464/a/metrics?b=c"),
        ] {
            assert_eq!(page(text).unwrap().to_string(), expected);
        }
        assert_eq!(host(&page("http://[::1]:9464").unwrap()), "[::1]:9464");
        assert_eq!(management("http://mq:15672").unwrap().path(), "/");
    }

    #[test]
    fn an_address_without_a_host_or_with_a_password_is_refused() {
        for (text, expected) in [
            ("ftp://worker", "http://"),
            ("http://me:secret@mq:15672", "no user and no password"),
            ("", ""),
            ("http://", ""),
            ("a b", ""),
        ] {
            let error = management(text).unwrap_err();
            assert!(error.contains(expected) && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn the_parts_of_a_brokers_url_are_found() {
        let said = |url| {
            let header = authorization(url).unwrap();
            assert!(header.is_sensitive());
            (header.to_str().unwrap().to_owned(), virtual_host(url).to_owned(), without_login(url))
        };
        let parts = |login: &str, host: &str, url: &str| {
            (format!("Basic {login}"), host.to_owned(), url.to_owned())
        };
        let guest = "Z3Vlc3Q6Z3Vlc3Q=";
        assert_eq!(said("amqp://localhost"), parts(guest, "%2f", "amqp://localhost"));
        // me:s@cr:t
        assert_eq!(
            said("amqps://me:s%40cr:t@mq:5671/jobs?heartbeat=5"),
            parts("bWU6c0Bjcjp0", "jobs", "amqps://mq:5671/jobs")
        );
        assert_eq!(said("amqp://mq/?a=b"), parts(guest, "%2f", "amqp://mq/"));
        assert_eq!(said("amqp://me@mq/%2f"), parts("bWU6", "%2f", "amqp://mq/%2f"));
        assert_eq!(authorization("localhost"), None);
        let file = parameter("amqps://mq/?a=b&cacertfile=/ca%201.pem,amqps://b", "cacertfile");
        assert_eq!((file.as_deref(), parameter("amqps://mq", "a")), (Some("/ca 1.pem"), None));
        assert_eq!(host_of_broker("amqps://me:s@mq:5671/%2f"), Some("mq"));
        assert_eq!(host_of_broker("amqps:///"), None);
        assert_eq!(
            said("amqps://me:s%40cr:t@a/jobs?heartbeat=5,amqps://me:s%40cr:t@b/jobs"),
            parts("bWU6c0Bjcjp0", "jobs", "amqps://a/jobs,amqps://b/jobs")
        );
    }
}
