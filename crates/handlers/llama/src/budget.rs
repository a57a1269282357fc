//! Memory budget of the requests that a worker holds, shared between accounts.
//!
//! Each limit on one request leaves it some memory, and a worker holds as many requests as it has
//! slots. The budget bounds their sum: a request waits until its part is free. A request is never
//! refused for it, since that would depend on its neighbors.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures_channel::oneshot;
use nsbridge_handler::{Error, Result};
use parking_lot::{Mutex, MutexGuard};

/// Budget in bytes. No account gets more than half of it, so one account cannot keep out another.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    free: u64,
    /// Maximum of one account.
    share: u64,
    /// Bytes granted to each account; no entry is zero.
    granted: HashMap<Arc<str>, u64>,
    /// Requests in order of arrival.
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    account: Arc<str>,
    bytes: u64,
    grant: oneshot::Sender<Grant>,
}

/// Part of the budget. Dropping it returns the bytes.
#[derive(Debug)]
pub(crate) struct Grant {
    budget: Budget,
    account: Arc<str>,
    bytes: u64,
}

impl Budget {
    /// Creates a budget of this many bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        let (granted, waiting) = (HashMap::new(), VecDeque::new());
        Self(Arc::new(Mutex::new(State { free: bytes, share: bytes / 2, granted, waiting })))
    }

    /// Waits until `bytes` are free for the account. A request for more than the account's share
    /// gets the share. Dropping the future ends the wait.
    ///
    /// # Errors
    ///
    /// Returns an error if the budget was dropped, which does not occur while a handler runs.
    pub(crate) async fn take(&self, account: Arc<str>, bytes: u64) -> Result<Grant> {
        let (grant, granted) = oneshot::channel();
        {
            let mut state = self.lock();
            let bytes = bytes.min(state.share);
            state.waiting.push_back(Waiting { account, bytes, grant });
        }
        self.grant();
        granted.await.map_err(Error::retry)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Grants what is free to the requests that wait, in order of arrival.
    fn grant(&self) {
        let ready = self.lock().ready();
        for Waiting { account, bytes, grant } in ready {
            // A request that is gone by now drops its grant here, outside of the lock.
            drop(grant.send(Grant { budget: self.clone(), account, bytes }));
        }
    }
}

impl State {
    /// Takes the bytes of the next requests, and returns these requests. A request whose account
    /// has its share already does not delay the ones after it; one that is too large for what is
    /// free does, since smaller ones could keep it waiting forever.
    fn ready(&mut self) -> Vec<Waiting> {
        let (mut ready, mut kept) = (Vec::new(), VecDeque::new());
        let mut waiting = std::mem::take(&mut self.waiting);
        while let Some(next) = waiting.pop_front() {
            if next.grant.is_canceled() {
                continue;
            }
            let granted = self.granted.get(&next.account).copied().unwrap_or(0);
            if granted + next.bytes > self.share {
                kept.push_back(next);
            } else if next.bytes > self.free {
                kept.push_back(next);
                kept.append(&mut waiting);
            } else {
                self.free -= next.bytes;
                if next.bytes > 0 {
                    *self.granted.entry(next.account.clone()).or_default() += next.bytes;
                }
                ready.push(next);
            }
        }
        self.waiting = kept;
        ready
    }

    fn give_back(&mut self, account: &Arc<str>, bytes: u64) {
        self.free += bytes;
        if let Some(granted) = self.granted.get_mut(account) {
            *granted -= bytes;
            if *granted == 0 {
                self.granted.remove(account);
            }
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.lock().give_back(&self.account, self.bytes);
        self.budget.grant();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::{Budget, Grant};

    fn poll<F: Future<Output = nsbridge_handler::Result<Grant>>>(
        future: Pin<&mut F>,
    ) -> Option<Grant> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(grant) => Some(grant.unwrap()),
            Poll::Pending => None,
        }
    }

    #[track_caller]
    fn taken(budget: &Budget, account: &str, bytes: u64) -> Grant {
        poll(pin!(budget.take(Arc::from(account), bytes))).expect("there are enough bytes")
    }

    #[test]
    fn h1_an_account_gets_half_and_its_further_requests_wait() {
        let budget = Budget::new(100);
        let first = taken(&budget, "a", 30);
        let mut second = pin!(budget.take(Arc::from("a"), 30));
        assert!(poll(second.as_mut()).is_none());
        // Another account is not kept waiting by that.
        let other = taken(&budget, "b", 50);
        assert!(poll(second.as_mut()).is_none());
        drop(first);
        let second = poll(second).unwrap();
        drop((second, other));
        assert_eq!(budget.lock().free, 100);
        assert!(budget.lock().granted.is_empty());
    }

    #[test]
    fn h1_a_large_request_is_not_kept_waiting_by_small_ones() {
        let budget = Budget::new(100);
        let (first, second) = (taken(&budget, "a", 40), taken(&budget, "b", 40));
        let mut large = pin!(budget.take(Arc::from("c"), 50));
        let mut small = pin!(budget.take(Arc::from("d"), 10));
        assert!(poll(large.as_mut()).is_none() && poll(small.as_mut()).is_none());
        drop(first);
        let (large, small) = (poll(large).unwrap(), poll(small).unwrap());
        drop((second, large, small));
        assert_eq!(budget.lock().free, 100);
    }

    #[test]
    fn h1_a_request_beyond_the_share_gets_the_share() {
        let budget = Budget::new(100);
        drop(taken(&budget, "a", 1000));
        let held = taken(&budget, "a", 1000);
        assert_eq!(held.bytes, 50);
        let _nothing = taken(&budget, "b", 0);
    }

    #[test]
    fn h1_a_request_that_is_dropped_waits_no_more() {
        let budget = Budget::new(100);
        let held = taken(&budget, "a", 50);
        {
            let mut dropped = pin!(budget.take(Arc::from("a"), 50));
            assert!(poll(dropped.as_mut()).is_none());
        }
        drop(held);
        assert_eq!(budget.lock().free, 100);
        assert!(budget.lock().waiting.is_empty());
    }
}
