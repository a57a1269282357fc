//! Address of the broker, printable without the password, and the files of its TLS.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use percent_encoding::percent_decode_str;

use crate::error::{Error, Result};

/// Default heartbeat in seconds. A lost peer is detected within about 20 seconds.
const HEARTBEAT_SECONDS: u16 = 10;

/// Maximum frame size in bytes: RabbitMQ's own default. A connection of lapin has buffers of 32 frames
/// for each direction, 8 MiB.
const FRAME_MAX: u32 = 128 << 10;

/// Query parameter that allows a connection to another machine without TLS.
const ALLOW_PLAINTEXT: &str = "allow_plaintext";

/// Query parameters of an address. Those of RabbitMQ's own clients have their names.
const PARAMETERS: [&str; 10] = [
    ALLOW_PLAINTEXT,
    "auth_mechanism",
    "cacertfile",
    "certfile",
    "channel_max",
    "connection_timeout",
    "frame_max",
    "heartbeat",
    "keyfile",
    "verify",
];

/// Similarity from which a parameter is proposed instead of an unknown one.
const SIMILAR: f64 = 0.7;

/// Form of an address, for errors.
const FORM: &str = "use amqps://user:password@host/%2f, with the characters / @ : # ? % of user and \
                    password percent-encoded, such as %2F for /";

/// Address of a broker. Prints without user and password.
#[derive(Clone)]
pub(super) struct Address {
    uri: AMQPUri,
    tls: TlsFiles,
}

/// Files of a connection's TLS, in PEM. They are read for each connection, since certificates are renewed.
#[derive(Clone, Debug, Default)]
pub(super) struct TlsFiles {
    /// Certificates of authorities, beside those of the system.
    authorities: Option<PathBuf>,
    /// Certificate and key of this client.
    client: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Returns an error that names a file that cannot be read.
    pub(super) fn read(&self) -> io::Result<OwnedTLSConfig> {
        let read = |path: &Path| {
            let named =
                |error| io::Error::other(format!("cannot read {}: {error}", path.display()));
            fs::read(path).map_err(named)
        };
        let cert_chain = match &self.authorities {
            None => None,
            Some(path) => Some(String::from_utf8_lossy(&read(path)?).into_owned()),
        };
        let identity = match &self.client {
            None => None,
            Some((certificate, key)) => {
                Some(OwnedIdentity::PKCS8 { pem: read(certificate)?, key: read(key)? })
            }
        };
        Ok(OwnedTLSConfig { identity, cert_chain })
    }
}

impl Address {
    /// Parses the addresses of a cluster's nodes, separated by commas.
    pub(super) fn parse_all(urls: &str) -> Result<Vec<Self>> {
        nsbridge_base::broker_urls(urls).map(Self::parse).collect()
    }

    pub(super) fn parse(url: &str) -> Result<Self> {
        let wrong = |reason: String| Error::Address { address: without_password(url), reason };
        let (plain, query) = url.split_once('?').unwrap_or((url, ""));
        if query.contains(['@', '#']) || plain.contains('#') {
            // The rest of a password.
            return Err(wrong(FORM.to_owned()));
        }
        let query = Query::parse(query).map_err(wrong)?;
        if let Some(reason) = misread(plain) {
            return Err(wrong(reason));
        }
        let mut uri: AMQPUri =
            format!("{plain}{}", query.rest).parse().map_err(|_| wrong(FORM.to_owned()))?;
        if let Some(host) = ipv6_host(url) {
            uri.authority.host = host.to_owned();
        }
        let is_tls = uri.scheme == AMQPScheme::AMQPS;
        if !is_tls && !query.allows_plaintext && !is_here(&uri.authority.host) {
            let address = Self { uri, tls: TlsFiles::default() }.to_string();
            return Err(Error::Plaintext { address });
        }
        let tls = query.files(is_tls).map_err(wrong)?;
        tls.read().map_err(|error| wrong(error.to_string()))?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
        uri.query.frame_max.get_or_insert(FRAME_MAX);
        Ok(Self { uri, tls })
    }

    /// Returns the address with a maximum frame size, in bytes.
    pub(super) fn with_frame_max(&self, bytes: u32) -> Self {
        let mut address = self.clone();
        address.uri.query.frame_max = Some(bytes);
        address
    }

