//! Where the broker is, and how that is shown without the password.

use std::fmt;

use lapin::uri::{AMQPScheme, AMQPUri};

use crate::{Error, Result};

/// Without `?heartbeat=`: a lost peer is noticed within about 20 seconds.
const HEARTBEAT_SECONDS: u16 = 10;

/// A broker's address. Prints without the user and the password.
pub(super) struct Address(AMQPUri);

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let wrong = || Error::Address { address: without_password(url) };
        let mut uri: AMQPUri = url.parse().map_err(|_| wrong())?;
        if let Some(host) = ipv6_host(url) {
            uri.authority.host = host.to_owned();
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
        Ok(Self(uri))
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

/// The host in brackets, which lapin's parser would silently replace by `localhost`.
fn ipv6_host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    host.strip_prefix('[')?.split_once(']').map(|(host, _)| host)
}

/// A text that was meant as an address, with everything that may be a login cut out.
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
        shows("amqp://me:secret@mq.example/%2f", "amqp://mq.example:5672/%2f");
        shows("amqps://me:secret@mq.example:99/jobs", "amqps://mq.example:99/jobs");
    }

    #[test]
    fn an_ipv6_host_is_kept() {
        shows("amqp://me:secret@[::1]:99/%2f", "amqp://[::1]:99/%2f");
        shows("amqp://[fe80::1]", "amqp://[fe80::1]:5672/%2f");
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
        assert_eq!(heartbeat("amqp://host"), Some(10));
        assert_eq!(heartbeat("amqp://host?heartbeat=2"), Some(2));
    }
}
