//! Tests of TLS with real sockets: handshakes, reloads, slow clients, and files that are refused.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use axum::serve::Listener;
use nsbridge_base::Reload;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Certificates, TlsListener};

struct Stage {
    _folder: TempDir,
    certificate: PathBuf,
    key: PathBuf,
}

impl Stage {
    /// Creates files with a self-signed certificate, which is returned.
    fn new() -> (Self, CertificateDer<'static>) {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
        let stage = Self { _folder: folder, certificate, key };
        let der = stage.replace();
        (stage, der)
    }

    fn replace(&self) -> CertificateDer<'static> {
        let (certificate, key, der) = self_signed();
        write(&self.certificate, &certificate);
        write(&self.key, &key);
        der
    }

    fn open(&self) -> Certificates {
        Certificates::open(&self.certificate, &self.key).unwrap()
    }

    #[track_caller]
    fn check_refused(&self, says: &str) {
        let error = Certificates::open(&self.certificate, &self.key).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

fn self_signed() -> (String, String, CertificateDer<'static>) {
    let names = vec!["localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem(), made.cert.der().clone())
}

fn write(path: &Path, content: &str) {
    let beside = path.with_extension("beside");
    fs::write(&beside, content).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(beside, path).unwrap();
}

/// Accepts connections and echoes what each client sends.
async fn serve(
    certificates: &Certificates,
    timeout: Duration,
    most: usize,
) -> (SocketAddr, JoinHandle<()>) {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = certificates.server_config().unwrap();
    let mut listener = TlsListener::with_limits(tcp, config, timeout, most);
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await;
            let (mut read, mut write) = tokio::io::split(stream);
            tokio::spawn(async move { tokio::io::copy(&mut read, &mut write).await });
        }
    });
    (address, server)
}

