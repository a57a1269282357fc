//! Repeated enqueues, the recipients of control frames, and the roots that seal them.

use std::borrow::Cow;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nsbridge_crypto::{ControlFrame, ReplyRoot, RequestFrame};
use nsbridge_protocol::{ControlKind, ErrorCode, MAX_TRANSCRIPT_BYTES, TraceParent};
use tokio::time::{Instant, advance};

use super::{ControlMessage, MAX_WORKERS, PendingRequest, ReplyEvent};
use crate::inbox::MOST_HINTS;
use crate::merge::Merge;
use crate::scripted::{Sender, original};
use crate::timing::Timing;

/// Request that was enqueued once.
struct Asked {
    pending: PendingRequest,
    root: ReplyRoot,
    since: Instant,
}

fn asked() -> Asked {
    let original = original();
    let root = original.seal().unwrap().reply_root;
    let merge = Merge::new(root.clone(), |piece| Cow::Borrowed(piece));
    let since = Instant::now();
    let deadline = since + Duration::from_secs(1200);
    let pending = PendingRequest::new(original, merge, deadline, 0);
    Asked { pending, root, since }
}

impl Asked {
    /// Returns the next event, if there is one.
    fn event(&mut self) -> Option<ReplyEvent> {
        match self.pending.poll_event(&Context::from_waker(Waker::noop())) {
            Poll::Ready(event) => event,
            Poll::Pending => None,
        }
    }
}

/// Returns the root of a copy, as a worker derives it.
fn root_of(frame: &[u8]) -> ReplyRoot {
    RequestFrame::parse(frame).unwrap().open(&original().key.key).unwrap().reply_root
}

fn opens(letter: &ControlMessage, root: &ReplyRoot) -> bool {
    ControlFrame::parse(&letter.frame).unwrap().open(root).is_ok()
}

