//! When a client asks again, whom it tells, and under which root.

use std::borrow::Cow;
use std::time::Duration;

use nsbridge_crypto::{ControlFrame, ReplyRoot, RequestFrame};
use nsbridge_protocol::{ControlKind, ErrorCode};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, advance};

use super::{Entry, INBOX, Letter, MOST_HINTS, Note};
use crate::merge::Merge;
use crate::scripted::{Sender, original};

/// A request that was enqueued once.
struct Asked {
    entry: Entry,
    notes: Receiver<Note>,
    root: ReplyRoot,
    since: Instant,
}

fn asked() -> Asked {
    let original = original();
    let root = original.seal().unwrap().reply_root;
    let merge = Merge::new(root.clone(), |piece| Cow::Borrowed(piece));
    let since = Instant::now();
    let deadline = since + Duration::from_secs(1200);
    let (entry, notes) = Entry::new(original, merge, deadline, 0);
    Asked { entry, notes, root, since }
}

/// The root of a copy, as a worker finds it.
fn root_of(frame: &[u8]) -> ReplyRoot {
    RequestFrame::parse(frame).unwrap().open(&original().key.key).unwrap().reply_root
}

fn opens(letter: &Letter, root: &ReplyRoot) -> bool {
    ControlFrame::parse(&letter.1).unwrap().open(root).is_ok()
}

