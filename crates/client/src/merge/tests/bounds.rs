//! Limits of the kept state, and the effect of repeated or invalid frames.

use nsbridge_crypto::{ContentType, Opened, ReplyKind, ReplyRoot, ReplySealer};
use nsbridge_protocol::{AttemptNo, ControlKind, ErrorCode, Failure, Fingerprint, Pieces, Resume};

use super::{apply, merge};
use crate::merge::early::{MAX_EARLY, MAX_EARLY_BYTES};
use crate::merge::stream::MAX_AHEAD;
use crate::merge::{MAX_GONE, Merge, State, Step, json, pieces};
use crate::scripted::{ID, Sender, root};

fn forged(frame: &[u8]) -> Vec<u8> {
    let mut forged = frame.to_vec();
    *forged.last_mut().unwrap() ^= 1;
    forged
}

fn failure(sealer: ReplySealer) -> Vec<u8> {
    let failure = Failure::new(ErrorCode::BadInput, "no".to_owned());
    sealer.seal_final_error(&serde_json::to_vec(&failure).unwrap()).unwrap()
}

/// Returns the attempts that are followed.
fn followed(merge: &Merge) -> Vec<u32> {
    merge.streams.iter().map(|stream| stream.rank.1.0).collect()
}

fn opened<const N: usize>(merge: &mut Merge, root: &ReplyRoot, numbers: [u32; N]) -> [Sender; N] {
    numbers.map(|number| {
        let sender = Sender::new(root, number, 0);
        merge.accept(&sender.open);
        sender
    })
}

#[test]
fn c1_an_attempt_after_the_first_is_told_what_is_here_though_it_is_nothing() {
    let root = root();
    let mut merge = merge(&root);
    assert_eq!(merge.accept(&Sender::new(&root, 1, 0).open), []);
    for number in [2, 1 << 16 | 1] {
        let other = Sender::of(&root, number, 0, Some(Fingerprint([1; 16])));
        let told = merge.accept(&other.open);
        let [Step::Tell { enqueue: 0, kind: ControlKind::Resume, body }] = told.as_slice() else {
            panic!("{told:?}")
        };
        let pieces = Pieces { first: 0, pieces: Vec::new() };
        assert_eq!(Resume::decode(body), Some(Resume { fingerprint: None, pieces }));
    }
}

#[test]
fn c1_an_open_that_is_not_json_is_dropped_and_a_late_one_is_cancelled() {
    let root = root();
    let open = |content: &[u8]| ReplySealer::start(&root, ID, AttemptNo(2), content).unwrap().1;
    for content in [&b""[..], b"{", b"[]", b"{}", b"\xff"] {
        let mut merge = merge(&root);
        assert_eq!(merge.accept(&open(content)), []);
        assert!(merge.heard() == 0 && merge.streams.is_empty() && !merge.is_opened(0));
        merge.end();
        let told = merge.accept(&open(content));
        assert!(matches!(told[..], [Step::Tell { kind: ControlKind::Cancel, .. }]), "{told:?}");
    }
}

#[test]
fn c1_an_open_after_the_end_is_answered_once() {
    let root = root();
    let (mut merge, late) = (merge(&root), Sender::new(&root, 2, 0));
    let [known] = opened(&mut merge, &root, [1]);
    merge.end();
    assert_eq!(merge.accept(&late.open).len(), 1);
    assert_eq!(merge.accept(&late.open), []);
    assert_eq!(merge.accept(&known.open), [], "its worker was told at the end");
}

#[test]
fn c1_a_fifth_stream_takes_the_place_of_the_one_that_matters_least() {
    let root = root();
    let mut merge = merge(&root);
    let [_, _, _, four] = opened(&mut merge, &root, [1, 2, 3, 4]);
    merge.accept(&four.moved());
    let [mut five] = opened(&mut merge, &root, [5]);
    assert_eq!(followed(&merge), [1, 2, 3, 5], "it had ended");
    five.next = 9;
    merge.accept(&five.send("x"));
    let _six = opened(&mut merge, &root, [6]);
    assert_eq!(followed(&merge), [1, 2, 3, 6], "it was stale");
    let _seven = opened(&mut merge, &root, [7]);
    assert_eq!(followed(&merge), [2, 3, 6, 7]);
    let _lowest = opened(&mut merge, &root, [1]);
    assert_eq!(followed(&merge), [3, 6, 7, 1], "never the new one");
}

