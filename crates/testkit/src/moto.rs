//! A moto server of one's own: it speaks the protocols of KMS and S3, in memory, gone with the test.
//!
//! As with RabbitMQ, a small shell process stands between, which kills the server when its standard
//! input ends, because the test process died in whatever way.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

const KEEPER: &str = include_str!("moto/keeper.sh");

const START_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The variable that names the Python which has moto.
const PYTHON: &str = "NSBRIDGE_TEST_MOTO";

/// A running server. Dropping it ends the server, and all that was stored in it is gone.
#[derive(Debug)]
pub struct Moto {
    keeper: Child,
    addr: SocketAddr,
    home: TempDir,
}

impl Moto {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// `NSBRIDGE_TEST_MOTO` names no Python that has moto, or the server did not answer within a
    /// minute; the error says what it said.
    pub fn start() -> Result<Self> {
        let python = std::env::var_os(PYTHON).with_context(|| {
            format!(
                "this test needs a moto server: `cargo xtask test` installs and names one, or set \
                 {PYTHON} to a Python with what crates/testkit/src/moto/requirements.txt lists"
            )
        })?;
        let home = tempfile::Builder::new().prefix("nsbridge-moto-").tempdir()?;
        // Free a moment ago; who takes it in between makes the server end with a sentence.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut keeper = Command::new("/bin/sh");
        keeper.args(["-c", KEEPER, "keeper"]).arg(&python).arg(port.to_string());
        keeper.arg(home.path().join("output.log"));
        // A group of its own: what a terminal or a test runner sends to us is not for it.
        keeper.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = keeper.spawn().context("starting moto")?;
        let server = Self { keeper, addr: (Ipv4Addr::LOCALHOST, port).into(), home };
        server.wait()?;
        Ok(server)
    }

    /// The server's address, for clients of any service that it plays: `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Makes a key of KMS that is called by this alias, in eu-central-1.
    ///
    /// # Errors
    ///
    /// The server says why not.
    pub fn kms_key(&self, alias: &str) -> Result<()> {
        let made = self.kms("CreateKey", "{}")?;
        let id = made.split("\"KeyId\": \"").nth(1).and_then(|rest| rest.split('"').next());
        let id = id.with_context(|| format!("no key was made: {made}"))?;
        let body = format!("{{\"AliasName\": \"{alias}\", \"TargetKeyId\": \"{id}\"}}");
        self.kms("CreateAlias", &body).map(drop)
    }

    /// Has an action of KMS done. The server reads the region from the signature, and no more.
    fn kms(&self, action: &str, body: &str) -> Result<String> {
        let mut socket = TcpStream::connect(self.addr)?;
        let scope = "Credential=test/20260101/eu-central-1/kms/aws4_request";
        let (length, signed) = (body.len(), "SignedHeaders=host, Signature=0");
        let head = format!(
            "POST / HTTP/1.0\r\nhost: kms\r\ncontent-type: application/x-amz-json-1.1\r\n\
             x-amz-target: TrentService.{action}\r\n\
             authorization: AWS4-HMAC-SHA256 {scope}, {signed}\r\ncontent-length: {length}\r\n\r\n"
        );
        socket.write_all(head.as_bytes())?;
        socket.write_all(body.as_bytes())?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        ensure!(answer.contains(" 200 OK"), "moto refused {action}: {answer}");
        Ok(answer)
    }

    fn wait(&self) -> Result<()> {
        let start = Instant::now();
        while !self.answers() {
            let said = self.last_words();
            if start.elapsed() > START_WITHIN || said.contains("Error") {
                bail!("the moto server did not start; it says:\n{said}");
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn answers(&self) -> bool {
        let ask = || -> std::io::Result<String> {
            let mut socket = TcpStream::connect_timeout(&self.addr, LOOK_EVERY)?;
            socket.set_read_timeout(Some(Duration::from_secs(5)))?;
            socket.write_all(b"GET /moto-api/seed HTTP/1.0\r\nhost: moto\r\n\r\n")?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.starts_with("HTTP/1."))
    }

    fn last_words(&self) -> String {
        let said = std::fs::read_to_string(self.home.path().join("output.log"));
        let said = said.unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // The end of its input is the order to kill the server.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::Moto;

    #[test]
    fn a_server_answers_until_it_is_dropped() {
        let moto = Moto::start().unwrap();
        let addr = moto.addr;
        assert!(moto.answers());
        drop(moto);
        assert!(TcpStream::connect(addr).is_err(), "it is still there");
    }
}
