//! Address of the broker, printable without the password.

use std::fmt;
use std::net::IpAddr;

use lapin::uri::{AMQPScheme, AMQPUri};

use crate::error::{Error, Result};

/// Default heartbeat in seconds. A lost peer is detected within about 20 seconds.
const HEARTBEAT_SECONDS: u16 = 10;

/// Maximum frame size in bytes: RabbitMQ's own default. A connection of lapin has buffers of 32 frames
/// for each direction, 8 MiB.
const FRAME_MAX: u32 = 128 << 10;

/// Address of a broker. Prints without user and password.
pub(super) struct Address(AMQPUri);

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let wrong = || Error::Address { address: without_password(url) };
        let (plain, allowed) = without_word(url);
        let mut uri: AMQPUri = plain.parse().map_err(|_| wrong())?;
        if let Some(host) = ipv6_host(url) {
            uri.authority.host = host.to_owned();
        }
        if uri.scheme == AMQPScheme::AMQP && !allowed && !is_here(&uri.authority.host) {
            return Err(Error::Plaintext { address: Self(uri).to_string() });
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
        uri.query.frame_max.get_or_insert(FRAME_MAX);
        Ok(Self(uri))
    }

    /// Returns the address with a maximum frame size, in bytes.
    pub(super) fn with_frame_max(&self, bytes: u32) -> Self {
        let mut uri = self.uri();
        uri.query.frame_max = Some(bytes);
        Self(uri)
    }

    pub(super) fn uri(&self) -> AMQPUri {
        self.0.clone()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.0.scheme {
            AMQPScheme::AMQP => "amqp",
            AMQPScheme::AMQPS => "amqps",
        };
        let (authority, vhost) = (&self.0.authority, self.0.vhost.replace('/', "%2f"));
        let colon = authority.host.contains(':');
        let (open, close) = if colon { ("[", "]") } else { ("", "") };
        write!(f, "{scheme}://{open}{}{close}:{}/{vhost}", authority.host, authority.port)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Query parameter that allows a connection to another machine without TLS.
const ALLOW_PLAINTEXT: &str = "allow_plaintext=true";

/// Returns the address without that parameter, and true if the address had it.
fn without_word(url: &str) -> (String, bool) {
    let Some((address, query)) = url.split_once('?') else { return (url.to_owned(), false) };
    let (words, others): (Vec<&str>, Vec<&str>) =
        query.split('&').partition(|word| *word == ALLOW_PLAINTEXT);
    let rest = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
    (format!("{address}{rest}"), !words.is_empty())
}

/// Returns true if the host is this machine.
fn is_here(host: &str) -> bool {
    let loopback = host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    loopback || host.eq_ignore_ascii_case("localhost")
}

/// Returns the host in brackets, which lapin's parser would silently replace by `localhost`.
fn ipv6_host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    host.strip_prefix('[')?.split_once(']').map(|(host, _)| host)
}

/// Removes everything that may be a login from a text that was meant as an address.
fn without_password(url: &str) -> String {
    let Some((login, rest)) = url.rsplit_once('@') else { return url.to_owned() };
    match login.split_once("://") {
        Some((scheme, _)) => format!("{scheme}://***@{rest}"),
        None => format!("***@{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn shows(url: &str, expected: &str) {
        assert_eq!(Address::parse(url).unwrap().to_string(), expected);
    }

    #[test]
    fn an_address_is_shown_without_its_login() {
        shows("amqp://me:secret@localhost/%2f", "amqp://localhost:5672/%2f");
        shows("amqps://me:secret@mq.example:99/jobs", "amqps://mq.example:99/jobs");
    }

    #[test]
    fn an_ipv6_host_is_kept() {
        shows("amqp://me:secret@[::1]:99/%2f", "amqp://[::1]:99/%2f");
        shows("amqps://[fe80::1]", "amqps://[fe80::1]:5671/%2f");
    }

    #[test]
    fn a_broken_address_is_refused_without_showing_the_password() {
        for broken in ["http://me:secret@host", "me:secret@host", "amqp://me:secret@host:port"] {
            let message = Address::parse(broken).unwrap_err().to_string();
            assert!(!message.contains("secret"), "{message}");
            assert!(message.contains("host"), "{message}");
        }
    }

    #[test]
    fn the_heartbeat_is_ten_seconds_unless_the_address_says_otherwise() {
        let heartbeat = |url: &str| Address::parse(url).unwrap().uri().query.heartbeat;
        assert_eq!(heartbeat("amqps://host"), Some(10));
        assert_eq!(heartbeat("amqps://host?heartbeat=2"), Some(2));
        assert_eq!(heartbeat("amqp://host?allow_plaintext=true&heartbeat=2"), Some(2));
    }

    #[test]
    fn l5_another_machine_is_reached_over_tls_or_by_an_explicit_word() {
        for here in ["localhost", "LOCALHOST", "127.0.0.1", "127.8.8.8:99", "[::1]"] {
            assert!(Address::parse(&format!("amqp://me:secret@{here}/%2f")).is_ok(), "{here}");
        }
        for there in ["rabbitmq", "10.0.0.7:5672", "[fe80::1]", "127.1", "localhost.example"] {
            let url = format!("amqp://me:secret@{there}/%2f");
            let error = Address::parse(&url).unwrap_err();
            assert!(matches!(error, Error::Plaintext { .. }), "{error:?}");
            let told = error.to_string();
            assert!(told.contains("amqps://") && told.contains(ALLOW_PLAINTEXT), "{told}");
            assert!(!told.contains("secret"), "{told}");
            assert!(Address::parse(&url.replace("amqp:", "amqps:")).is_ok());
            assert!(Address::parse(&format!("{url}?{ALLOW_PLAINTEXT}")).is_ok(), "{there}");
            assert!(Address::parse(&format!("{url}?allow_plaintext=false")).is_err());
        }
    }
}
