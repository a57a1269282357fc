//! Attempts that agree, differ, overlap, break off or send invalid frames.

use std::borrow::Cow;

use nsbridge_crypto::{ControlFrame, ReplyRoot, ReplySealer, seal_control};
use nsbridge_protocol::{
    AttemptNo, ControlKind, ErrorCode, Failure, Fingerprint, Pieces, ReplayKey, Resume,
};
use proptest::prelude::{Just, Strategy, any, prop, proptest};

use super::early::{MAX_EARLY, MAX_EARLY_BYTES};
use super::{Merge, Step};
use crate::piece_log::PieceLog;
use crate::scripted::{ID, Sender, root};

mod bounds;

fn merge(root: &ReplyRoot) -> Merge {
    Merge::new(root.clone(), |piece| Cow::Borrowed(piece))
}

/// Applies steps to the caller's text, and returns the number of restarts and true if the reply is
/// done.
fn apply(text: &mut String, steps: Vec<Step>) -> (usize, bool) {
    let (mut restarts, mut done) = (0, false);
    for step in steps {
        match step {
            Step::Piece(piece) => text.push_str(std::str::from_utf8(&piece).unwrap()),
            Step::Restarted { kept } => {
                text.truncate(kept);
                restarts += 1;
            }
            Step::Done(_) => done = true,
            Step::Failed(failure) => panic!("{failure:?}"),
            Step::Tell { .. } => {}
        }
    }
    (restarts, done)
}

#[test]
fn revision_and_attempt_are_those_of_the_pieces_whoever_opened_last() {
    let root = root();
    let (mut merge, mut text) = (merge(&root), String::new());
    let says = |merge: &Merge| merge.revision().map(ToString::to_string);
    assert_eq!((says(&merge), merge.attempt()), (None, None));
    let [mut one, mut two] = [1, 2].map(|attempt| Sender::new(&root, attempt, 0));
    merge.accept(&one.open);
    assert_eq!(says(&merge).as_deref(), Some("r1"));
    apply(&mut text, merge.accept(&one.send("hel")));
    merge.accept(&two.open);
    assert_eq!(says(&merge).as_deref(), Some("r1"));
    // The second attempt agrees with the known pieces and then continues.
    apply(&mut text, merge.accept(&two.send("hel")));
    assert_eq!((says(&merge).as_deref(), merge.attempt()), (Some("r1"), Some(AttemptNo(1))));
    apply(&mut text, merge.accept(&two.send("lo")));
    assert_eq!((says(&merge).as_deref(), text.as_str()), (Some("r2"), "hello"));
    assert_eq!(merge.attempt(), Some(AttemptNo(2)));
    merge.end();
    assert_eq!(says(&merge).as_deref(), Some("r2"), "it can be asked for after the end");
}

#[test]
fn a_client_that_continues_has_the_pieces_of_the_one_before() {
    let (root, fingerprint) = (root(), Fingerprint([7; 16]));
    let before = || vec![b"h".to_vec(), b"e".to_vec()];
    let epoch = 1 << 16 | 1;
    // A worker of this fingerprint is told of the pieces and goes on after them.
    let mut merge = merge(&root).after(PieceLog::of(&before()).unwrap(), Some(fingerprint));
    let mut worker = Sender::of(&root, epoch, 0, Some(fingerprint));
    let told = merge.accept(&worker.open);
    let [Step::Tell { kind: ControlKind::Resume, body, .. }] = &told[..] else {
        panic!("{told:?}")
    };
    let resume = Resume::decode(body).unwrap();
    assert_eq!((resume.fingerprint, resume.pieces.pieces), (Some(fingerprint), before()));
    (worker.next, worker.bytes) = (2, 2);
    let mut text = String::from("he");
    apply(&mut text, merge.accept(&worker.send("llo")));
    assert_eq!(apply(&mut text, merge.accept(&worker.finish())), (0, true));
    assert_eq!(text, "hello");
    // A worker that begins at the first piece is compared, and may overrule.
    let mut merge = self::merge(&root).after(PieceLog::of(&before()).unwrap(), None);
    let mut worker = Sender::of(&root, epoch, 0, Some(fingerprint));
    merge.accept(&worker.open);
    let mut text = String::from("he");
    assert_eq!(apply(&mut text, merge.accept(&worker.send("hallo"))).0, 1);
    assert_eq!(text, "hallo");
    // A worker that goes on from pieces of another fingerprint is not believed.
    let mut merge =
        self::merge(&root).after(PieceLog::of(&before()).unwrap(), Some(Fingerprint([8; 16])));
    let mut worker = Sender::of(&root, epoch, 0, Some(fingerprint));
    merge.accept(&worker.open);
    worker.next = 2;
    assert!(merge.accept(&worker.send("llo")).is_empty());
}

