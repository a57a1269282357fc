//! Tests of reply streams: known answers, and a broker that reorders, truncates or splices frames.

use nsbridge_protocol::{AttemptNo, RequestId};
use serde::Deserialize;

use super::{OPEN_HEADER, Read, ReplyHead, ReplyKind, ReplyOpener, ReplySealer};
use crate::derive::ReplyRoot;
use crate::error::Error;
use crate::key::{Key, Salt};
use crate::pad::ContentType;

/// Known answers in `vectors/wire-v1.json`, derived by three independent programs.
pub(crate) struct Vectors {
    pub(crate) key: Key,
    pub(crate) request: Vec<u8>,
    pub(crate) reply_root: [u8; 32],
    attempt_salt: Salt,
    chunks: Vec<Vec<u8>>,
}

pub(crate) fn vectors() -> Vectors {
    #[derive(Deserialize)]
    struct File {
        key: String,
        request: String,
        reply_root: String,
        attempt_salt: String,
        chunks: Vec<String>,
    }
    let file: File = serde_json::from_str(include_str!("../../vectors/wire-v1.json")).unwrap();
    let fixed = |hex: &str| <[u8; 32]>::try_from(unhex(hex)).unwrap();
    Vectors {
        key: Key::from_bytes(fixed(&file.key)),
        request: unhex(&file.request),
        reply_root: fixed(&file.reply_root),
        attempt_salt: Salt(fixed(&file.attempt_salt)),
        chunks: file.chunks.iter().map(|hex| unhex(hex)).collect(),
    }
}

