//! In-memory S3 object store in this process, with fault injection.
//!
//! Objects are sent from memory without a copy. Requests must be signed; addresses are path style.
//! `docs/testing.md` lists the supported and the missing parts of S3.

mod body;
mod call;
mod checksum;
mod ecs;
mod faults;
mod front;
mod keys;
mod operations;
mod socket;
mod store;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use bytes::Bytes;
use s3s::service::S3ServiceBuilder;
use tokio_util::sync::CancellationToken;

pub use call::{Counts, KeyCounts, Kind, Seen};
pub use ecs::{EcsCredentials, Lifetime};
pub use faults::{Fault, Faults, Rule, When};

use call::Tally;
use front::Front;
use keys::{Gate, Key, Keys};
use operations::Operations;
use store::Store;

/// Access key without an expiry; temporary keys come from [`EcsCredentials`].
const ACCESS_KEY: &str = "AKIDTESTKIT";
const SECRET_KEY: &str = "a-secret-that-only-tests-know";

/// Number of threads that answer requests.
const THREADS: usize = 2;

/// Running server on a local port of its own, until it is dropped.
#[derive(Debug)]
pub struct S3Server {
    addr: SocketAddr,
    store: Arc<Store>,
    faults: Arc<Mutex<Faults>>,
    tally: Tally,
    keys: Arc<Keys>,
    over: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl S3Server {
    /// Starts an empty store, on threads of its own.
    ///
    /// # Errors
    ///
    /// Returns an error if no port is free.
    pub fn start() -> Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").context("finding a port")?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let (store, keys) = (Arc::<Store>::default(), Arc::<Keys>::default());
        let lasting = Key { secret: SECRET_KEY.into(), token: None, until: None, uses: None };
        keys.add(ACCESS_KEY, lasting);
        let mut service = S3ServiceBuilder::new(Operations { store: store.clone() });
        service.set_auth(Gate(keys.clone()));
        service.set_access(Gate(keys.clone()));
        let (faults, tally) = (Arc::<Mutex<Faults>>::default(), Tally::default());
        let front = Front {
            service: service.build(),
            store: store.clone(),
            faults: faults.clone(),
            tally: tally.clone(),
        };
        let over = CancellationToken::new();
        let stop = over.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("s3 server")
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new().name("s3 server".into()).spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                stop.run_until_cancelled(front.serve(listener)).await;
            });
            runtime.shutdown_background();
        })?;
        Ok(Self { addr, store, faults, tally, keys, over, thread: Some(thread) })
    }

    /// Returns the server's URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns the access key that the server accepts without an expiry.
    pub fn access_key(&self) -> &'static str {
        ACCESS_KEY
    }

    /// Returns the secret key of [`access_key`](Self::access_key).
    pub fn secret_key(&self) -> &'static str {
        SECRET_KEY
    }

    /// Creates a bucket, if it does not exist.
    pub fn bucket(&self, bucket: &str) {
        self.store.within_new(bucket, |_| ());
    }

    /// Enables versioning for a bucket, and creates it if it does not exist.
    pub fn keep_versions(&self, bucket: &str) {
        self.store.within_new(bucket, |bucket| bucket.versioned = true);
    }

    /// Writes an object without a condition, and creates the bucket if it does not exist.
    pub fn put(&self, bucket: &str, key: &str, bytes: impl Into<Bytes>) {
        self.store.put(bucket, key, bytes.into());
    }

    /// Returns the bytes of an object.
    pub fn get(&self, bucket: &str, key: &str) -> Option<Bytes> {
        let object = self.store.within(bucket, |bucket| Ok(bucket.object(key, None)?.clone()));
        object.ok().map(|object| object.bytes)
    }

    /// Returns the ETag of an object, in quotes.
    pub fn etag(&self, bucket: &str, key: &str) -> Option<String> {
        let etag = self.store.within(bucket, |bucket| Ok(bucket.object(key, None)?.etag.clone()));
        etag.ok().map(|etag| format!("\"{etag}\""))
    }

    /// Returns the keys of a bucket, in order.
    pub fn objects(&self, bucket: &str) -> Vec<String> {
        let keys = self
            .store
            .within(bucket, |bucket| Ok(bucket.objects().map(|(key, _)| key.to_owned()).collect()));
        keys.unwrap_or_default()
    }

    /// Returns the number of multipart uploads that are neither completed nor aborted.
    pub fn uploads(&self, bucket: &str) -> usize {
        self.store.within(bucket, |bucket| Ok(bucket.uploads.len())).unwrap_or_default()
    }

    /// Deletes an object, if it exists.
    pub fn remove(&self, bucket: &str, key: &str) {
        let _ = self.store.within(bucket, |bucket| {
            bucket.delete(key, None);
            Ok(())
        });
    }

    /// Replaces the fault rules for all following requests.
    pub fn faults(&self, faults: impl Into<Faults>) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults.into();
    }

    /// Returns the counters of requests and bytes.
    pub fn counts(&self) -> Counts {
        self.tally.counts()
    }

    /// Returns every request since the last [`reset_counts`](Self::reset_counts).
    pub fn seen(&self) -> Vec<Seen> {
        self.tally.seen()
    }

    /// Resets the counters and the log of requests.
    pub fn reset_counts(&self) {
        self.tally.reset();
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.over.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