#[test]
fn one_attempt_in_order_gives_its_pieces_and_its_end() {
    let root = root();
    let (mut merge, mut one, mut text) = (merge(&root), Sender::new(&root, 1, 0), String::new());
    apply(&mut text, merge.accept(&one.open));
    apply(&mut text, merge.accept(&one.send("hel")));
    apply(&mut text, merge.accept(&one.send("lo")));
    assert!(apply(&mut text, merge.accept(&one.finish())).1);
    assert_eq!(text, "hello");
}

#[test]
fn c1_a_second_attempt_is_offered_the_pieces_and_continues_without_a_seam() {
    let root = root();
    let (mut merge, mut text) = (merge(&root), String::new());
    let (mut one, mut two) = (Sender::new(&root, 1, 0), Sender::new(&root, 2, 5));
    apply(&mut text, merge.accept(&one.open));
    apply(&mut text, merge.accept(&one.send("hel")));
    let told = merge.accept(&two.open);
    let [Step::Tell { kind: ControlKind::Resume, body, .. }] = told.as_slice() else {
        panic!("{told:?}")
    };
    assert_eq!(Resume::decode(body).unwrap().pieces.pieces.concat(), b"hel");
    // The second attempt resumes, so its first piece is the fourth. Without the resume it would
    // send all pieces again.
    two.next = 3;
    two.bytes = 3;
    apply(&mut text, merge.accept(&two.send("lo")));
    assert!(apply(&mut text, merge.accept(&two.finish())).1);
    assert_eq!(text, "hello");
}

#[test]
fn c3_an_attempt_that_says_it_all_again_repeats_nothing_to_the_caller() {
    let root = root();
    let (mut merge, mut text) = (merge(&root), String::new());
    let (mut one, mut two) = (Sender::new(&root, 1, 0), Sender::new(&root, 2, 5));
    for frame in [&one.open.clone(), &one.send("hel"), &two.open.clone(), &two.send("hello")] {
        apply(&mut text, merge.accept(frame));
    }
    // The first attempt is late and still agrees.
    apply(&mut text, merge.accept(&one.send("lo")));
    assert!(apply(&mut text, merge.accept(&two.finish())).1);
    assert_eq!(text, "hello");
}

#[test]
fn c4_where_attempts_differ_the_later_one_wins_and_says_so() {
    let root = root();
    let (mut merge, mut text) = (merge(&root), String::new());
    let (mut one, mut two) = (Sender::new(&root, 1, 0), Sender::new(&root, 2, 5));
    apply(&mut text, merge.accept(&one.open));
    apply(&mut text, merge.accept(&two.open));
    apply(&mut text, merge.accept(&one.send("help")));
    assert_eq!(merge.accept(&two.send("hello"))[0], Step::Restarted { kept: 3 });
    // The losing attempt runs to its end, and its frames are ignored.
    assert_eq!(merge.accept(&one.send("ful")), []);
    assert_eq!(merge.accept(&one.finish()), []);
    assert!(apply(&mut text, merge.accept(&two.finish())).1);
}

#[test]
fn c4_an_older_attempt_cannot_overrule_a_later_one() {
    let root = root();
    let (mut merge, mut text) = (merge(&root), String::new());
    let (mut one, mut two) = (Sender::new(&root, 1, 0), Sender::new(&root, 2, 5));
    apply(&mut text, merge.accept(&one.open));
    apply(&mut text, merge.accept(&two.open));
    apply(&mut text, merge.accept(&two.send("hello")));
    assert_eq!(merge.accept(&one.send("help")), []);
    assert_eq!(merge.accept(&one.finish()), []);
    assert!(apply(&mut text, merge.accept(&two.finish())).1);
    assert_eq!(text, "hello");
}