async fn seconds(seconds: u64) {
    advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn hints_without_end_take_no_places_of_pieces() {
    let mut asked = asked();
    for _ in 0..100_000 {
        asked.pending.hint(ErrorCode::Tampered);
    }
    let hints = std::iter::from_fn(|| asked.event());
    assert_eq!(hints.count(), MOST_HINTS);
}

#[tokio::test(start_paused = true)]
async fn c6_silence_alone_is_no_reason_to_ask_again() {
    let mut asked = asked();
    seconds(120).await;
    assert!(asked.pending.enqueue_again(&Timing::default(), asked.since).is_none());
}

#[tokio::test(start_paused = true)]
async fn c6_a_request_that_was_opened_is_not_left_alone_for_ever() {
    let mut asked = asked();
    let mut worker = Sender::new(&asked.root, 1, 0);
    asked.pending.accept(&worker.open, Some("w"), None);
    asked.pending.accept(&worker.send("hel"), None, None);
    seconds(80).await;
    assert!(
        asked.pending.enqueue_again(&Timing::default(), asked.since).is_none(),
        "its worker may just be gone"
    );
    let listening = Instant::now();
    seconds(20).await;
    assert!(
        asked.pending.enqueue_again(&Timing::default(), listening).is_none(),
        "nothing could be heard for 80 s"
    );
    seconds(80).await;
    assert_eq!(asked.pending.enqueue_again(&Timing::default(), listening).unwrap().1, 1);
    seconds(1000).await;
    assert!(
        asked.pending.enqueue_again(&Timing::default(), listening).is_none(),
        "all copies may wait for their turn"
    );
}

#[tokio::test(start_paused = true)]
async fn c6_a_request_that_moved_waits_for_its_turn() {
    let mut asked = asked();
    // The first worker was killed, the second one moved the request.
    asked.pending.accept(&Sender::new(&asked.root, 1, 0).open, Some("w"), None);
    let worker = Sender::new(&asked.root, 2, 9);
    asked.pending.accept(&worker.open.clone(), Some("v"), None);
    asked.pending.accept(&worker.moved(), None, None);
    seconds(300).await;
    assert!(asked.pending.enqueue_again(&Timing::default(), asked.since).is_none());
}

#[tokio::test(start_paused = true)]
async fn c6_a_lost_reply_queue_is_asked_about_again_when_nothing_moves() {
    let mut asked = asked();
    asked.pending.disturb();
    seconds(4).await;
    assert!(
        asked.pending.enqueue_again(&Timing::default(), asked.since).is_none(),
        "a worker that lives is heard every 5 s"
    );
    seconds(3).await;
    let (frame, again) = asked.pending.enqueue_again(&Timing::default(), asked.since).unwrap();
    assert_eq!(again, 1, "the first copy was number 0");
    let first = RequestFrame::parse(&frame).unwrap();
    assert_eq!(*first.head(), original().head, "the same request");
    assert!(
        asked.pending.enqueue_again(&Timing::default(), asked.since).is_none(),
        "not twice for one loss"
    );
    let mut copies = vec![frame];
    for pause in [13, 25] {
        seconds(pause).await;
        copies.push(asked.pending.enqueue_again(&Timing::default(), asked.since).unwrap().0);
    }
    seconds(100).await;
    assert!(
        asked.pending.enqueue_again(&Timing::default(), asked.since).is_none(),
        "three times are enough"
    );
    copies.sort();
    copies.dedup();
    assert_eq!(copies.len(), 3, "each under a salt of its own");
}

#[tokio::test(start_paused = true)]
async fn c6_a_sign_of_life_after_the_loss_is_enough() {
    let mut asked = asked();
    let mut worker = Sender::new(&asked.root, 1, 0);
    asked.pending.accept(&worker.open, Some("w"), None);
    asked.pending.disturb();
    seconds(3).await;
    asked.pending.accept(&worker.send("hel"), None, None);
    seconds(60).await;
    assert!(asked.pending.enqueue_again(&Timing::default(), asked.since).is_none());
}

#[tokio::test(start_paused = true)]
async fn c6_an_end_with_a_gap_before_it_is_asked_about_again() {
    let mut asked = asked();
    let mut worker = Sender::new(&asked.root, 1, 0);
    asked.pending.accept(&worker.open, Some("w"), None);
    let lost = worker.send("hel");
    asked.pending.accept(&worker.send("lo"), None, None);
    asked.pending.accept(&worker.finish(), None, None);
    assert!(asked.pending.enqueue_again(&Timing::default(), asked.since).is_none());
    seconds(7).await;
    let (frame, _) = asked.pending.enqueue_again(&Timing::default(), asked.since).unwrap();
    // The worker of the copy receives the pieces under the copy's root, and its end counts.
    let root = root_of(&frame);
    let mut second = Sender::new(&root, 0x10001, 9);
    asked.pending.accept(&second.open, Some("v"), None);
    asked.pending.accept(&second.send("hello"), None, None);
    asked.pending.accept(&second.finish(), None, None);
    let mut got = String::new();
    while let Some(note) = asked.event() {
        match note {
            ReplyEvent::Piece(piece) => got.push_str(std::str::from_utf8(&piece).unwrap()),
            ReplyEvent::Done(_) => got.push('.'),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(got, "hello.");
    assert!(asked.pending.accept(&lost, None, None).is_empty());
}

#[tokio::test(start_paused = true)]
async fn c1_each_worker_is_told_under_the_root_of_its_own_copy() {
    let mut asked = asked();
    let mut first = Sender::new(&asked.root, 1, 0);
    asked.pending.accept(&first.open, Some("w"), None);
    asked.pending.accept(&first.send("hel"), None, None);
    asked.pending.disturb();
    seconds(7).await;
    let copy = root_of(&asked.pending.enqueue_again(&Timing::default(), asked.since).unwrap().0);
    let second = Sender::new(&copy, 0x10001, 9);
    let told = asked.pending.accept(&second.open, Some("v"), None);
    assert!(told.len() == 1 && told[0].key == "v" && opens(&told[0], &copy));
    assert_eq!(ControlFrame::parse(&told[0].frame).unwrap().kind, ControlKind::Resume);
    let cancels = asked.pending.cancel();
    let to = |key: &str| cancels.iter().find(|letter| letter.key == key).unwrap();
    assert!(opens(to("w"), &asked.root) && opens(to("v"), &copy) && cancels.len() == 2);
    assert!(asked.pending.cancel().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_nobody_has_opened_is_cancelled_for_whoever_will() {
    let mut asked = asked();
    let cancels = asked.pending.cancel();
    assert!(cancels.len() == 1 && cancels[0].key == "m" && opens(&cancels[0], &asked.root));
}

#[tokio::test(start_paused = true)]
async fn what_the_reply_says_is_in_no_debug_output() {
    let mut asked = asked();
    let mut worker = Sender::new(&asked.root, 1, 0);
    asked.pending.accept(&worker.open, Some("w"), None);
    asked.pending.accept(&worker.send("ZZ"), None, None);
    let event = asked.event();
    let shown = format!("{:?} {event:?}", asked.pending);
    let bytes = format!("{:?}", b"Z");
    assert!(shown.contains("Piece") && !shown.contains('Z') && !shown.contains(&bytes), "{shown}");
}

fn to<'a>(letters: &'a [ControlMessage], key: &str) -> Vec<&'a ControlMessage> {
    letters.iter().filter(|letter| letter.key == key).collect()
}

#[tokio::test(start_paused = true)]
async fn c1_an_attempt_after_the_first_is_sent_a_resume_though_nothing_is_here() {
    let mut asked = asked();
    asked.pending.disturb();
    seconds(7).await;
    let copy = root_of(&asked.pending.enqueue_again(&Timing::default(), asked.since).unwrap().0);
    let told = asked.pending.accept(&Sender::new(&copy, 0x10001, 9).open, Some("v"), None);
    assert!(told.len() == 1 && told[0].key == "v" && opens(&told[0], &copy));
    assert_eq!(ControlFrame::parse(&told[0].frame).unwrap().kind, ControlKind::Resume);
}

/// Neither is sealed: a publisher that replays a frame can set both.
#[tokio::test(start_paused = true)]
async fn c1_only_a_new_open_tells_where_its_worker_is_and_under_which_span() {
    let mut asked = asked();
    let span = |byte| TraceParent::root([byte; 16], [byte; 8]);
    let mut worker = Sender::new(&asked.root, 1, 0);
    asked.pending.accept(&worker.open, Some("w"), span(1));
    let pieces = worker.send("hel");
    for frame in [&pieces, &pieces, &worker.open] {
        asked.pending.accept(frame, Some("x"), span(2));
    }
    let stranger = Sender::new(&original().seal().unwrap().reply_root, 1, 0);
    asked.pending.accept(&stranger.open, Some("x"), span(2));
    let cancels = asked.pending.cancel();
    assert!(cancels.len() == 1 && cancels[0].key == "w" && cancels[0].before == span(1));
    assert_eq!(cancels[0].request, original().head.id);
}

#[tokio::test(start_paused = true)]
async fn c1_the_worker_of_an_older_copy_is_not_taken_for_one_of_the_latest() {
    let mut asked = asked();
    let mut first = Sender::new(&asked.root, 1, 0);
    asked.pending.accept(&first.open, Some("w"), None);
    asked.pending.disturb();
    seconds(7).await;
    let copy = root_of(&asked.pending.enqueue_again(&Timing::default(), asked.since).unwrap().0);
    asked.pending.accept(&Sender::new(&copy, 0x10001, 9).open, Some("v"), None);
    asked.pending.accept(&first.send("hel"), Some("w"), None);
    let cancels = asked.pending.cancel();
    assert_eq!(cancels.len(), 2, "one for each stream");
    assert!(opens(to(&cancels, "w")[0], &asked.root) && opens(to(&cancels, "v")[0], &copy));
}

#[tokio::test(start_paused = true)]
async fn c1_a_worker_that_names_no_queue_is_told_by_the_models_key() {
    let mut asked = asked();
    let told = asked.pending.accept(&Sender::new(&asked.root, 2, 0).open, None, None);
    assert!(told.len() == 1 && told[0].key == "m");
    let cancels = asked.pending.cancel();
    assert!(cancels.len() == 1 && cancels[0].key == "m" && opens(&cancels[0], &asked.root));
    let late = asked.pending.accept(&Sender::new(&asked.root, 3, 0).open, None, None);
    assert!(late.len() == 1 && late[0].key == "m" && opens(&late[0], &asked.root));
}

#[tokio::test(start_paused = true)]
async fn c5_at_the_end_those_are_told_whose_streams_have_not_ended() {
    let mut asked = asked();
    let [mut done, moved] = [1, 2].map(|number| Sender::new(&asked.root, number, 0));
    asked.pending.accept(&done.open, Some("done"), None);
    asked.pending.accept(&moved.open, Some("moved"), None);
    asked.pending.accept(&moved.moved(), None, None);
    for (number, queue) in [(3, "evicted"), (4, "four"), (5, "five"), (6, "six")] {
        asked.pending.accept(&Sender::new(&asked.root, number, 0).open, Some(queue), None);
    }
    // The end comes from a new stream of the highest rank, for which `evicted` makes room.
    done = Sender::new(&asked.root, 7, 0);
    asked.pending.accept(&done.open, Some("done"), None);
    asked.pending.accept(&done.send("hello"), None, None);
    let cancels = asked.pending.accept(&done.finish(), None, None);
    let mut told: Vec<_> = cancels.iter().map(|letter| letter.key.as_str()).collect();
    told.sort_unstable();
    // The first stream of `done` was evicted and may still run.
    assert_eq!(told, ["done", "evicted", "five", "four", "six"]);
}

#[tokio::test(start_paused = true)]
async fn c5_a_worker_whose_stream_ended_takes_no_place_of_one_that_runs() {
    let mut asked = asked();
    asked.pending.accept(&Sender::new(&asked.root, 1, 0).open, Some("first"), None);
    for number in 2..=MAX_WORKERS as u32 + 4 {
        let worker = Sender::new(&asked.root, number, 0);
        asked.pending.accept(&worker.open, Some("w"), None);
        asked.pending.accept(&worker.moved(), None, None);
    }
    let cancels = asked.pending.cancel();
    assert!(cancels.len() == 1 && cancels[0].key == "first", "{cancels:?}");
}

#[tokio::test(start_paused = true)]
async fn c5_a_worker_of_two_streams_of_a_copy_is_told_once() {
    let mut asked = asked();
    for number in [1, 2] {
        asked.pending.accept(&Sender::new(&asked.root, number, 0).open, Some("w"), None);
    }
    assert_eq!(asked.pending.cancel().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn c5_a_lone_worker_that_ended_the_request_is_told_nothing() {
    let mut asked = asked();
    let mut worker = Sender::new(&asked.root, 1, 0);
    asked.pending.accept(&worker.open, Some("w"), None);
    asked.pending.accept(&worker.send("hello"), None, None);
    assert!(asked.pending.accept(&worker.finish(), None, None).is_empty());
}

#[tokio::test(start_paused = true)]
async fn c5_a_copy_that_nobody_has_opened_is_cancelled_though_many_opened_another() {
    let mut asked = asked();
    asked.pending.disturb();
    seconds(7).await;
    let copy = root_of(&asked.pending.enqueue_again(&Timing::default(), asked.since).unwrap().0);
    for number in 1..=MAX_WORKERS as u32 + 4 {
        let queue = format!("w{number}");
        asked.pending.accept(&Sender::new(&asked.root, number, 0).open, Some(&queue), None);
    }
    let cancels = asked.pending.cancel();
    assert_eq!(cancels.len(), MAX_WORKERS + 1);
    let [unopened] = to(&cancels, "m")[..] else { panic!("{cancels:?}") };
    assert!(opens(unopened, &copy));
    assert!(to(&cancels, "w4").is_empty() && to(&cancels, "w5").len() == 1);
}

#[tokio::test(start_paused = true)]
async fn c6_what_is_repeated_is_no_sign_of_life() {
    let mut asked = asked();
    let mut worker = Sender::new(&asked.root, 1, 0);
    let (read, _lost, kept) = (worker.send("h"), worker.send("e"), worker.send("l"));
    for frame in [&worker.open, &read, &kept] {
        asked.pending.accept(frame, Some("w"), None);
    }
    asked.pending.disturb();
    for _ in 0..6 {
        seconds(1).await;
        for frame in [&worker.open, &read, &kept] {
            asked.pending.accept(frame, Some("w"), None);
        }
    }
    assert!(asked.pending.enqueue_again(&Timing::default(), asked.since).is_some());
}

#[tokio::test(start_paused = true)]
async fn c6_a_copy_after_silence_doubles_the_waits_after_it() {
    let mut asked = asked();
    asked.pending.accept(&Sender::new(&asked.root, 1, 0).open, Some("w"), None);
    seconds(90).await;
    assert_eq!(asked.pending.enqueue_again(&Timing::default(), asked.since).unwrap().1, 1);
    asked.pending.disturb();
    seconds(11).await;
    assert!(asked.pending.enqueue_again(&Timing::default(), asked.since).is_none());
    seconds(1).await;
    assert_eq!(asked.pending.enqueue_again(&Timing::default(), asked.since).unwrap().1, 2);
}

#[tokio::test(start_paused = true)]
async fn c6_a_broken_end_is_asked_about_again_until_something_is_heard() {
    let mut asked = asked();
    let worker = Sender::new(&asked.root, 1, 0);
    asked.pending.accept(&worker.open.clone(), Some("w"), None);
    let mut summary = worker.summary();
    summary.chunks += 1;
    let end = worker.sealer.seal_final_ok(&serde_json::to_vec(&summary).unwrap()).unwrap();
    asked.pending.accept(&end, None, None);
    let mut copies = Vec::new();
    for pause in [6, 12] {
        seconds(pause - 1).await;
        assert!(asked.pending.enqueue_again(&Timing::default(), asked.since).is_none());
        seconds(1).await;
        copies.push(root_of(
            &asked.pending.enqueue_again(&Timing::default(), asked.since).unwrap().0,
        ));
    }
    asked.pending.accept(&Sender::new(&copies[0], 0x10001, 0).open, Some("v"), None);
    seconds(600).await;
    assert!(
        asked.pending.enqueue_again(&Timing::default(), asked.since).is_none(),
        "the copy is in somebody's hands"
    );
}

#[tokio::test(start_paused = true)]
async fn an_ended_request_keeps_no_key_no_input_and_no_workers() {
    let mut asked = asked();
    asked.pending.accept(&Sender::new(&asked.root, 1, 0).open, Some("w"), None);
    assert_eq!(asked.pending.workers.len(), 1);
    asked.pending.cancel();
    assert!(asked.pending.original.is_none());
    assert_eq!(asked.pending.workers.capacity(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_reads_late_has_all_pieces_and_then_the_end() {
    let mut asked = asked();
    let mut worker = Sender::new(&asked.root, 1, 0);
    asked.pending.accept(&worker.open, Some("w"), None);
    for _ in 0..2000 {
        asked.pending.accept(&worker.send(&"x".repeat(100)), None, None);
    }
    asked.pending.accept(&worker.finish(), None, None);
    assert!(asked.pending.is_over());
    for _ in 0..200_000 {
        assert!(matches!(asked.event(), Some(ReplyEvent::Piece(piece)) if piece == b"x"));
    }
    assert!(matches!(asked.event(), Some(ReplyEvent::Done(_))));
    assert!(asked.event().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_keeps_no_pieces_and_one_that_reads_them_is_not_left() {
    let mut asked = asked();
    let mut worker = Sender::new(&asked.root, 1, 0);
    asked.pending.accept(&worker.open, Some("w"), None);
    asked.pending.accept(&worker.send("hel"), None, None);
    // Another client of the request, or a deadline of several requests, cancels this one.
    assert_eq!(asked.pending.cancel().len(), 1);
    for letter in [b"h", b"e", b"l"] {
        assert!(matches!(asked.event(), Some(ReplyEvent::Piece(piece)) if piece == letter));
    }
    assert!(asked.event().is_none());
    asked.pending.discard();
    assert_eq!(asked.pending.merge.pieces().memory(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reply_beyond_the_limit_fails_and_its_worker_is_cancelled() {
    let mut asked = asked();
    let mut worker = Sender::new(&asked.root, 1, 0);
    asked.pending.accept(&worker.open, Some("w"), None);
    let letters = loop {
        let told = asked.pending.accept(&worker.send(&"x".repeat(10_000)), None, None);
        if asked.pending.is_over() {
            break told;
        }
    };
    assert!(letters.len() == 1 && letters[0].key == "w" && opens(&letters[0], &asked.root));
    let mut pieces = 0;
    let end = loop {
        match asked.event().unwrap() {
            ReplyEvent::Piece(_) => pieces += 1,
            other => break other,
        }
    };
    assert_eq!(pieces, MAX_TRANSCRIPT_BYTES / 5);
    assert!(matches!(end, ReplyEvent::Failed(failure) if failure.code == ErrorCode::ReplyTooLarge));
}
