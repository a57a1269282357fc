//! Tests of the order in which deliveries begin.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::{SlotPermit, SlotPool};
use crate::timing::Timing;

fn pool() -> Arc<SlotPool> {
    Arc::new(SlotPool::new(2, &Timing::default()))
}

/// Returns the value of a future, or `None` after one second.
async fn soon<T>(future: impl Future<Output = T>) -> Option<T> {
    timeout(Duration::from_secs(1), future).await.ok()
}

async fn ordinary(pool: &Arc<SlotPool>) -> Option<SlotPermit> {
    soon(pool.shared(pool.arrive())).await
}

async fn suspect(pool: &Arc<SlotPool>) -> Option<SlotPermit> {
    soon(pool.exclusive(pool.arrive())).await
}

#[tokio::test(start_paused = true)]
async fn as_many_run_as_there_are_places() {
    let pool = pool();
    let first = ordinary(&pool).await.unwrap();
    let _second = ordinary(&pool).await.unwrap();
    assert!(ordinary(&pool).await.is_none());
    drop(first);
    assert!(ordinary(&pool).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn r5_a_suspect_runs_alone() {
    let pool = pool();
    pool.paused(true);
    let running = ordinary(&pool).await.unwrap();
    assert!(suspect(&pool).await.is_none(), "another runs");
    drop(running);
    let exclusive = suspect(&pool).await.unwrap();
    assert!(ordinary(&pool).await.is_none() && suspect(&pool).await.is_none(), "one is alone");
    drop(exclusive);
    assert!(suspect(&pool).await.is_some() && ordinary(&pool).await.is_some());
}

/// Otherwise one endless call would stop a worker of many slots for good.
#[tokio::test(start_paused = true)]
async fn h3_a_call_that_was_given_up_holds_its_place_and_nothing_else() {
    let pool = pool();
    let quiet = pool.quiet();
    let lost = ordinary(&pool).await.unwrap();
    lost.give_up();
    let other = ordinary(&pool).await.expect("there is a second place");
    assert!(ordinary(&pool).await.is_none(), "one of two places is lost");
    drop(other);
    // A suspect may still run alone.
    let waits = pool.exclusive(pool.arrive());
    tokio::pin!(waits);
    assert!(soon(waits.as_mut()).await.is_none() && *quiet.borrow());
    pool.paused(true);
    let exclusive = soon(waits.as_mut()).await.expect("nobody waits for the one that is lost");
    exclusive.give_up();
    assert!(!*quiet.borrow(), "deliveries are wanted again");
    pool.paused(false);
    assert!(ordinary(&pool).await.is_none(), "both places are lost");
    drop((lost, exclusive));
    assert!(ordinary(&pool).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn r5_a_suspect_that_waits_holds_nothing_back() {
    let pool = pool();
    pool.paused(true);
    let running = ordinary(&pool).await.unwrap();
    let waits = pool.exclusive(pool.arrive());
    tokio::pin!(waits);
    assert!(soon(waits.as_mut()).await.is_none());
    let later = ordinary(&pool).await.expect("it goes first, though it came later");
    let arrived = pool.arrive();
    drop((running, later));
    assert!(soon(waits.as_mut()).await.is_none(), "one has come that may want a place");
    drop(arrived);
    assert!(soon(waits.as_mut()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn r5_deliveries_are_unwanted_as_long_as_a_suspect_is_there() {
    let pool = pool();
    let quiet = pool.quiet();
    let waits = pool.exclusive(pool.arrive());
    tokio::pin!(waits);
    assert!(!*quiet.borrow());
    assert!(soon(waits.as_mut()).await.is_none(), "deliveries still come");
    assert!(*quiet.borrow());
    pool.paused(true);
    let exclusive = soon(waits.as_mut()).await.unwrap();
    assert!(*quiet.borrow());
    drop(exclusive);
    assert!(!*quiet.borrow());
    pool.paused(false);
    assert!(suspect(&pool).await.is_none() && !*quiet.borrow(), "one that gave up counts no more");
}
