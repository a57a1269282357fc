//! Memory for bodies of requests, which API keys share.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::ApiKeyId;
use crate::semaphores::{Semaphores, kib};

/// Memory for the bodies of all requests while they arrive, and for those of one API key, in KiB. A
/// key that sends slowly leaves memory to the others.
const MEMORY: [usize; 2] = [256 << 10, 64 << 10];

/// Memory for bodies.
#[derive(Debug)]
pub(crate) struct Bodies {
    all: Arc<Semaphore>,
    keys: Semaphores<ApiKeyId>,
}

impl Default for Bodies {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MEMORY[0])), keys: Semaphores::new(MEMORY[1]) }
    }
}

impl Bodies {
    /// Waits for the memory of a body of this size at most.
    pub(crate) async fn room(
        &self,
        key: ApiKeyId,
        bytes: usize,
    ) -> Option<[OwnedSemaphorePermit; 2]> {
        let kib = kib(bytes, MEMORY[1]);
        let own = self.keys.of(key).acquire_many_owned(kib).await.ok()?;
        let all = self.all.clone().acquire_many_owned(kib).await.ok()?;
        Some([own, all])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::{ApiKeyId, Bodies, MEMORY};

    #[tokio::test(start_paused = true)]
    async fn a_key_that_fills_its_memory_leaves_some_to_the_others() {
        let bodies = Bodies::default();
        let [one, two] = ["0123abcd", "4567cdef"].map(|id| id.parse::<ApiKeyId>().unwrap());
        let size = (8 << 20) - 1;
        let mut held = Vec::new();
        for _ in 0..MEMORY[1] / (8 << 10) {
            held.push(bodies.room(one, size).await.unwrap());
        }
        let second = Duration::from_secs(1);
        assert!(timeout(second, bodies.room(one, 0)).await.is_err());
        assert!(timeout(second, bodies.room(two, size)).await.is_ok());
        held.pop();
        assert!(timeout(second, bodies.room(one, size)).await.is_ok());
    }
}