#[test]
fn c4_a_higher_attempt_that_has_not_spoken_yet_is_not_silenced_by_the_quarrel_of_others() {
    let root = root();
    let (mut merge, mut text) = (merge(&root), String::new());
    let [mut one, mut two, mut three] = [1, 2, 3].map(|n| Sender::new(&root, n, 0));
    for frame in [&one.open, &two.open, &three.open] {
        apply(&mut text, merge.accept(frame));
    }
    apply(&mut text, merge.accept(&one.send("help")));
    assert_eq!(apply(&mut text, merge.accept(&two.send("hell"))).0, 1);
    // The attempt that holds the request still counts, and decides.
    assert_eq!(apply(&mut text, merge.accept(&three.send("hello"))).0, 0);
    assert!(apply(&mut text, merge.accept(&three.finish())).1);
    assert_eq!(text, "hello");
}

#[test]
fn c4_what_a_higher_attempt_agrees_with_stands() {
    let root = root();
    let (mut merge, mut text) = (merge(&root), String::new());
    let [mut one, mut two, mut three] = [1, 2, 3].map(|n| Sender::new(&root, n, 0));
    for frame in [&one.open, &two.open, &three.open] {
        apply(&mut text, merge.accept(frame));
    }
    apply(&mut text, merge.accept(&one.send("help")));
    apply(&mut text, merge.accept(&three.send("help")));
    assert_eq!(merge.accept(&two.send("hell")), []);
    assert!(apply(&mut text, merge.accept(&three.finish())).1);
    assert_eq!(text, "help");
}

#[test]
fn a3_of_two_attempts_with_one_number_the_one_opened_later_wins() {
    let root = root();
    let (mut merge, mut text) = (merge(&root), String::new());
    let (mut late, mut early) = (Sender::new(&root, 2, 9), Sender::new(&root, 2, 5));
    for frame in [&late.open.clone(), &early.open.clone(), &early.send("abc")] {
        apply(&mut text, merge.accept(frame));
    }
    assert_eq!(apply(&mut text, merge.accept(&late.send("axy"))).0, 1);
    assert_eq!(text, "axy");
}

#[test]
fn c3_an_attempt_that_starts_beyond_what_is_here_is_not_believed() {
    let root = root();
    let (mut merge, mut two) = (merge(&root), Sender::new(&root, 2, 0));
    merge.accept(&two.open);
    two.next = 3;
    assert_eq!(merge.accept(&two.send("lo")), []);
    assert_eq!(merge.accept(&two.finish()), []);
}

/// An older resume that was replayed to a worker, or pieces that changed after it was sent.
#[test]
fn c3_an_attempt_that_goes_on_from_another_workers_pieces_is_not_believed() {
    let root = root();
    let of = |attempt, kind| Sender::of(&root, attempt, 0, Some(Fingerprint([kind; 16])));
    for ends_at_once in [false, true] {
        let (mut merge, mut text) = (merge(&root), String::new());
        let (mut one, mut two, mut three) = (of(1, 1), of(2, 2), of(3, 1));
        for frame in [&one.open.clone(), &one.send("hel"), &two.open.clone(), &two.send("HEL")] {
            apply(&mut text, merge.accept(frame));
        }
        merge.accept(&three.open);
        (three.next, three.bytes) = (3, 3);
        if !ends_at_once {
            assert_eq!(merge.accept(&three.send("lo")), []);
        }
        assert_eq!(merge.accept(&three.finish()), []);
        assert!(merge.has_broken_end(), "it is asked again");
        apply(&mut text, merge.accept(&two.send("LO")));
        assert!(apply(&mut text, merge.accept(&two.finish())).1);
        assert_eq!(text, "HELLO");
    }
}

