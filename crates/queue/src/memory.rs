//! In-memory broker for one process. It behaves as RabbitMQ does, without persistence.

mod link;
mod peer;
mod queue;
mod state;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::{Broker, Connection};

use link::{Link, MemoryConnection};
use state::State;

/// Broker in this process. Clones share their queues.
///
/// ```
/// use nsbridge_queue::{Broker, Error, MemoryBroker};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let broker = MemoryBroker::new();
/// let connection = broker.connect("example").await?;
/// let missing = connection.consume("nsbridge.tale-7m", 1).await.unwrap_err();
/// assert!(matches!(missing, Error::NoQueue { .. }));
/// // A clone shares the queues.
/// broker.clone().connect("worker").await?.declare_model(&"tale-7m".parse()?).await?;
/// assert_eq!(connection.depth("nsbridge.tale-7m").await?.messages, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
}

/// State shared by all connections.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    links: Mutex<BTreeMap<u64, Weak<Link>>>,
    /// Notified when an alarm is set that is earlier than all others.
    earlier: Notify,
    blocked: watch::Sender<bool>,
    refuses: AtomicBool,
    /// Simulated latency of a connection's calls, in milliseconds.
    latency: AtomicU64,
    /// Number of times that the open publishing channels became stale.
    strandings: AtomicU64,
}

impl MemoryBroker {
    /// Creates an empty broker with the protocol's limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty broker with other limits, for tests.
    pub fn with_limits(limits: Limits) -> Self {
        let shared = Shared { state: Mutex::new(State::new(limits)), ..Shared::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Breaks every connection that was opened under `name`.
    #[cfg(feature = "testing")]
    pub fn cut(&self, name: &str) {
        // Dropped without the lock on the list: the end of a connection takes it.
        let links: Vec<_> = self.shared.links.lock().values().filter_map(Weak::upgrade).collect();
        links.iter().filter(|link| link.name() == name).for_each(|link| link.end("it was cut"));
    }

    /// Refuses new connections until [`accept`](Self::accept).
    #[cfg(feature = "testing")]
    pub fn refuse(&self) {
        self.shared.refuses.store(true, Ordering::Relaxed);
    }

    /// Accepts new connections again.
    #[cfg(feature = "testing")]
    pub fn accept(&self) {
        self.shared.refuses.store(false, Ordering::Relaxed);
    }

    /// Delays declarations, subscriptions, depth queries and publishes by this latency, in whole
    /// milliseconds.
    ///
    /// Messages and queues that expire in the meantime are gone when the call arrives.
    #[cfg(feature = "testing")]
    pub fn delay(&self, latency: Duration) {
        let millis = u64::try_from(latency.as_millis()).unwrap_or(u64::MAX);
        self.shared.latency.store(millis, Ordering::Relaxed);
    }

    /// Makes the open publishing channels stale, as RabbitMQ does when they know only a dead leader: see
    /// [`Publisher::is_stale`](crate::Publisher::is_stale).
    #[cfg(feature = "testing")]
    pub fn strand(&self) {
        self.shared.strandings.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the reply queues down that exist, as RabbitMQ 4.3 does when the node that has them is
    /// down: it refuses messages for them, and keeps their names.
    #[cfg(feature = "testing")]
    pub fn take_reply_queues_down(&self) {
        self.shared.change(State::take_reply_queues_down);
    }

    /// Blocks publishers, as RabbitMQ does when it is short of memory or disk.
    #[cfg(feature = "testing")]
    pub fn block(&self) {
        self.shared.blocked.send_replace(true);
    }

    /// Unblocks publishers.
    #[cfg(feature = "testing")]
    pub fn unblock(&self) {
        self.shared.blocked.send_replace(false);
    }
}

#[async_trait]
impl Broker for MemoryBroker {
    async fn connect(&self, name: &str) -> Result<Arc<dyn Connection>> {
        if self.shared.refuses.load(Ordering::Relaxed) {
            let address = "memory".to_owned();
            return Err(Error::Unreachable { address, source: "it refuses".into() });
        }
        let link = Link::open(&self.shared, name);
        tokio::spawn(keep_time(Arc::clone(&self.shared), link.ended()));
        Ok(Arc::new(MemoryConnection(link)))
    }

    async fn listens(&self) -> bool {
        !self.shared.refuses.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn change<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.next_alarm();
        let done = work(&mut state);
        let after = state.next_alarm();
        let gone = std::mem::take(&mut state.gone);
        drop(state);
        drop(gone);
        if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
            self.earlier.notify_waiters();
        }
        done
    }

    fn strandings(&self) -> u64 {
        self.strandings.load(Ordering::Relaxed)
    }

    fn is_blocked(&self) -> bool {
        *self.blocked.borrow()
    }

    /// Waits for the simulated latency of a call.
    async fn arrival(&self) {
        let latency = self.latency.load(Ordering::Relaxed);
        if latency > 0 {
            tokio::time::sleep(Duration::from_millis(latency)).await;
        }
    }

    async fn unblocked(&self) {
        let mut blocked = self.blocked.subscribe();
        // This cannot fail, because `self` holds the sender.
        let _ = blocked.wait_for(|blocked| !blocked).await;
    }
}

/// Expires messages and queues for as long as a connection exists that could notice.
async fn keep_time(shared: Arc<Shared>, mut ended: watch::Receiver<Option<String>>) {
    loop {
        let earlier = shared.earlier.notified();
        tokio::pin!(earlier);
        // Registered before the alarm is read, so that no notification is missed in between.
        earlier.as_mut().enable();
        let alarm = shared.state.lock().next_alarm();
        let due = async {
            match alarm {
                Some(alarm) => tokio::time::sleep_until(alarm).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => shared.change(State::sweep),
            () = &mut earlier => {}
            _ = ended.wait_for(Option::is_some) => return,
        }
    }
}