#[test]
fn c1_a_stream_that_made_room_is_neither_read_nor_opened_again() {
    let root = root();
    let (mut merge, mut text) = (merge(&root), String::new());
    let [mut first] = opened(&mut merge, &root, [1]);
    apply(&mut text, merge.accept(&first.send("hel")));
    let [_, _, _, mut last] = opened(&mut merge, &root, [2, 3, 4, 5]);
    assert_eq!(followed(&merge), [2, 3, 4, 5]);
    let heard = merge.heard();
    for frame in [&first.send("lo"), &first.open] {
        assert_eq!(merge.accept(frame), []);
    }
    assert_eq!((merge.early.len(), merge.heard()), (0, heard));
    assert_eq!(followed(&merge), [2, 3, 4, 5]);
    last.next = 3;
    last.bytes = 3;
    apply(&mut text, merge.accept(&last.send("lo")));
    assert!(apply(&mut text, merge.accept(&last.finish())).1);
    assert_eq!(text, "hello");
}

#[test]
fn c1_a_bounded_number_of_streams_is_remembered() {
    let root = root();
    let mut merge = merge(&root);
    for number in 1..=100 {
        merge.accept(&Sender::new(&root, number, 0).open);
    }
    assert_eq!(merge.gone.len(), MAX_GONE);
}

#[test]
fn c2_what_follows_the_end_of_a_stream_takes_no_room() {
    let root = root();
    let mut merge = merge(&root);
    let [mut one] = opened(&mut merge, &root, [1]);
    let (open, data) = (one.open.clone(), one.send("hel"));
    let end = one.moved();
    for frame in [&data, &end] {
        merge.accept(frame);
    }
    let heard = merge.heard();
    for frame in [&data, &end, &open] {
        assert_eq!(merge.accept(frame), []);
    }
    assert_eq!((merge.early.len(), merge.heard(), merge.streams.len()), (0, heard, 1));
    assert_eq!(merge.streams[0].state(), State::Ended);
}

#[test]
fn c2_an_early_frame_that_is_repeated_takes_one_place() {
    let root = root();
    let (mut merge, mut one, mut text) = (merge(&root), Sender::new(&root, 1, 0), String::new());
    let (open, data) = (one.open.clone(), [one.send("hel"), one.send("lo")]);
    let end = one.finish();
    for frame in [&end, &data[1]].into_iter().chain(vec![&data[0]; MAX_EARLY]) {
        merge.accept(frame);
    }
    assert_eq!(merge.early.len(), 3);
    assert!(apply(&mut text, merge.accept(&open)).1);
    assert_eq!((text.as_str(), merge.early.len()), ("hello", 0));
}

#[test]
fn c2_every_early_frame_of_a_number_is_kept_until_the_open_tells_which_is_true() {
    let root = root();
    let (mut merge, mut one, mut text) = (merge(&root), Sender::new(&root, 1, 0), String::new());
    let (open, data) = (one.open.clone(), one.send("hello"));
    let end = one.finish();
    for frame in [&forged(&data), &data, &forged(&end), &end, &forged(&open)] {
        merge.accept(frame);
    }
    assert!(apply(&mut text, merge.accept(&open)).1);
    assert_eq!(text, "hello");
}

#[test]
fn c2_a_frame_that_is_larger_than_the_room_for_early_ones_takes_none_of_it() {
    let root = root();
    let (mut merge, mut one) = (merge(&root), Sender::new(&root, 1, 0));
    merge.accept(&one.send("hello"));
    let mut large = one.send("x");
    large.resize(MAX_EARLY_BYTES + 1, 0);
    merge.accept(&large);
    assert_eq!(merge.early.len(), 1);
    merge.end();
    merge.accept(&one.send("x"));
    assert_eq!(merge.early.len(), 0, "nothing comes of it any more");
}

#[test]
fn c2_a_repeated_frame_is_no_sign_of_life() {
    let root = root();
    let mut merge = merge(&root);
    let [mut one] = opened(&mut merge, &root, [1]);
    let (read, _lost, kept) = (one.send("h"), one.send("e"), one.send("l"));
    for frame in [&read, &kept] {
        merge.accept(frame);
    }
    assert_eq!(merge.heard(), 3, "the open and two frames");
    for frame in [&one.open, &read, &kept] {
        assert_eq!(merge.accept(frame), []);
    }
    assert_eq!(merge.heard(), 3);
}