async fn connect(
    address: SocketAddr,
    trusted: &CertificateDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let tcp = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

async fn echo(stream: &mut TlsStream<TcpStream>) -> String {
    stream.write_all(b"bear").await.unwrap();
    stream.flush().await.unwrap();
    let mut read = [0; 4];
    stream.read_exact(&mut read).await.unwrap();
    String::from_utf8(read.to_vec()).unwrap()
}

const LONG_TIMEOUT: Duration = Duration::from_secs(600);
const SHORT_TIMEOUT: Duration = Duration::from_millis(100);
const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

#[tokio::test]
async fn a_client_that_trusts_the_certificate_speaks_through_tls() {
    let (stage, der) = Stage::new();
    let (address, _server) = serve(&stage.open(), LONG_TIMEOUT, 8).await;
    let mut stream = connect(address, &der, BOTH, &[]).await.unwrap();
    assert_eq!(echo(&mut stream).await, "bear");
    assert_eq!(stream.get_ref().1.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    let mut older = connect(address, &der, &[&TLS12], &[]).await.unwrap();
    assert_eq!(echo(&mut older).await, "bear");
    let (_, _, stranger) = self_signed();
    assert!(connect(address, &stranger, BOTH, &[]).await.is_err());
}

#[tokio::test]
async fn http_2_is_preferred_and_http_1_is_offered() {
    let (stage, der) = Stage::new();
    let (address, _server) = serve(&stage.open(), LONG_TIMEOUT, 8).await;
    for (offered, chosen) in
        [(&["http/1.1", "h2"][..], Some("h2")), (&["http/1.1"], Some("http/1.1")), (&[], None)]
    {
        let stream = connect(address, &der, BOTH, offered).await.unwrap();
        let protocol = stream.get_ref().1.alpn_protocol();
        assert_eq!(protocol, chosen.map(str::as_bytes), "{offered:?}");
    }
    assert!(connect(address, &der, BOTH, &["imap"]).await.is_err());
}

#[tokio::test]
async fn a_new_pair_is_used_for_new_connections_only() {
    let (stage, old) = Stage::new();
    let certificates = stage.open();
    let (address, _server) = serve(&certificates, LONG_TIMEOUT, 8).await;
    let mut before = connect(address, &old, BOTH, &[]).await.unwrap();
    let new = stage.replace();
    assert_eq!(certificates.reload_if_changed().unwrap(), Reload::Taken);
    assert_eq!(certificates.reload_if_changed().unwrap(), Reload::Unchanged);
    let mut after = connect(address, &new, BOTH, &[]).await.unwrap();
    assert_eq!((echo(&mut before).await, echo(&mut after).await), ("bear".into(), "bear".into()));
    assert!(connect(address, &old, BOTH, &[]).await.is_err());
}

#[tokio::test]
async fn a_broken_pair_leaves_the_old_one_and_is_told_once() {
    let (stage, old) = Stage::new();
    let certificates = stage.open();
    let (address, _server) = serve(&certificates, LONG_TIMEOUT, 8).await;
    let (certificate, key, new) = self_signed();
    write(&stage.certificate, &certificate);
    let error = certificates.reload_if_changed().unwrap_err().to_string();
    assert!(error.contains("chain.pem cannot be used with the key"), "{error}");
    assert_eq!(certificates.reload_if_changed().unwrap(), Reload::Unchanged);
    assert!(connect(address, &old, BOTH, &[]).await.is_ok());
    write(&stage.key, &key);
    assert_eq!(certificates.reload_if_changed().unwrap(), Reload::Taken);
    assert!(connect(address, &new, BOTH, &[]).await.is_ok());
}

#[tokio::test]
async fn a_slow_client_holds_up_no_other() {
    let (stage, der) = Stage::new();
    let (address, _server) = serve(&stage.open(), LONG_TIMEOUT, 8).await;
    let _silent = TcpStream::connect(address).await.unwrap();
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(&[0x16]).await.unwrap();
    let mut stream = connect(address, &der, BOTH, &[]).await.unwrap();
    assert_eq!(echo(&mut stream).await, "bear");
}

/// Begins a handshake at a server, which has read its first byte when this returns.
async fn begun(stage: &Stage, der: &CertificateDer<'static>, address: SocketAddr) -> TcpStream {
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(&[0x16]).await.unwrap();
    // The tasks of the server are run many times meanwhile.
    let (free, _other) = serve(&stage.open(), LONG_TIMEOUT, 1).await;
    for _ in 0..20 {
        connect(free, der, BOTH, &[]).await.unwrap();
    }
    slow
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_is_ended_and_makes_room() {
    let (stage, der) = Stage::new();
    // Long enough for the handshake of the second client on a busy machine.
    let (address, _server) = serve(&stage.open(), 10 * SHORT_TIMEOUT, 1).await;
    let mut slow = begun(&stage, &der, address).await;
    let mut stream = connect(address, &der, BOTH, &[]).await.unwrap();
    assert_eq!(echo(&mut stream).await, "bear");
    // The connection was closed before the next one was accepted.
    assert!(!matches!(slow.read(&mut [0; 8]).await, Ok(1..)));
}

#[tokio::test]
async fn a_client_beyond_the_maximum_of_handshakes_waits() {
    let (stage, der) = Stage::new();
    let (address, _server) = serve(&stage.open(), LONG_TIMEOUT, 1).await;
    let slow = begun(&stage, &der, address).await;
    let mut waiting = Box::pin(connect(address, &der, BOTH, &[]));
    // Many handshakes with a server that has room end meanwhile.
    let (free, _other) = serve(&stage.open(), LONG_TIMEOUT, 1).await;
    let others = async {
        for _ in 0..20 {
            connect(free, &der, BOTH, &[]).await.unwrap();
        }
    };
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("two handshakes at once"),
        () = others => {}
    }
    drop(slow);
    assert_eq!(echo(&mut waiting.await.unwrap()).await, "bear");
}

#[tokio::test]
async fn a_client_without_tls_is_refused_and_the_next_one_served() {
    let (stage, der) = Stage::new();
    let (address, _server) = serve(&stage.open(), LONG_TIMEOUT, 1).await;
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert!(connect(address, &der, BOTH, &[]).await.is_ok());
}

#[tokio::test]
async fn axum_serves_on_the_listener() {
    let (stage, der) = Stage::new();
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = TlsListener::new(tcp, stage.open().server_config().unwrap());
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", get(async || "a bear"));
    let server = tokio::spawn(axum::serve(listener, router).into_future());
    let mut stream = connect(address, &der, BOTH, &["http/1.1"]).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("a bear"), "{answer}");
    server.abort();
}

#[test]
fn files_that_cannot_be_used_are_told_by_their_path() {
    let (stage, _) = Stage::new();
    let mode = |mode| fs::set_permissions(&stage.key, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    stage.check_refused("key.pem can be read by others (mode 644): chmod 600 it");
    mode(0o600);
    let (certificate, key) =
        (fs::read_to_string(&stage.certificate).unwrap(), fs::read_to_string(&stage.key).unwrap());
    write(&stage.key, &certificate);
    stage.check_refused("key.pem holds no private key");
    write(&stage.key, "");
    stage.check_refused("key.pem holds no private key");
    fs::remove_file(&stage.key).unwrap();
    stage.check_refused("there is no TLS key");
    write(&stage.key, &self_signed().1);
    stage.check_refused("cannot be used with the key");
    write(&stage.key, &key);
    write(&stage.certificate, &key);
    stage.check_refused("chain.pem is not a chain in PEM");
    write(&stage.certificate, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    stage.check_refused("chain.pem cannot be used");
    fs::remove_file(&stage.certificate).unwrap();
    stage.check_refused("cannot read the TLS certificate");
}

#[test]
fn no_error_and_no_debug_output_shows_a_key() {
    let (stage, _) = Stage::new();
    let key = fs::read_to_string(&stage.key).unwrap();
    let line = key.lines().nth(1).unwrap().to_owned();
    assert!(!format!("{:?}", stage.open()).contains(&line));
    for broken in [key.replace("-----END", "----END"), format!("-----BEGIN {line}\n{key}")] {
        write(&stage.key, &broken);
        let error = Certificates::open(&stage.certificate, &stage.key).unwrap_err();
        let shown = format!("{error} {error:?}");
        // The bytes of a line may be printed as numbers.
        let numbers = format!("{:?}", line.as_bytes());
        let numbers = numbers.trim_matches(['[', ']']);
        assert!(!shown.contains(&line) && !shown.contains(numbers), "{shown}");
    }
}

#[tokio::test]
async fn m2_silent_clients_make_room_for_one_that_speaks() {
    let (stage, der) = Stage::new();
    let (address, _server) = serve(&stage.open(), LONG_TIMEOUT, 4).await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    for _ in 0..8 {
        let connected = tokio::time::timeout(Duration::from_secs(10), async {
            echo(&mut connect(address, &der, BOTH, &[]).await.unwrap()).await
        });
        assert_eq!(connected.await.unwrap(), "bear");
    }
}