#[test]
fn c2_frames_that_come_before_their_open_wait_for_it() {
    let root = root();
    let (mut merge, mut text) = (merge(&root), String::new());
    let mut one = Sender::new(&root, 1, 0);
    let (open, pieces) = (one.open.clone(), [one.send("hel"), one.send("lo")]);
    for early in [one.finish(), pieces[0].clone(), pieces[1].clone()] {
        assert_eq!(merge.accept(&early), []);
    }
    assert_eq!(merge.heard(), 0, "nobody knows who made them");
    assert!(apply(&mut text, merge.accept(&open)).1);
    assert_eq!(text, "hello");
}

#[test]
fn c2_frames_of_streams_that_never_open_take_little_room() {
    let root = root();
    let mut merge = merge(&root);
    let mut stranger = Sender::new(&root, 1, 0);
    for _ in 0..2 * MAX_EARLY {
        merge.accept(&stranger.send("x"));
    }
    assert_eq!(merge.early.len(), MAX_EARLY);
    for _ in 0..MAX_EARLY / 2 {
        merge.accept(&stranger.send(&"x".repeat(MAX_EARLY_BYTES / 64)));
    }
    assert!(merge.early.len() > 0 && merge.early.bytes() <= MAX_EARLY_BYTES);
}

#[test]
fn c2_a_missing_frame_holds_the_end_back_until_it_comes() {
    let root = root();
    let (mut merge, mut one, mut text) = (merge(&root), Sender::new(&root, 1, 0), String::new());
    apply(&mut text, merge.accept(&one.open));
    let (first, second) = (one.send("hel"), one.send("lo"));
    let end = one.finish();
    assert_eq!(merge.accept(&second), []);
    assert_eq!(merge.accept(&end), []);
    assert!(merge.has_gap());
    assert!(apply(&mut text, merge.accept(&first)).1, "the others were kept for their turn");
    assert_eq!(text, "hello");
    for frame in [&first, &second, &end] {
        assert_eq!(merge.accept(frame), []);
    }
}

#[test]
fn c2_a_forged_frame_that_comes_early_takes_nobodys_place() {
    let root = root();
    let (mut merge, mut one, mut text) = (merge(&root), Sender::new(&root, 1, 0), String::new());
    apply(&mut text, merge.accept(&one.open));
    let (first, second) = (one.send("hel"), one.send("lo"));
    let end = one.finish();
    for true_one in [&second, &end] {
        let mut forged = true_one.clone();
        *forged.last_mut().unwrap() ^= 1;
        assert_eq!(merge.accept(&forged), []);
    }
    assert!(!merge.has_gap() && !merge.has_broken_end());
    merge.accept(&second);
    merge.accept(&end);
    assert!(merge.has_broken_end());
    assert!(apply(&mut text, merge.accept(&first)).1);
    assert_eq!(text, "hello");
}

#[test]
fn c5_a_final_whose_counts_do_not_agree_ends_nothing() {
    let root = root();
    for wrong in 0..3 {
        let (mut merge, mut one) = (merge(&root), Sender::new(&root, 1, 0));
        merge.accept(&one.open);
        merge.accept(&one.send("hello"));
        let mut summary = one.summary();
        *[&mut summary.chunks, &mut summary.pieces, &mut summary.bytes][wrong] += 1;
        let end = one.sealer.seal_final_ok(&serde_json::to_vec(&summary).unwrap()).unwrap();
        assert_eq!(merge.accept(&end), []);
    }
}

#[test]
fn c5_an_end_before_the_end_of_what_is_here_is_a_disagreement() {
    let root = root();
    let (mut merge, mut text) = (merge(&root), String::new());
    let (mut one, mut two) = (Sender::new(&root, 1, 0), Sender::new(&root, 2, 5));
    for frame in [&one.open.clone(), &two.open.clone(), &one.send("hello"), &two.send("hel")] {
        apply(&mut text, merge.accept(frame));
    }
    let (restarts, done) = apply(&mut text, merge.accept(&two.finish()));
    assert_eq!((restarts, done, text.as_str()), (1, true, "hel"));
}

#[test]
fn c1_an_open_after_the_end_is_answered_with_a_cancel() {
    let root = root();
    let (mut merge, late) = (merge(&root), Sender::new(&root, 2, 0));
    merge.end();
    let cancel = Step::Tell { enqueue: 0, kind: ControlKind::Cancel, body: Vec::new() };
    assert_eq!(merge.accept(&late.open), [cancel]);
}

