//! Stand-in for the ECS endpoint that gives a task the credentials of its role.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use s3s::dto::{Timestamp, TimestampFormat};

use super::S3Server;
use super::keys::{Key, Keys};

/// Validity of the credentials that one call returns.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    /// Validity that the response states.
    pub told: Duration,
    /// Time for which the object store accepts them.
    pub kept: Duration,
    /// Number of requests that the store accepts with them; `None` is no limit.
    pub uses: Option<u64>,
}

impl Lifetime {
    /// Creates a lifetime whose stated and real validity agree, for any number of requests.
    pub fn of(time: Duration) -> Self {
        Self { told: time, kept: time, uses: None }
    }
}

/// Credentials endpoint with new credentials for each call. An [`S3Server`] accepts each of them
/// for its lifetime.
#[derive(Debug)]
pub struct EcsCredentials {
    addr: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    keys: Arc<Keys>,
    lifetime: Mutex<Lifetime>,
    calls: AtomicU64,
    over: AtomicBool,
}

/// Value of the `Authorization` header that a caller must send, as ECS requires for a full URI.
const AUTHORIZATION: &str = "a token of the task";

impl EcsCredentials {
    /// Starts an endpoint for a server's credentials.
    ///
    /// # Errors
    ///
    /// Returns an error if no port is free.
    pub fn start(server: &S3Server, lifetime: Lifetime) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("finding a port")?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            keys: server.keys.clone(),
            lifetime: Mutex::new(lifetime),
            calls: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let theirs = shared.clone();
        let thread =
            std::thread::Builder::new().name("ecs credentials".into()).spawn(move || {
                for stream in listener.incoming().flatten() {
                    if theirs.over.load(Ordering::Relaxed) {
                        return;
                    }
                    // If the caller has closed the connection, the next caller is served.
                    let _ = theirs.answer(stream);
                }
            })?;
        Ok(Self { addr, shared, thread: Some(thread) })
    }

    /// Returns the value for `AWS_CONTAINER_CREDENTIALS_FULL_URI`.
    pub fn uri(&self) -> String {
        format!("http://{}/role", self.addr)
    }

    /// Returns the value for `AWS_CONTAINER_AUTHORIZATION_TOKEN`.
    pub fn authorization(&self) -> &'static str {
        AUTHORIZATION
    }

    /// Returns the number of calls that got credentials.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::Relaxed)
    }

    /// Sets the lifetime of credentials issued from now on.
    pub fn set_lifetime(&self, lifetime: Lifetime) {
        *self.shared.lifetime.lock().unwrap_or_else(PoisonError::into_inner) = lifetime;
    }

    /// Expires all credentials issued so far.
    pub fn expire_all(&self) {
        for call in 1..=self.calls() {
            self.shared.keys.expire(&access_key(call));
        }
    }
}

impl Drop for EcsCredentials {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for a connection.
        let _ = TcpStream::connect(self.addr);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn access_key(call: u64) -> String {
    format!("ASIATASK{call:012}")
}

impl Shared {
    fn answer(&self, mut stream: TcpStream) -> Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut asked = Vec::new();
        let mut byte = [0];
        while !asked.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? == 1 {
            asked.push(byte[0]);
        }
        let asked = String::from_utf8_lossy(&asked).to_lowercase();
        let allowed = asked.lines().any(|line| line == format!("authorization: {AUTHORIZATION}"));
        let (status, body) = if allowed {
            ("200 OK", self.credentials()?)
        } else {
            ("401 Unauthorized", r#"{"code":"AccessDenied","message":"no token"}"#.to_owned())
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n");
        let head = format!("{head}content-length: {length}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        Ok(stream.write_all(body.as_bytes())?)
    }

    /// Issues new credentials and returns the JSON response.
    fn credentials(&self) -> Result<String> {
        let lifetime = *self.lifetime.lock().unwrap_or_else(PoisonError::into_inner);
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let (access, secret) = (access_key(call), format!("secret-of-call-{call}"));
        let token = format!("token-of-call-{call}");
        let key = Key {
            secret: secret.clone(),
            token: Some(token.clone()),
            until: Some(Instant::now() + lifetime.kept),
            uses: lifetime.uses,
        };
        self.keys.add(&access, key);
        let mut expiration = Vec::new();
        Timestamp::from(SystemTime::now() + lifetime.told)
            .format(TimestampFormat::DateTime, &mut expiration)
            .context("writing a time")?;
        let expiration = String::from_utf8(expiration)?;
        Ok(format!(
            r#"{{"RoleArn":"arn:aws:iam::000000000000:role/task","AccessKeyId":"{access}","SecretAccessKey":"{secret}","Token":"{token}","Expiration":"{expiration}"}}"#
        ))
    }
}
