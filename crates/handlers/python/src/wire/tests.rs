//! Frames that are cut, wrong or left over.

use std::io::Write as _;
use std::os::unix::net::UnixStream as StdStream;

use super::{MAX_FRAME_BYTES, Wire, frame};
use crate::messages::{FromPython, ToSlot};

fn pair() -> (StdStream, Wire) {
    let (theirs, ours) = StdStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (theirs, Wire::new(ours).unwrap())
}

fn framed(json: &str) -> Vec<u8> {
    [&(json.len() as u32).to_be_bytes(), json.as_bytes()].concat()
}

#[tokio::test]
async fn frames_are_read_however_they_are_cut() {
    let frames = ["\"begun\"", "{\"piece\":{\"a\": [1, \"é\"]}}", "{\"at_most\":3}"].map(framed);
    let whole = frames.concat();
    for cut in 1..whole.len() {
        let (mut theirs, mut wire) = pair();
        theirs.write_all(&whole[..cut]).unwrap();
        let first = wire.next();
        let rest = async { theirs.write_all(&whole[cut..]).map(|()| drop(theirs)) };
        let (first, rest) = tokio::join!(first, rest);
        rest.unwrap();
        assert!(matches!(first.unwrap(), Some(FromPython::Begun)), "cut at {cut}");
        let Some(FromPython::Piece(piece)) = wire.next().await.unwrap() else { panic!("{cut}") };
        assert_eq!(piece.get(), "{\"a\": [1, \"é\"]}");
        assert_eq!(wire.last(), frames[1].len() - 4);
        assert!(matches!(wire.next().await.unwrap(), Some(FromPython::AtMost(3))));
        assert!(wire.next().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_frame_that_is_no_message_is_refused_without_being_quoted() {
    for content in [framed("{\"piece\":canary}"), framed("{\"canary\":1}"), framed("\u{7}canary")] {
        let (mut theirs, mut wire) = pair();
        theirs.write_all(&content).unwrap();
        let refused = wire.next().await.unwrap_err().to_string();
        assert!(!refused.contains("canary"), "{refused}");
    }
    let (mut theirs, mut wire) = pair();
    theirs.write_all(&(MAX_FRAME_BYTES as u32 + 1).to_be_bytes()).unwrap();
    assert!(wire.next().await.is_err());
}

#[tokio::test]
async fn a_socket_with_bytes_after_the_end_is_not_used_again() {
    let (mut theirs, mut wire) = pair();
    theirs.write_all(&[framed("\"begun\""), framed("\"resumed\"")].concat()).unwrap();
    wire.next().await.unwrap();
    assert!(wire.into_std().is_err());
}

#[test]
fn a_message_is_framed_with_its_length() {
    assert_eq!(frame(&ToSlot::Stop(7)).unwrap(), framed("{\"stop\":7}"));
}
