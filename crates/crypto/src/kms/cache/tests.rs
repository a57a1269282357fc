//! Tests of the cache: single calls, repeated calls and eviction.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{advance, sleep};

use super::Cache;
use crate::provider::KeyError;

const MINUTE: Duration = Duration::from_secs(60);

/// Cache with a counter of calls.
struct Stage {
    cache: Arc<Cache<u32, Arc<u32>>>,
    asked: Arc<AtomicUsize>,
}

impl Stage {
    fn new(most: usize, uses: u64) -> Self {
        let cache = Arc::new(Cache::new(most, MINUTE, uses));
        Self { cache, asked: Arc::default() }
    }

    /// Requests a value with a call that takes a second.
    async fn get(&self, key: u32, fails: bool) -> Result<Arc<u32>, KeyError> {
        let asked = async {
            self.asked.fetch_add(1, Ordering::SeqCst);
            sleep(Duration::from_secs(1)).await;
            if fails { Err(busy()) } else { Ok(Arc::new(key)) }
        };
        self.cache.get(&key, asked).await
    }

    #[track_caller]
    fn check_asked(&self, times: usize) {
        assert_eq!(self.asked.load(Ordering::SeqCst), times);
    }
}

fn busy() -> KeyError {
    KeyError::Busy { why: "ThrottlingException".into() }
}

#[tokio::test(start_paused = true)]
async fn many_who_want_the_same_at_once_ask_once() {
    let stage = Stage::new(4, 100);
    let all = futures_util::future::join_all((0..50).map(|_| stage.get(7, false))).await;
    assert!(all.iter().all(|got| got.as_deref() == Ok(&7)));
    stage.check_asked(1);
    stage.get(8, false).await.unwrap();
    stage.check_asked(2);
}

#[tokio::test(start_paused = true)]
async fn many_who_wait_for_a_refusal_share_it_and_the_next_one_asks_again() {
    let stage = Stage::new(4, 100);
    let all = futures_util::future::join_all((0..50).map(|_| stage.get(7, true))).await;
    assert!(all.iter().all(|got| *got == Err(busy())));
    stage.check_asked(1);
    assert_eq!(stage.get(7, false).await.as_deref(), Ok(&7));
    stage.check_asked(2);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_somebody_who_left_asks_himself() {
    let stage = Stage::new(4, 100);
    let hasty = tokio::time::timeout(Duration::from_millis(500), stage.get(7, false));
    let (left, patient) = tokio::join!(hasty, stage.get(7, false));
    assert!(left.is_err());
    assert_eq!(patient.as_deref(), Ok(&7));
    stage.check_asked(2);
}

#[tokio::test(start_paused = true)]
async fn a_value_is_forgotten_when_its_time_is_over() {
    let stage = Stage::new(4, 100);
    let first = Arc::downgrade(&stage.get(7, false).await.unwrap());
    advance(MINUTE - Duration::from_secs(1)).await;
    stage.get(7, false).await.unwrap();
    stage.check_asked(1);
    advance(Duration::from_secs(1)).await;
    stage.get(8, false).await.unwrap();
    assert!(first.upgrade().is_none(), "what is over is dropped, whoever comes next");
    stage.get(7, false).await.unwrap();
    stage.check_asked(3);
}

#[tokio::test(start_paused = true)]
async fn a_value_is_forgotten_when_its_uses_are_over() {
    let stage = Stage::new(4, 3);
    for asked in [1, 1, 1, 2, 2, 2, 3] {
        stage.get(7, false).await.unwrap();
        stage.check_asked(asked);
    }
}

#[tokio::test(start_paused = true)]
async fn the_oldest_makes_room_and_is_dropped() {
    let stage = Stage::new(3, 100);
    let first = Arc::downgrade(&stage.get(1, false).await.unwrap());
    for key in 2..=3 {
        stage.get(key, false).await.unwrap();
    }
    assert!(first.upgrade().is_some());
    stage.get(4, false).await.unwrap();
    assert!(first.upgrade().is_none());
    stage.get(3, false).await.unwrap();
    stage.check_asked(4);
    stage.get(1, false).await.unwrap();
    stage.check_asked(5);
}
