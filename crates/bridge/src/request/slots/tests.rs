//! Tests of the order in which deliveries begin.

use std::sync::Arc;
use std::time::Duration;

use nsbridge_protocol::{AttemptNo, Priority};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Arrival, Claim, SlotPermit, SlotPool};
use crate::timing::Timing;

fn pool() -> Arc<SlotPool> {
    Arc::new(SlotPool::new(2, &Timing::default()))
}

/// Returns the value of a future, or `None` after one second.
async fn soon<T>(future: impl Future<Output = T>) -> Option<T> {
    timeout(Duration::from_secs(1), future).await.ok()
}

fn arrive(pool: &Arc<SlotPool>) -> Arrival {
    pool.arrive(Claim::new(Priority::Interactive))
}

async fn ordinary(pool: &Arc<SlotPool>) -> Option<SlotPermit> {
    soon(pool.shared(arrive(pool))).await
}

async fn suspect(pool: &Arc<SlotPool>) -> Option<SlotPermit> {
    soon(pool.exclusive(arrive(pool))).await
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
    let waits = pool.exclusive(arrive(&pool));
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
    let waits = pool.exclusive(arrive(&pool));
    tokio::pin!(waits);
    assert!(soon(waits.as_mut()).await.is_none());
    let later = ordinary(&pool).await.expect("it goes first, though it came later");
    let arrived = arrive(&pool);
    drop((running, later));
    assert!(soon(waits.as_mut()).await.is_none(), "one has come that may want a place");
    drop(arrived);
    assert!(soon(waits.as_mut()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn r5_deliveries_are_unwanted_as_long_as_a_suspect_is_there() {
    let pool = pool();
    let quiet = pool.quiet();
    let waits = pool.exclusive(arrive(&pool));
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

/// Starts a bulk run, and a task that waits for its preemption.
async fn bulk(pool: &Arc<SlotPool>) -> (Claim, SlotPermit, JoinHandle<()>) {
    let claim = Claim::new(Priority::Bulk);
    let permit = soon(pool.shared(pool.arrive(claim.clone()))).await.expect("a slot is free");
    let preempted = tokio::spawn({
        let (pool, claim) = (pool.clone(), claim.clone());
        async move { pool.preempted(&claim, AttemptNo(1)).await }
    });
    (claim, permit, preempted)
}

#[tokio::test(start_paused = true)]
async fn r13_the_youngest_bulk_run_with_a_new_piece_leaves_for_an_interactive_request() {
    let pool = Arc::new(SlotPool::new(3, &Timing::default()));
    let (old, _old_permit, old_leaves) = bulk(&pool).await;
    let (young, young_permit, young_leaves) = bulk(&pool).await;
    let (_new, _new_permit, new_leaves) = bulk(&pool).await;
    old.progress();
    young.progress();
    tokio::task::yield_now().await;
    let waits = pool.shared(arrive(&pool));
    tokio::pin!(waits);
    // Shorter than the protection of the newest run.
    assert!(timeout(Duration::from_millis(100), waits.as_mut()).await.is_err());
    assert!(young_leaves.is_finished(), "it is the youngest that has sent a piece");
    assert!(!old_leaves.is_finished() && !new_leaves.is_finished(), "one slot is needed");
    assert_eq!(*pool.room().borrow(), -1, "bulk requests are not wanted now");
    drop(young_permit);
    let interactive = soon(waits).await.expect("a slot is free");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!old_leaves.is_finished() && !new_leaves.is_finished(), "no request waits any more");
    drop(interactive);
    assert_eq!(*pool.room().borrow(), 1);
}

#[tokio::test(start_paused = true)]
async fn r13_a_bulk_run_without_a_new_piece_is_protected_for_a_time_that_doubles() {
    for (attempt, protection) in [(1, 1), (2, 2), (3, 4), (4, 8), (70_000, 8)] {
        let pool = Arc::new(SlotPool::new(1, &Timing::default()));
        let claim = Claim::new(Priority::Bulk);
        let _permit = pool.shared(pool.arrive(claim.clone())).await;
        let began = tokio::time::Instant::now();
        let wants = pool.shared(arrive(&pool));
        tokio::pin!(wants);
        tokio::select! {
            () = pool.preempted(&claim, AttemptNo(attempt)) => {}
            _ = wants => panic!("the slot is taken"),
        }
        assert_eq!(began.elapsed().as_secs(), protection, "attempt {attempt}");
    }
}

#[tokio::test(start_paused = true)]
async fn r13_a_bulk_request_takes_no_slot_that_an_interactive_one_waits_for() {
    let pool = pool();
    let (first, second) = (ordinary(&pool).await.unwrap(), ordinary(&pool).await.unwrap());
    let interactive = pool.shared(arrive(&pool));
    let bulk = pool.shared(pool.arrive(Claim::new(Priority::Bulk)));
    tokio::pin!(interactive, bulk);
    assert!(soon(bulk.as_mut()).await.is_none());
    assert!(soon(interactive.as_mut()).await.is_none());
    drop(first);
    assert!(soon(bulk.as_mut()).await.is_none(), "an interactive request waits");
    let _third = soon(interactive).await.expect("it goes first");
    drop(second);
    assert!(soon(bulk).await.is_some(), "no interactive request waits");
}

#[tokio::test(start_paused = true)]
async fn r13_all_bulk_runs_leave_for_a_suspect() {
    let pool = pool();
    pool.paused(true);
    let (_, first, first_leaves) = bulk(&pool).await;
    let (_, second, second_leaves) = bulk(&pool).await;
    let waits = pool.exclusive(arrive(&pool));
    tokio::pin!(waits);
    assert!(timeout(Duration::from_secs(3), waits.as_mut()).await.is_err());
    assert!(first_leaves.is_finished() && second_leaves.is_finished());
    drop((first, second));
    assert!(soon(waits).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn r13_a_bulk_suspect_runs_alone_and_delays_no_interactive_request() {
    let pool = pool();
    let quiet = pool.quiet();
    let running = ordinary(&pool).await.unwrap();
    let (_, other, other_leaves) = bulk(&pool).await;
    let claim = Claim::new(Priority::Bulk);
    let suspect = pool.exclusive(pool.arrive(claim.clone()));
    tokio::pin!(suspect);
    assert!(timeout(Duration::from_secs(3), suspect.as_mut()).await.is_err());
    assert!(!*quiet.borrow() && !other_leaves.is_finished(), "it does not run next anyway");
    drop(running);
    assert!(timeout(Duration::from_secs(3), suspect.as_mut()).await.is_err());
    assert!(other_leaves.is_finished(), "another bulk request leaves for it");
    drop(other);
    let suspect = soon(suspect).await.expect("nothing else runs");
    assert_eq!((*quiet.borrow(), *pool.room().borrow()), (false, -1));
    let preempted = pool.preempted(&claim, AttemptNo(2));
    tokio::pin!(preempted);
    assert!(soon(preempted.as_mut()).await.is_none(), "no interactive request is there");
    let interactive = pool.shared(arrive(&pool));
    tokio::pin!(interactive);
    tokio::select! {
        () = preempted => {}
        _ = interactive.as_mut() => panic!("a suspect runs alone"),
    }
    drop(suspect);
    assert!(soon(interactive).await.is_some());
}
