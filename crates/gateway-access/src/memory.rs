//! Memory of requests: bodies while they arrive, what is made of them, and what streams keep.
//!
//! Tenants share it. A tenant's large bodies wait for one another and never for those of another
//! tenant; a small body waits for no large one.

use std::sync::Arc;

use nsbridge_protocol::Tenant;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::extent::Extent;
use crate::semaphores::{Semaphores, kib};
use crate::shares::{Account, Shares};

/// Memory of all requests, in bytes.
const ALL: usize = 384 << 20;

/// Memory of one tenant's large bodies while they arrive, in KiB.
const ARRIVING: usize = 64 << 10;

/// Memory of what is made of one tenant's large bodies, and of its small ones, in KiB.
const PARSED: [usize; 2] = [96 << 10, 32 << 10];

/// Maximum size of a small body, in bytes.
pub const MAX_SMALL_BODY_BYTES: usize = 64 << 10;

/// Memory of requests.
#[derive(Debug)]
pub struct Memory {
    shares: Arc<Shares>,
    arriving: Semaphores<Tenant>,
    parsed: [Semaphores<Tenant>; 2],
}

impl Default for Memory {
    fn default() -> Self {
        let parsed = PARSED.map(Semaphores::new);
        Self { shares: Shares::new(ALL), arriving: Semaphores::new(ARRIVING), parsed }
    }
}

impl Memory {
    /// Opens an account of memory that waits for nothing.
    pub fn account(&self, tenant: &Tenant) -> Account {
        self.shares.account(tenant)
    }

    /// Opens the account of a request, which has taken nothing yet.
    pub fn request(&self, tenant: &Tenant) -> Held {
        Held { account: self.account(tenant), waited: Mutex::default() }
    }

    /// Waits until the tenant's large bodies leave room for one of this size at most.
    pub async fn arrive(&self, held: &Held, bytes: usize) {
        if bytes > MAX_SMALL_BODY_BYTES {
            let semaphore = self.arriving.of(held.account.tenant().clone());
            let permit = permit(semaphore, bytes, ARRIVING).await;
            held.waited.lock().permit = permit;
        }
    }

    /// Waits until there is room for what is made of a body that has arrived. Returns false if the
    /// tenant has no memory left for it.
    pub async fn parse(&self, held: &Held, extent: Extent) -> bool {
        let small = usize::from(extent.bytes <= MAX_SMALL_BODY_BYTES);
        let memory = extent.memory().min(PARSED[small] << 10);
        // This body has arrived, so the next one may.
        *held.waited.lock() = Waited { body: extent.bytes, permit: None };
        let semaphore = self.parsed[small].of(held.account.tenant().clone());
        let permit = permit(semaphore, memory, PARSED[small]).await;
        held.waited.lock().permit = permit;
        held.take(memory.saturating_sub(extent.bytes))
    }
}

async fn permit(
    semaphore: Arc<Semaphore>,
    bytes: usize,
    most: usize,
) -> Option<OwnedSemaphorePermit> {
    semaphore.acquire_many_owned(kib(bytes, most)).await.ok()
}

/// Memory that one request has taken. It is given back when it is dropped.
#[derive(Debug)]
pub struct Held {
    account: Account,
    waited: Mutex<Waited>,
}

#[derive(Debug, Default)]
struct Waited {
    /// Bytes of the body.
    body: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl Held {
    /// Takes memory. Returns false if the tenant has none left.
    pub fn take(&self, bytes: usize) -> bool {
        self.account.take(bytes)
    }

    /// Gives memory back when the request is submitted, all but that of the body's size: the record
    /// of its reply, or what a stream repeats of it.
    pub fn submitted(&self) {
        let body = self.waited.lock().body;
        self.keep(body);
    }

    /// Takes memory or gives it back, so that the request has this number of bytes. Returns false if the
    /// tenant has none left.
    pub fn resize(&self, bytes: usize) -> bool {
        self.keep(bytes);
        self.account.take(bytes.saturating_sub(self.account.taken()))
    }

    /// Gives memory back, all but this number of bytes.
    pub fn keep(&self, bytes: usize) {
        self.waited.lock().permit = None;
        self.account.shrink(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::{Extent, Held, Memory};

    const LARGE_BODY_BYTES: usize = 8 << 20;

    fn request(memory: &Memory, tenant: &str) -> Held {
        memory.request(&tenant.parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn m1_large_bodies_of_a_tenant_wait_for_one_another_alone() {
        let (memory, second) = (Memory::default(), Duration::from_secs(1));
        let mut held = Vec::new();
        for _ in 0..7 {
            let one = request(&memory, "a");
            memory.arrive(&one, LARGE_BODY_BYTES).await;
            held.push(one);
        }
        let next = request(&memory, "a");
        let mut waits = std::pin::pin!(memory.arrive(&next, LARGE_BODY_BYTES));
        assert!(timeout(second, &mut waits).await.is_err());
        let other = request(&memory, "b");
        assert!(timeout(second, memory.arrive(&other, LARGE_BODY_BYTES)).await.is_ok());
        // A small body waits for no large one, of its own tenant either.
        let small = request(&memory, "a");
        assert!(timeout(second, memory.arrive(&small, 60)).await.is_ok());
        assert!(timeout(second, memory.parse(&small, Extent::of(b"{}"))).await.unwrap());
        held.pop();
        assert!(timeout(second, &mut waits).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn h1_what_is_made_of_bodies_is_held_until_it_is_dropped() {
        let (memory, second) = (Memory::default(), Duration::from_secs(1));
        let objects = br#"{"":0},"#.repeat(150_000);
        let extent = Extent::of(&objects);
        let first = request(&memory, "a");
        assert!(memory.parse(&first, extent).await);
        let next = request(&memory, "a");
        assert!(timeout(second, memory.parse(&next, extent)).await.is_err());
        first.submitted();
        assert!(timeout(second, memory.parse(&next, extent)).await.unwrap());
        for size in [10 << 20, 1 << 20] {
            assert!(next.resize(size) && next.account.taken() == size);
        }
        assert!(!next.resize(1 << 30) && next.account.taken() == 1 << 20);
    }
}