pub(crate) fn unhex(hex: &str) -> Vec<u8> {
    let digits = |i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn root(byte: u8) -> ReplyRoot {
    ReplyRoot([byte; 32].into())
}

const ID: [u8; 16] = [7; 16];

/// Seals an open, two data frames and a final.
fn stream(root: &ReplyRoot, id: [u8; 16]) -> Vec<Vec<u8>> {
    let id = RequestId::from_bytes(id);
    let (mut sealer, open) = ReplySealer::start(root, id, AttemptNo(1), b"{}").unwrap();
    let one = sealer.seal_pieces(|out| out.extend(b"one")).unwrap();
    let two = sealer.seal_pieces(|out| out.extend(b"two")).unwrap();
    vec![open, one, two, sealer.seal_final_ok(b"{}").unwrap()]
}

#[track_caller]
fn next(opener: &mut ReplyOpener, frame: &[u8]) -> (ReplyKind, Vec<u8>) {
    match opener.read(frame).unwrap() {
        Read::Frame(frame) => (frame.kind, frame.content),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_known_answers_are_reproduced_byte_for_byte() {
    let known = vectors();
    let root = ReplyRoot(known.reply_root.into());
    let id = ReplyHead::parse(&known.chunks[0]).unwrap().request;
    let salt = known.attempt_salt;
    let (mut sealer, open) =
        ReplySealer::start_with_salt(&root, id, AttemptNo(1), b"", salt).unwrap();
    assert_eq!(open, known.chunks[0]);
    for (text, chunk) in [b"Hel".as_slice(), b"lo"].iter().zip(&known.chunks[1..]) {
        let write = |out: &mut Vec<u8>| out.extend(*text);
        let frame = sealer.seal(ReplyKind::Data, &[], ContentType::Plain, write).unwrap();
        assert_eq!(frame, *chunk);
    }
    assert_eq!(sealer.seal_final_ok(br#"{"chunks":2,"bytes":5}"#).unwrap(), known.chunks[3]);

    let (mut opener, content) = ReplyOpener::accept(&root, &known.chunks[0]).unwrap();
    assert_eq!(content, b"");
    assert_eq!(next(&mut opener, &known.chunks[1]), (ReplyKind::Data, b"Hel".to_vec()));
}

#[test]
fn a_stream_reads_in_order_and_a_repeated_frame_is_ignored() {
    let frames = stream(&root(1), ID);
    let (mut opener, _) = ReplyOpener::accept(&root(1), &frames[0]).unwrap();
    assert_eq!(next(&mut opener, &frames[1]).1, b"one");
    assert_eq!(opener.read(&frames[1]).unwrap(), Read::Duplicate);
    assert_eq!(opener.read(&frames[0]).unwrap(), Read::Duplicate);
    assert_eq!(next(&mut opener, &frames[2]).1, b"two");
    assert_eq!(next(&mut opener, &frames[3]).0, ReplyKind::FinalOk);
}

#[test]
fn a_dropped_or_reordered_frame_shows_as_a_gap_and_can_still_come() {
    let frames = stream(&root(1), ID);
    let (mut opener, _) = ReplyOpener::accept(&root(1), &frames[0]).unwrap();
    let mut forged = frames[3].clone();
    *forged.last_mut().unwrap() ^= 1;
    assert!(opener.read(&forged).is_err(), "a frame that comes early is no less checked");
    assert_eq!(opener.read(&frames[2]).unwrap(), Read::Gap);
    assert_eq!(opener.read(&frames[3]).unwrap(), Read::Gap);
    assert_eq!(next(&mut opener, &frames[1]).1, b"one");
    assert_eq!(next(&mut opener, &frames[2]).1, b"two");
}

#[test]
fn an_early_final_cannot_be_forged_from_other_frames() {
    let frames = stream(&root(1), ID);
    let (mut opener, _) = ReplyOpener::accept(&root(1), &frames[0]).unwrap();
    // The kind is authenticated: data cannot become a final, nor a late final an early one.
    let mut forged = frames[1].clone();
    forged[6] = ReplyKind::FinalOk as u8;
    assert_eq!(opener.read(&forged), Err(Error::Tampered));
    let mut early = frames[3].clone();
    early[40..48].copy_from_slice(&1u64.to_be_bytes());
    assert_eq!(opener.read(&early), Err(Error::Tampered));
    assert_eq!(next(&mut opener, &frames[1]).1, b"one");
}

#[test]
fn frames_of_another_attempt_or_request_cannot_be_spliced_in() {
    let (first, second) = (stream(&root(1), ID), stream(&root(1), ID));
    let other = stream(&root(1), [8; 16]);
    let (mut opener, _) = ReplyOpener::accept(&root(1), &first[0]).unwrap();
    for foreign in [&second[1], &other[1]] {
        assert!(opener.read(foreign).is_err());
        let mut disguised = foreign.clone();
        disguised[8..40].copy_from_slice(&first[1][8..40]);
        assert_eq!(opener.read(&disguised), Err(Error::Tampered));
    }
    assert_eq!(next(&mut opener, &first[1]).1, b"one");
}

#[test]
fn every_bit_flip_and_every_truncation_of_a_reply_is_refused() {
    let frames = stream(&root(1), ID);
    let open = &frames[0];
    for bit in 0..open.len() * 8 {
        let mut changed = open.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(ReplyOpener::accept(&root(1), &changed).is_err(), "open, bit {bit}");
    }
    for end in 0..open.len() {
        assert!(ReplyOpener::accept(&root(1), &open[..end]).is_err(), "open cut at {end}");
    }
    let (mut opener, _) = ReplyOpener::accept(&root(1), open).unwrap();
    for bit in 0..frames[1].len() * 8 {
        let mut changed = frames[1].clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        // A changed sequence number is read as a gap or a repetition. The content is never
        // returned.
        assert!(!matches!(opener.read(&changed), Ok(Read::Frame(_))), "bit {bit}");
    }
    for end in 0..frames[1].len() {
        assert!(opener.read(&frames[1][..end]).is_err(), "cut at {end}");
    }
    assert_eq!(next(&mut opener, &frames[1]).1, b"one");
}

#[test]
fn an_open_for_another_sealing_is_told_from_a_changed_one() {
    let frames = stream(&root(1), ID);
    assert_eq!(ReplyOpener::accept(&root(2), &frames[0]).map(drop), Err(Error::WrongKey));
    let mut changed = frames[0].clone();
    changed[OPEN_HEADER] ^= 1;
    assert_eq!(ReplyOpener::accept(&root(1), &changed).map(drop), Err(Error::Tampered));
}

#[test]
fn two_attempts_never_share_a_key_even_with_the_same_number() {
    let (one, two) = (stream(&root(1), ID), stream(&root(1), ID));
    let ids = [&one[0], &two[0]].map(|open| ReplyHead::parse(open).unwrap().stream);
    assert_ne!(ids[0], ids[1]);
    assert_ne!(one[1][48..], two[1][48..], "equal plaintexts under equal numbers must differ");
}

#[test]
fn a_reply_frame_holds_the_largest_run_of_pieces() {
    let id = RequestId::from_bytes(ID);
    let (mut sealer, open) = ReplySealer::start(&root(1), id, AttemptNo(1), b"").unwrap();
    let most = vec![1; nsbridge_protocol::MAX_PIECE_BYTES];
    let frame = sealer.seal_pieces(|out| out.extend(&most)).unwrap();
    let (mut opener, _) = ReplyOpener::accept(&root(1), &open).unwrap();
    assert_eq!(next(&mut opener, &frame).1, most);
    assert!(sealer.seal_pieces(|out| out.resize(out.len() + (1 << 20), 0)).is_err());
    // The queue accepts the largest frame that can be sealed.
    let longest =
        sealer.seal_pieces(|out| out.resize(out.len() + super::MAX_CONTENT_BYTES, 0)).unwrap();
    assert!(longest.len() <= nsbridge_protocol::topology::REPLY_BODY);
}
