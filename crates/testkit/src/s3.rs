//! An object store in this process that speaks S3, and has a bad day when it is told to.
//!
//! Objects lie in memory and are sent without a copy. Requests must be signed; addresses are path
//! style. What it does like S3 and what it leaves out, `docs/testing.md` says.

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

/// The keys that are always good; temporary ones come from [`EcsCredentials`].
const ACCESS_KEY: &str = "AKIDTESTKIT";
const SECRET_KEY: &str = "a-secret-that-only-tests-know";

/// Threads that answer requests.
const THREADS: usize = 2;

/// A server on a port of its own of this machine, until it is dropped.
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
    /// Starts an empty one, on threads of its own.
    ///
    /// # Errors
    ///
    /// There is no free port.
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

    /// Its address.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Whose requests it answers.
    pub fn access_key(&self) -> &'static str {
        ACCESS_KEY
    }

    /// What they are signed with.
    pub fn secret_key(&self) -> &'static str {
        SECRET_KEY
    }

    /// Makes a bucket, if it is not there.
    pub fn bucket(&self, bucket: &str) {
        self.store.within_new(bucket, |_| ());
    }

    /// Keeps all versions of a bucket's objects from now on.
    pub fn keep_versions(&self, bucket: &str) {
        self.store.within_new(bucket, |bucket| bucket.versioned = true);
    }

    /// Writes an object, as if a client had; makes the bucket, if it is not there.
    pub fn put(&self, bucket: &str, key: &str, bytes: impl Into<Bytes>) {
        self.store.put(bucket, key, bytes.into());
    }

    /// The bytes of an object.
    pub fn get(&self, bucket: &str, key: &str) -> Option<Bytes> {
        let object = self.store.within(bucket, |bucket| Ok(bucket.object(key, None)?.clone()));
        object.ok().map(|object| object.bytes)
    }

    /// The ETag of an object, in its quotes.
    pub fn etag(&self, bucket: &str, key: &str) -> Option<String> {
        let etag = self.store.within(bucket, |bucket| Ok(bucket.object(key, None)?.etag.clone()));
        etag.ok().map(|etag| format!("\"{etag}\""))
    }

    /// The keys of a bucket, in order.
    pub fn objects(&self, bucket: &str) -> Vec<String> {
        let keys = self
            .store
            .within(bucket, |bucket| Ok(bucket.objects().map(|(key, _)| key.to_owned()).collect()));
        keys.unwrap_or_default()
    }

    /// Uploads in parts that were begun and neither ended nor given up.
    pub fn uploads(&self, bucket: &str) -> usize {
        self.store.within(bucket, |bucket| Ok(bucket.uploads.len())).unwrap_or_default()
    }

    /// Deletes an object, if it is there.
    pub fn remove(&self, bucket: &str, key: &str) {
        let _ = self.store.within(bucket, |bucket| {
            bucket.delete(key, None);
            Ok(())
        });
    }

    /// What goes wrong from now on, instead of what did so far.
    pub fn faults(&self, faults: impl Into<Faults>) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults.into();
    }

    /// How much was asked for and sent.
    pub fn counts(&self) -> Counts {
        self.tally.counts()
    }

    /// Every request since the counts began.
    pub fn seen(&self) -> Vec<Seen> {
        self.tally.seen()
    }

    /// Begins to count again.
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