    pub(super) fn uri(&self) -> AMQPUri {
        self.uri.clone()
    }

    pub(super) fn tls(&self) -> TlsFiles {
        self.tls.clone()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.uri.scheme {
            AMQPScheme::AMQP => "amqp",
            AMQPScheme::AMQPS => "amqps",
        };
        let (authority, vhost) = (&self.uri.authority, self.uri.vhost.replace('/', "%2f"));
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

/// Parameters of an address.
#[derive(Debug, Default)]
struct Query {
    allows_plaintext: bool,
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    /// True if the client proves who it is by its certificate.
    is_external: bool,
    /// Parameters that lapin reads, with their question mark.
    rest: String,
}

impl Query {
    /// Reads the parameters.
    ///
    /// # Errors
    ///
    /// Returns a sentence about the first one that is unknown or has an unsupported value.
    fn parse(query: &str) -> std::result::Result<Self, String> {
        let mut all = Self::default();
        for word in query.split('&').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let text = percent_decode_str(value).decode_utf8_lossy();
            let file = || Some(PathBuf::from(&*text)).filter(|path| !path.as_os_str().is_empty());
            match name {
                ALLOW_PLAINTEXT => all.allows_plaintext = text == "true",
                "cacertfile" => all.authorities = file(),
                "certfile" => all.certificate = file(),
                "keyfile" => all.key = file(),
                "verify" if text == "verify_peer" => {}
                "verify" => {
                    return Err(
                        "`verify` must be verify_peer: certificates are always checked".to_owned()
                    );
                }
                "heartbeat" if text.parse() == Ok(0_u16) => {
                    return Err(
                        "`heartbeat` must be from 1 to 65535 seconds, since a lost broker is \
                                noticed by it"
                            .to_owned(),
                    );
                }
                name if PARAMETERS.contains(&name) => {
                    all.is_external |=
                        name == "auth_mechanism" && text.eq_ignore_ascii_case("external");
                    all.rest.push(if all.rest.is_empty() { '?' } else { '&' });
                    all.rest.push_str(word);
                }
                name => return Err(unknown(name)),
            }
        }
        Ok(all)
    }

    /// Returns the files of TLS.
    ///
    /// # Errors
    ///
    /// Returns a sentence about parameters that do not fit one another or the scheme.
    fn files(self, is_tls: bool) -> std::result::Result<TlsFiles, String> {
        let client = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err("`certfile` and `keyfile` must be given together".to_owned()),
        };
        if self.is_external && client.is_none() {
            return Err("`auth_mechanism=external` needs `certfile` and `keyfile`".to_owned());
        }
        let tls = TlsFiles { authorities: self.authorities, client };
        if !is_tls && (tls.authorities.is_some() || tls.client.is_some()) {
            return Err("certificates need amqps://".to_owned());
        }
        Ok(tls)
    }
}

/// Returns a sentence about a parameter that does not exist.
fn unknown(name: &str) -> String {
    let score = |known: &&str| strsim::jaro_winkler(name, known);
    let nearest = PARAMETERS.into_iter().max_by(|a, b| score(a).total_cmp(&score(b)));
    let hint = match nearest.filter(|near| score(near) > SIMILAR) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", PARAMETERS.join(", ")),
    };
    format!("it has no parameter `{name}`; {hint}")
}