#[test]
fn a_stranger_on_the_broker_cannot_say_anything() {
    let (mine, strange) = (root(), root());
    let (mut merge, mut forged) = (merge(&mine), Sender::new(&strange, 9, 99));
    assert_eq!(merge.accept(&forged.open), []);
    assert_eq!(merge.accept(&forged.send("forged")), []);
    let control = seal_control(&mine, ID, ControlKind::Cancel, b"").unwrap();
    assert!(ControlFrame::parse(&control).unwrap().open(&mine).is_ok());
    for bytes in [&control[..], b"", b"NSBR", b"NSBE\x01\x00\x00\x01"] {
        assert_eq!(merge.accept(bytes), []);
    }
}

#[test]
fn a_flood_of_opens_keeps_the_streams_that_matter() {
    let root = root();
    let (mut merge, mut text) = (merge(&root), String::new());
    let mut best = Sender::new(&root, 9, 0);
    apply(&mut text, merge.accept(&best.open));
    for _ in 0..20 {
        merge.accept(&Sender::new(&root, 1, 0).open);
    }
    assert!(merge.streams.len() <= super::MAX_STREAMS);
    apply(&mut text, merge.accept(&best.send("hello")));
    assert!(apply(&mut text, merge.accept(&best.finish())).1);
}

#[test]
fn a_workers_failure_is_passed_on() {
    let root = root();
    let (mut merge, one) = (merge(&root), Sender::new(&root, 1, 0));
    merge.accept(&one.open);
    let failure = Failure::new(ErrorCode::BadInput, "no".to_owned());
    let end = one.sealer.seal_final_error(&serde_json::to_vec(&failure).unwrap()).unwrap();
    assert_eq!(merge.accept(&end), [Step::Failed(failure)]);
}

#[test]
fn replay_keys_of_text_pieces_forgive_log_probabilities() {
    let root = root();
    let mut merge = Merge::new(root.clone(), nsbridge_protocol::TextPiece::replay_key);
    let [mut one, mut two] = [1, 2].map(|n| Sender::new(&root, n, 0).sealer_with_open(&mut merge));
    let mut send = |sender: &mut ReplySealer, json: &str| {
        let frame = sender.seal_pieces(|out| Pieces::write(out, 0, [json.as_bytes()].into_iter()));
        merge.accept(&frame.unwrap())
    };
    assert_eq!(send(&mut one, r#"{"token":1,"text":"a","logprob":-1.0}"#).len(), 1);
    assert_eq!(send(&mut two, r#"{"token":1,"text":"a","logprob":-1.1}"#), []);
}

proptest! {
    /// Two honest attempts, cut into arbitrary frames and interleaved arbitrarily, with transport
    /// duplicates: the caller receives the text once, in order, without a restart.
    #[test]
    fn honest_attempts_merge_into_one_text(
        text in "[a-z]{1,40}",
        (cuts, order) in prop::collection::vec(1usize..8, 1..40).prop_flat_map(|cuts| {
            (Just(cuts), prop::collection::vec((any::<bool>(), any::<bool>()), 200))
        }),
    ) {
        let root = root();
        let (mut merge, mut got) = (merge(&root), String::new());
        let mut queues = [1, 2].map(|attempt| {
            let mut sender = Sender::new(&root, attempt, u64::from(attempt));
            let mut frames = std::collections::VecDeque::from([sender.open.clone()]);
            let mut at = 0;
            for cut in cuts.iter().cycle() {
                if at == text.len() { break }
                let end = (at + cut).min(text.len());
                frames.push_back(sender.send(&text[at..end]));
                at = end;
            }
            frames.push_back(sender.finish());
            frames
        });
        let mut done = false;
        for (second, twice) in order {
            let Some(frame) = queues[usize::from(second)].pop_front() else { continue };
            for _ in 0..=usize::from(twice) {
                if done { break }
                let (restarts, over) = apply(&mut got, merge.accept(&frame));
                assert_eq!(restarts, 0);
                done |= over;
                assert!(text.starts_with(&got));
            }
        }
        if done { assert_eq!(got, text) }
    }
}