#[test]
fn c2_the_end_has_a_place_though_no_other_frame_has() {
    let root = root();
    let mut merge = merge(&root);
    let [mut one] = opened(&mut merge, &root, [1]);
    let _lost = one.send("x");
    for _ in 0..MAX_AHEAD {
        merge.accept(&one.send("x"));
    }
    let heard = merge.heard();
    merge.accept(&one.send("x"));
    assert_eq!(merge.heard(), heard, "there is no room for it");
    merge.accept(&one.finish());
    assert!(merge.has_broken_end() && merge.heard() == heard + 1);
}

#[test]
fn c3_a_data_frame_without_sense_makes_its_stream_stale() {
    let root = root();
    let (mut merge, mut text) = (merge(&root), String::new());
    let [mut one, mut two] = opened(&mut merge, &root, [1, 2]);
    apply(&mut text, merge.accept(&one.send("hel")));
    let senseless = one.sealer.seal_pieces(|out| out.extend(b"\0\0")).unwrap();
    assert_eq!(merge.accept(&senseless), []);
    assert_eq!(merge.streams[0].state(), State::Stale);
    assert_eq!(merge.accept(&one.send("lo")), []);
    apply(&mut text, merge.accept(&two.send("hello")));
    assert!(apply(&mut text, merge.accept(&two.finish())).1);
    assert_eq!(text, "hello");
}

#[test]
fn a_content_of_another_type_than_its_frames_kind_cannot_be_read() {
    let opened = |content_type, content: &[u8]| {
        let content = content.to_vec();
        Opened { kind: ReplyKind::Data, content_type, content }
    };
    let (plain, of_pieces) = (ContentType::Plain, ContentType::Pieces);
    assert!(pieces(&opened(of_pieces, &[0; 4])).is_some());
    assert!(pieces(&opened(plain, &[0; 4])).is_none());
    assert_eq!(json(&opened(plain, b"1")), Some(1));
    assert_eq!(json::<u8>(&opened(of_pieces, b"1")), None);
}

#[test]
fn c4_a_stream_that_ended_vouches_for_nothing() {
    let root = root();
    for moves in [false, true] {
        let (mut merge, mut text) = (merge(&root), String::new());
        let [mut one, mut two, mut three] = opened(&mut merge, &root, [1, 2, 3]);
        apply(&mut text, merge.accept(&one.send("help")));
        apply(&mut text, merge.accept(&three.send("help")));
        three.chunks += u64::from(!moves);
        merge.accept(&if moves { three.moved() } else { three.finish() });
        assert_eq!(apply(&mut text, merge.accept(&two.send("hello"))).0, 1);
    }
}

#[test]
fn c5_an_end_that_cannot_be_read_is_one_whose_counts_do_not_agree() {
    let root = root();
    for content in [&b""[..], b"{", b"[1]", b"{\"chunks\":0,\"bytes\":\"0\",\"pieces\":0}"] {
        for fails in [false, true] {
            let mut merge = merge(&root);
            let [one] = opened(&mut merge, &root, [1]);
            let end = if fails {
                one.sealer.seal_final_error(content)
            } else {
                one.sealer.seal_final_ok(content)
            };
            assert_eq!(merge.accept(&end.unwrap()), []);
            assert!(merge.has_broken_end());
            merge.enqueued(root.clone());
            assert!(!merge.has_broken_end(), "until another comes");
        }
    }
}

#[test]
fn c6_the_highest_stream_that_ends_stale_is_a_broken_end_however_it_ends() {
    let root = root();
    for fails in [false, true] {
        let mut merge = merge(&root);
        let [mut one, mut two] = opened(&mut merge, &root, [1, 2]);
        for sender in [&mut one, &mut two] {
            sender.next = 9;
            merge.accept(&sender.send("x"));
        }
        let end = |sender: Sender| match fails {
            true => failure(sender.sealer),
            false => sender.finish(),
        };
        assert_eq!(merge.accept(&end(one)), []);
        assert!(!merge.has_broken_end(), "another is above it");
        assert_eq!(merge.accept(&end(two)), []);
        assert!(merge.has_broken_end());
    }
}

#[test]
fn c6_a_stream_below_one_that_moved_and_made_room_is_not_the_highest() {
    let root = root();
    let mut merge = merge(&root);
    let [nine] = opened(&mut merge, &root, [9]);
    merge.accept(&nine.moved());
    let [.., mut four] = opened(&mut merge, &root, [1, 2, 3, 4]);
    assert_eq!(followed(&merge), [1, 2, 3, 4]);
    four.next = 9;
    merge.accept(&four.send("x"));
    merge.accept(&four.finish());
    assert!(!merge.has_broken_end() && !merge.is_held());
}
