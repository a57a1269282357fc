//! Tests of a connection that is reopened.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use nsbridge_queue::{
    Backoff, Broker, Connection, MemoryBroker, ReconnectingConnection, Result, Timing,
};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Broker that counts connection attempts.
#[derive(Debug)]
struct Counting {
    inner: MemoryBroker,
    tries: Arc<AtomicUsize>,
}

#[async_trait]
impl Broker for Counting {
    async fn connect(&self, name: &str) -> Result<Arc<dyn Connection>> {
        self.tries.fetch_add(1, Ordering::Relaxed);
        self.inner.connect(name).await
    }

    async fn listens(&self) -> bool {
        self.inner.listens().await
    }
}

#[tokio::test(start_paused = true)]
async fn many_that_wait_for_a_broker_try_as_often_as_one() {
    let (inner, tries) = (MemoryBroker::new(), Arc::new(AtomicUsize::new(0)));
    let broker = Counting { inner: inner.clone(), tries: tries.clone() };
    let link = Arc::new(ReconnectingConnection::new(Arc::new(broker), "worker".to_owned()));
    inner.refuse();
    let mut waiting = JoinSet::new();
    for _ in 0..40 {
        let link = link.clone();
        waiting.spawn(async move { link.connection().await });
    }
    sleep(Duration::from_secs(30)).await;
    let tried = tries.load(Ordering::Relaxed);
    assert!((7..=15).contains(&tried), "pauses of 0.1 to 10 s: {tried} tries");
    // A single try and a close do not wait for the retry lock.
    let once = timeout(Duration::from_millis(10), link.try_connection());
    assert!(once.await.unwrap().is_err());
    timeout(Duration::from_millis(10), link.close()).await.unwrap();
    inner.accept();
    // A caller that arrives now does not wait for a back-off that began before.
    timeout(Duration::from_millis(10), link.connection()).await.unwrap();
    let all = waiting.join_all().await;
    assert!(all.iter().all(|connection| Arc::ptr_eq(connection, &all[0])));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_listens_again_is_tried_at_once() {
    let broker = MemoryBroker::new();
    let link = Arc::new(ReconnectingConnection::new(Arc::new(broker.clone()), "worker".to_owned()));
    broker.refuse();
    let waiting = tokio::spawn(async move { link.connection().await });
    // The back-off is between 5 and 10 s by now.
    sleep(Duration::from_secs(60)).await;
    broker.accept();
    timeout(Duration::from_millis(300), waiting).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn back_off_and_probes_have_the_given_timing() {
    let (inner, tries) = (MemoryBroker::new(), Arc::new(AtomicUsize::new(0)));
    let broker = Counting { inner: inner.clone(), tries: tries.clone() };
    let second = Duration::from_secs(1);
    let mut timing = Timing::default();
    timing.reconnect = Backoff::new(second, second);
    timing.probe_interval = Duration::from_millis(10);
    let link = ReconnectingConnection::new(Arc::new(broker), "worker".to_owned());
    let link = link.with_timing(timing);
    inner.refuse();
    let waiting = tokio::spawn(async move { link.connection().await });
    sleep(Duration::from_secs(30)).await;
    let tried = tries.load(Ordering::Relaxed);
    assert!((30..=60).contains(&tried), "pauses of 0.5 to 1 s: {tried} tries");
    inner.accept();
    timeout(Duration::from_millis(20), waiting).await.unwrap().unwrap();
}