async fn seconds(seconds: u64) {
    advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn hints_without_end_take_no_places_of_pieces() {
    let mut asked = asked();
    for _ in 0..2 * INBOX {
        asked.entry.hint(ErrorCode::Tampered);
    }
    assert_eq!(asked.notes.len(), MOST_HINTS);
}

#[tokio::test(start_paused = true)]
async fn c6_silence_alone_is_no_reason_to_ask_again() {
    let mut asked = asked();
    seconds(120).await;
    assert!(asked.entry.ask_again(asked.since).is_none());
}

#[tokio::test(start_paused = true)]
async fn c6_a_request_that_was_opened_is_not_left_alone_for_ever() {
    let mut asked = asked();
    let mut worker = Sender::new(&asked.root, 1, 0);
    asked.entry.accept(&worker.open, Some("w"));
    asked.entry.accept(&worker.send("hel"), None);
    seconds(80).await;
    assert!(asked.entry.ask_again(asked.since).is_none(), "its worker may just be gone");
    let listening = Instant::now();
    seconds(20).await;
    assert!(asked.entry.ask_again(listening).is_none(), "nothing could be heard for 80 s");
    seconds(80).await;
    assert_eq!(asked.entry.ask_again(listening).unwrap().1, 1);
    seconds(1000).await;
    assert!(asked.entry.ask_again(listening).is_none(), "all copies may wait for their turn");
}

#[tokio::test(start_paused = true)]
async fn c6_a_request_that_moved_waits_for_its_turn() {
    let mut asked = asked();
    // One that was killed, and one that was told to leave.
    asked.entry.accept(&Sender::new(&asked.root, 1, 0).open, Some("w"));
    let worker = Sender::new(&asked.root, 2, 9);
    asked.entry.accept(&worker.open.clone(), Some("v"));
    asked.entry.accept(&worker.moved(), None);
    seconds(300).await;
    assert!(asked.entry.ask_again(asked.since).is_none());
}

#[tokio::test(start_paused = true)]
async fn c6_a_lost_reply_queue_is_asked_about_again_when_nothing_moves() {
    let mut asked = asked();
    asked.entry.disturb();
    seconds(4).await;
    assert!(asked.entry.ask_again(asked.since).is_none(), "a worker that lives is heard every 5 s");
    seconds(3).await;
    let (frame, again) = asked.entry.ask_again(asked.since).unwrap();
    assert_eq!(again, 1, "the first copy was number 0");
    let first = RequestFrame::parse(&frame).unwrap();
    assert_eq!(*first.head(), original().head, "the same request");
    assert!(asked.entry.ask_again(asked.since).is_none(), "not twice for one loss");
    let mut copies = vec![frame];
    for pause in [13, 25] {
        seconds(pause).await;
        copies.push(asked.entry.ask_again(asked.since).unwrap().0);
    }
    seconds(100).await;
    assert!(asked.entry.ask_again(asked.since).is_none(), "three times are enough");
    copies.sort();
    copies.dedup();
    assert_eq!(copies.len(), 3, "each under a salt of its own");
}

#[tokio::test(start_paused = true)]
async fn c6_a_sign_of_life_after_the_loss_is_enough() {
    let mut asked = asked();
    let mut worker = Sender::new(&asked.root, 1, 0);
    asked.entry.accept(&worker.open, Some("w"));
    asked.entry.disturb();
    seconds(3).await;
    asked.entry.accept(&worker.send("hel"), None);
    seconds(60).await;
    assert!(asked.entry.ask_again(asked.since).is_none());
}

#[tokio::test(start_paused = true)]
async fn c6_an_end_with_a_gap_before_it_is_asked_about_again() {
    let mut asked = asked();
    let mut worker = Sender::new(&asked.root, 1, 0);
    asked.entry.accept(&worker.open, Some("w"));
    let lost = worker.send("hel");
    asked.entry.accept(&worker.send("lo"), None);
    asked.entry.accept(&worker.finish(), None);
    assert!(asked.entry.ask_again(asked.since).is_none());
    seconds(7).await;
    let (frame, _) = asked.entry.ask_again(asked.since).unwrap();
    // The copy's worker is told of the pieces under its own root, and its end counts.
    let root = root_of(&frame);
    let mut second = Sender::new(&root, 0x10001, 9);
    assert!(asked.entry.accept(&second.open, Some("v")).is_empty(), "nothing is here yet");
    asked.entry.accept(&second.send("hello"), None);
    asked.entry.accept(&second.finish(), None);
    let mut got = String::new();
    while let Ok(note) = asked.notes.try_recv() {
        match note {
            Note::Piece(piece) => got.push_str(std::str::from_utf8(&piece).unwrap()),
            Note::Done(_) => got.push('.'),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(got, "hello.");
    assert!(asked.entry.accept(&lost, None).is_empty());
}

#[tokio::test(start_paused = true)]
async fn c1_each_worker_is_told_under_the_root_of_its_own_copy() {
    let mut asked = asked();
    let mut first = Sender::new(&asked.root, 1, 0);
    asked.entry.accept(&first.open, Some("w"));
    asked.entry.accept(&first.send("hel"), None);
    asked.entry.disturb();
    seconds(7).await;
    let copy = root_of(&asked.entry.ask_again(asked.since).unwrap().0);
    let second = Sender::new(&copy, 0x10001, 9);
    let told = asked.entry.accept(&second.open, Some("v"));
    assert!(told.len() == 1 && told[0].0 == "v" && opens(&told[0], &copy));
    assert_eq!(ControlFrame::parse(&told[0].1).unwrap().kind, ControlKind::Resume);
    let cancels = asked.entry.cancel();
    let to = |key: &str| cancels.iter().find(|letter| letter.0 == key).unwrap();
    assert!(opens(to("w"), &asked.root) && opens(to("v"), &copy) && cancels.len() == 2);
    assert!(asked.entry.cancel().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_nobody_has_opened_is_cancelled_for_whoever_will() {
    let mut asked = asked();
    let cancels = asked.entry.cancel();
    assert!(cancels.len() == 1 && cancels[0].0 == "m" && opens(&cancels[0], &asked.root));
}

#[tokio::test(start_paused = true)]
async fn what_the_reply_says_is_in_no_debug_output() {
    let mut asked = asked();
    let mut worker = Sender::new(&asked.root, 1, 0);
    asked.entry.accept(&worker.open, Some("w"));
    asked.entry.accept(&worker.send("ZZ"), None);
    let shown = format!("{:?} {:?}", asked.entry, asked.notes.try_recv());
    let bytes = format!("{:?}", b"Z");
    assert!(shown.contains("Piece") && !shown.contains('Z') && !shown.contains(&bytes), "{shown}");
}
