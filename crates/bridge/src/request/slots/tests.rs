//! Tests of the order in which deliveries begin.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::{Permit, Room};
use crate::timing::Timing;

fn room() -> Arc<Room> {
    Arc::new(Room::new(2, &Timing::default()))
}

/// Returns the value of a future, or `None` after one second.
async fn soon<T>(future: impl Future<Output = T>) -> Option<T> {
    timeout(Duration::from_secs(1), future).await.ok()
}

async fn ordinary(room: &Arc<Room>) -> Option<Permit> {
    soon(room.beside_others(room.arrive())).await
}

async fn suspect(room: &Arc<Room>) -> Option<Permit> {
    soon(room.alone(room.arrive())).await
}

#[tokio::test(start_paused = true)]
async fn as_many_run_as_there_are_places() {
    let room = room();
    let first = ordinary(&room).await.unwrap();
    let _second = ordinary(&room).await.unwrap();
    assert!(ordinary(&room).await.is_none());
    drop(first);
    assert!(ordinary(&room).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn r5_a_suspect_runs_alone() {
    let room = room();
    room.paused(true);
    let running = ordinary(&room).await.unwrap();
    assert!(suspect(&room).await.is_none(), "another runs");
    drop(running);
    let alone = suspect(&room).await.unwrap();
    assert!(ordinary(&room).await.is_none() && suspect(&room).await.is_none(), "one is alone");
    drop(alone);
    assert!(suspect(&room).await.is_some() && ordinary(&room).await.is_some());
}

/// Otherwise one endless call would stop a worker of many slots for good.
#[tokio::test(start_paused = true)]
async fn h3_a_call_that_was_given_up_holds_its_place_and_nothing_else() {
    let room = room();
    let quiet = room.quiet();
    let lost = ordinary(&room).await.unwrap();
    lost.give_up();
    let other = ordinary(&room).await.expect("there is a second place");
    assert!(ordinary(&room).await.is_none(), "one of two places is lost");
    drop(other);
    // A suspect may still run alone.
    let waits = room.alone(room.arrive());
    tokio::pin!(waits);
    assert!(soon(waits.as_mut()).await.is_none() && *quiet.borrow());
    room.paused(true);
    let alone = soon(waits.as_mut()).await.expect("nobody waits for the one that is lost");
    alone.give_up();
    assert!(!*quiet.borrow(), "deliveries are wanted again");
    room.paused(false);
    assert!(ordinary(&room).await.is_none(), "both places are lost");
    drop((lost, alone));
    assert!(ordinary(&room).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn r5_a_suspect_that_waits_holds_nothing_back() {
    let room = room();
    room.paused(true);
    let running = ordinary(&room).await.unwrap();
    let waits = room.alone(room.arrive());
    tokio::pin!(waits);
    assert!(soon(waits.as_mut()).await.is_none());
    let later = ordinary(&room).await.expect("it goes first, though it came later");
    let arrived = room.arrive();
    drop((running, later));
    assert!(soon(waits.as_mut()).await.is_none(), "one has come that may want a place");
    drop(arrived);
    assert!(soon(waits.as_mut()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn r5_deliveries_are_unwanted_as_long_as_a_suspect_is_there() {
    let room = room();
    let quiet = room.quiet();
    let waits = room.alone(room.arrive());
    tokio::pin!(waits);
    assert!(!*quiet.borrow());
    assert!(soon(waits.as_mut()).await.is_none(), "deliveries still come");
    assert!(*quiet.borrow());
    room.paused(true);
    let alone = soon(waits.as_mut()).await.unwrap();
    assert!(*quiet.borrow());
    drop(alone);
    assert!(!*quiet.borrow());
    room.paused(false);
    assert!(suspect(&room).await.is_none() && !*quiet.borrow(), "one that gave up counts no more");
}