/// Returns a sentence about an address that its parser would take for another one, or refuse without a
/// reason.
fn misread(plain: &str) -> Option<String> {
    let (_, rest) = plain.split_once("://")?;
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let (host, vhost) =
        host.split_once('/').map_or((host, None), |(host, vhost)| (host, Some(vhost)));
    if host.contains([',', ';']) {
        return Some(
            "it names several hosts: write an address for each node, separated by commas, such as \
             amqps://user:password@a/%2f,amqps://user:password@b/%2f"
                .to_owned(),
        );
    }
    (vhost == Some("")).then(|| {
        "its virtual host is empty: leave out the last /, or write /%2f for the virtual host `/`".to_owned()
    })
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
    fn the_nodes_of_a_cluster_have_an_address_each() {
        let shown = |urls: &str| {
            let nodes = Address::parse_all(urls)?;
            Ok::<_, Error>(nodes.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let nodes = shown("amqps://me:se,cret@a/%2f, amqps://me:secret@b/%2f").unwrap();
        assert_eq!(nodes, ["amqps://a:5671/%2f", "amqps://b:5671/%2f"]);
        let plain = shown("amqps://me:secret@a/%2f,amqp://me:secret@b/%2f").unwrap_err();
        assert!(matches!(&plain, Error::Plaintext { address } if address.contains("//b:")));
        let wrong = shown("amqps://me:secret@a/%2f,amqps://me:secret@b:port/%2f").unwrap_err();
        assert!(wrong.to_string().contains("***@b:port"), "{wrong}");
        assert!(!wrong.to_string().contains("secret"), "{wrong}");
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
            assert!(Address::parse(&format!("{url}?{ALLOW_PLAINTEXT}=true")).is_ok(), "{there}");
            assert!(Address::parse(&format!("{url}?allow_plaintext=false")).is_err());
        }
    }

    #[track_caller]
    fn refuses(url: &str, says: &str) {
        let message = Address::parse(url).unwrap_err().to_string();
        assert!(message.contains(says), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }

    #[test]
    fn parameters_are_known_or_refused_with_a_proposal() {
        refuses("amqps://host?allow_plaintex=true", "did you mean `allow_plaintext`?");
        refuses("amqps://host?cacert_file=a", "did you mean `cacertfile`?");
        refuses("amqps://host?zone=a", "there are allow_plaintext, auth_mechanism");
        refuses("amqps://host?heartbeat=0", "`heartbeat` must be from 1");
        refuses("amqps://host?verify=verify_none", "certificates are always checked");
        refuses("amqps://host?certfile=a", "must be given together");
        refuses("amqps://host?auth_mechanism=external", "needs `certfile` and `keyfile`");
        refuses("amqp://localhost?cacertfile=/dev/null", "certificates need amqps://");
        refuses("amqps://host?cacertfile=/absent/ca.pem", "cannot read /absent/ca.pem");
        assert!(Address::parse("amqps://host?verify=verify_peer&connection_timeout=100").is_ok());
    }

    #[test]
    fn what_other_clients_take_is_refused_with_what_to_write() {
        refuses("amqp://me:secret@localhost/", "or write /%2f");
        refuses("amqps://me:secret@a,b/%2f", "several hosts");
        for password in ["sec@ret", "sec ret"] {
            let read = Address::parse(&format!("amqps://me:{password}@host/%2f")).unwrap();
            assert_eq!(read.uri().authority.userinfo.password, password);
        }
        for login in ["me:sec/ret", "me:sec#ret", "me:sec?ret"] {
            let url = format!("amqps://{login}@host/%2f");
            let message = Address::parse(&url).unwrap_err().to_string();
            assert!(message.contains("percent-encoded"), "{message}");
            assert!(!message.contains("sec") && !message.contains("ret"), "{message}");
        }
        assert_eq!(
            Address::parse("amqps://me:a%2Fb+c%3D@host").unwrap().uri().authority.userinfo.password,
            "a/b+c="
        );
    }

    #[test]
    fn the_files_of_tls_are_read_anew_for_each_connection() {
        let folder = std::env::temp_dir().join(format!("nsbridge-address-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string().replace('/', "%2F")
        };
        let url = format!(
            "amqps://host?cacertfile={}&certfile={}&keyfile={}&auth_mechanism=external",
            file("ca 1.pem", "roots"),
            file("c.pem", "certificate"),
            file("k.pem", "key")
        );
        let address = Address::parse(&url.replace("ca 1", "ca%201")).unwrap();
        let read = || address.tls().read().unwrap();
        assert_eq!(read().cert_chain.as_deref(), Some("roots"));
        let client =
            |key: &[u8]| OwnedIdentity::PKCS8 { pem: b"certificate".into(), key: key.into() };
        assert_eq!(read().identity, Some(client(b"key")));
        file("k.pem", "new key");
        assert_eq!(read().identity, Some(client(b"new key")));
        assert!(address.uri().query.auth_mechanism.is_some());
        fs::remove_dir_all(&folder).unwrap();
        assert!(address.tls().read().unwrap_err().to_string().contains("ca 1.pem"));
    }
}
