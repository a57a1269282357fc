//! Private moto server: KMS and S3 in memory, gone when the test ends.
//!
//! A small keeper shell runs between the test process and the server. When its standard input
//! closes, because the test process ended in whatever way, the keeper kills the server.

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

/// Environment variable with the path of a Python that has moto.
const PYTHON: &str = "NSBRIDGE_TEST_MOTO";

/// Running moto server. Dropping it ends the server and discards its data.
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
    /// Returns an error if `NSBRIDGE_TEST_MOTO` does not name a Python that has moto, or if the
    /// server does not answer within a minute; the error contains the server's output.
    pub fn start() -> Result<Self> {
        let python = std::env::var_os(PYTHON).with_context(|| {
            format!(
                "this test needs a moto server: `cargo xtask test` installs and names one, or set \
                 {PYTHON} to a Python with what crates/dev/testkit/src/moto/requirements.txt lists"
            )
        })?;
        let home = tempfile::Builder::new().prefix("nsbridge-moto-").tempdir()?;
        // The port was free a moment ago. If another process takes it first, the server ends with
        // an error message.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut keeper = Command::new("/bin/sh");
        keeper.args(["-c", KEEPER, "keeper"]).arg(&python).arg(port.to_string());
        keeper.arg(home.path().join("output.log"));
        // The keeper gets its own process group, so signals of a terminal or test runner do not
        // reach it.
        keeper.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = keeper.spawn().context("starting moto")?;
        let server = Self { keeper, addr: (Ipv4Addr::LOCALHOST, port).into(), home };
        server.wait()?;
        Ok(server)
    }

    /// Returns the server's URL for clients of any service that it serves: `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Creates a KMS key with this alias in eu-central-1.
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses; the error contains its response.
    pub fn kms_key(&self, alias: &str) -> Result<()> {
        let made = self.kms("CreateKey", "{}")?;
        let id = made.split("\"KeyId\": \"").nth(1).and_then(|rest| rest.split('"').next());
        let id = id.with_context(|| format!("no key was made: {made}"))?;
        let body = format!("{{\"AliasName\": \"{alias}\", \"TargetKeyId\": \"{id}\"}}");
        self.kms("CreateAlias", &body).map(drop)
    }

    fn kms(&self, action: &str, body: &str) -> Result<String> {
        self.call("kms", &format!("TrentService.{action}"), body)
    }

    /// Sends an action of a service with JSON in eu-central-1, such as `ecs` and
    /// `AmazonEC2ContainerServiceV20141113.ListTasks`, and returns the response with its head.
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses; the error contains its response.
    pub fn call(&self, service: &str, action: &str, body: &str) -> Result<String> {
        let headers =
            format!("content-type: application/x-amz-json-1.1\r\nx-amz-target: {action}\r\n");
        self.post(service, &headers, body).with_context(|| format!("the action {action}"))
    }

    /// Sends an action of a service as a form in eu-central-1, and returns the response with its head.
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses; the error contains its response.
    pub fn query(&self, service: &str, form: &str) -> Result<String> {
        self.post(service, "content-type: application/x-www-form-urlencoded\r\n", form)
    }

    /// Sends a request. From the signature, the server reads only the service and the region.
    fn post(&self, service: &str, headers: &str, body: &str) -> Result<String> {
        let mut socket = TcpStream::connect(self.addr)?;
        let scope = format!("Credential=test/20260101/eu-central-1/{service}/aws4_request");
        let (length, signed) = (body.len(), "SignedHeaders=host, Signature=0");
        let head = format!(
            "POST / HTTP/1.0\r\nhost: {service}\r\n{headers}\
             authorization: AWS4-HMAC-SHA256 {scope}, {signed}\r\ncontent-length: {length}\r\n\r\n"
        );
        socket.write_all(head.as_bytes())?;
        socket.write_all(body.as_bytes())?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        ensure!(answer.contains(" 200 OK"), "moto refused it: {answer}");
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
        // The closed pipe makes the keeper kill the server.
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
