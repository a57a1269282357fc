//! Both halves of a transcript together, through the types that the handler uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use nsbridge_protocol::{MAX_PIECE_BYTES, MAX_TRANSCRIPT_BYTES, Pieces, RequestId};

use super::{Cursor, ROOM_BYTES, Reader, StartAt, Stop, transcript};
use crate::emitter::Refused;
use crate::job::{AsyncJob, Job, JobInfo};

fn info() -> JobInfo {
    JobInfo::new(RequestId::from_bytes([7; 16]), "someone".parse().unwrap(), 0)
}

fn job(resume: Option<Pieces>) -> (AsyncJob<String>, Reader) {
    let (writer, reader) = transcript();
    (AsyncJob::new(info(), writer, resume), reader)
}

/// Piece that leaves no space for another.
fn filler() -> String {
    "x".repeat(ROOM_BYTES)
}

/// Decodes the pieces from this index on.
fn pieces(reader: &Reader, from: usize) -> Vec<String> {
    texts(&reader.pieces().pieces[from..])
}

fn texts(pieces: &[Vec<u8>]) -> Vec<String> {
    pieces.iter().map(|piece| serde_json::from_slice(piece).unwrap()).collect()
}

/// Reads one batch of at most `max` bytes. Returns its first index and its pieces.
fn batch(cursor: &mut Cursor, max: usize) -> (u32, Vec<String>) {
    let mut list = Vec::new();
    let count = cursor.read(max, &mut list);
    let read = Pieces::decode(&list).unwrap();
    assert_eq!(read.len(), count);
    (read.first, texts(&read.pieces))
}

#[test]
fn a_full_transcript_refuses_and_reading_wakes_the_engine() {
    let (job, reader) = job(None);
    let emitter = job.emitter();
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = wakes.clone();
    emitter.on_change(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });

    emitter.try_emit(&filler()).unwrap();
    assert_eq!(emitter.try_emit(&"next".into()), Err(Refused::Full));
    let mut cursor = reader.cursor(StartAt::PieceZero);
    assert_eq!(cursor.read(1, &mut Vec::new()), 1);
    assert_eq!(emitter.try_emit(&"next".into()), Err(Refused::Full), "it is not sent yet");
    assert_eq!(wakes.load(Ordering::Relaxed), 0);

    cursor.mark_sent();
    assert_eq!(wakes.load(Ordering::Relaxed), 1);
    emitter.try_emit(&"next".into()).unwrap();
    assert_eq!(pieces(&reader, 1), ["next"]);
}

#[tokio::test(flavor = "current_thread")]
async fn reading_lets_a_waiting_emit_go_on() {
    let (mut job, reader) = job(None);
    job.emit(filler()).await.unwrap();
    let mut waiting = Box::pin(job.emit("next".into()));
    assert!(waiting.as_mut().now_or_never().is_none());
    reader.mark_all_sent();
    tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap();
    assert_eq!(reader.len(), 2);
}

#[tokio::test(flavor = "current_thread")]
async fn a_stop_ends_a_waiting_emit_and_the_first_reason_stays() {
    let (mut job, reader) = job(None);
    job.emit(filler()).await.unwrap();
    let mut waiting = Box::pin(job.emit("next".into()));
    assert!(waiting.as_mut().now_or_never().is_none());
    reader.stop(Stop::Deadline);
    reader.stop(Stop::Cancelled);
    let ended = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap();
    assert_eq!(ended, Err(Stop::Deadline));
    assert_eq!(job.check(), Err(Stop::Deadline));
    assert_eq!(job.stopped().await, Stop::Deadline);
    assert_eq!(reader.len(), 1);
}

/// Starts a thread that emits into a full transcript, and waits until it blocks.
fn blocked() -> (std::thread::JoinHandle<Result<(), Stop>>, Reader) {
    let (writer, reader) = transcript();
    let mut job: Job<String> = Job::new(info(), writer, None);
    job.emit(filler()).unwrap();
    let (sender, thread) = std::sync::mpsc::channel();
    let emitting = std::thread::spawn(move || {
        // The folder of a thread, which tells its state after its name: S if it sleeps.
        sender.send(std::fs::canonicalize("/proc/thread-self").unwrap()).unwrap();
        job.emit("next".into())
    });
    let state = thread.recv().unwrap().join("stat");
    let started = Instant::now();
    while !std::fs::read_to_string(&state).unwrap().contains(") S ") {
        assert!(started.elapsed() < Duration::from_secs(20), "it does not block");
        std::thread::yield_now();
    }
    (emitting, reader)
}

#[test]
fn reading_lets_a_blocked_thread_go_on() {
    let (emitting, reader) = blocked();
    reader.mark_all_sent();
    assert_eq!(emitting.join().unwrap(), Ok(()));
    assert_eq!(pieces(&reader, 1), ["next"]);
}

#[test]
fn a_stop_ends_a_blocked_emit() {
    let (emitting, reader) = blocked();
    reader.stop(Stop::Deadline);
    assert_eq!(emitting.join().unwrap(), Err(Stop::Deadline));
    assert_eq!(reader.len(), 1);
}

#[test]
fn a_reader_that_is_dropped_ends_a_blocked_emit() {
    let (emitting, reader) = blocked();
    drop(reader);
    assert_eq!(emitting.join().unwrap(), Err(Stop::HandOff));
}

#[test]
fn a_stop_wakes_the_engine() {
    let (job, reader) = job(None);
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = wakes.clone();
    job.emitter().on_change(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    reader.stop(Stop::ClientGone);
    assert_eq!(wakes.load(Ordering::Relaxed), 1);
    assert_eq!(job.emitter().try_emit(&"late".into()), Err(Refused::Stopped(Stop::ClientGone)));
}

/// Emits 255 pieces of 32 KiB each, which leaves 32 KiB of the largest reply, and then one of `size`
/// bytes. Each piece has 6 bytes more than its text: quotation marks and a length field.
#[track_caller]
fn check_last_piece(size: usize, expected: Result<(), Refused>) {
    let (job, reader) = job(None);
    let emitter = job.emitter();
    for _ in 1..MAX_TRANSCRIPT_BYTES >> 15 {
        emitter.try_emit(&"x".repeat((32 << 10) - 6)).unwrap();
        reader.mark_all_sent();
    }
    assert_eq!(emitter.try_emit(&"x".repeat(size - 6)), expected);
    assert_eq!(reader.stopped(), expected.err().map(|_| Stop::TooLarge));
}

#[test]
fn a_reply_beyond_the_limit_is_stopped_as_too_large() {
    check_last_piece(32 << 10, Ok(()));
    check_last_piece((32 << 10) + 1, Err(Refused::Stopped(Stop::TooLarge)));
}

#[test]
fn a_piece_beyond_the_limit_is_stopped_as_too_large() {
    let (job, _reader) = job(None);
    let piece = "x".repeat(MAX_PIECE_BYTES);
    assert_eq!(job.emitter().try_emit(&piece), Err(Refused::Stopped(Stop::TooLarge)));
}

#[test]
fn nothing_is_taken_after_the_return() {
    let (job, reader) = job(None);
    let leaked = job.emitter();
    drop(job);
    reader.close();
    assert!(matches!(leaked.try_emit(&"late".into()), Err(Refused::Stopped(_))));
    assert!(reader.is_empty());
}

#[test]
fn resumed_pieces_stand_before_the_new_ones_and_take_no_room() {
    let offered = Pieces {
        first: 0,
        pieces: vec![serde_json::to_vec(&filler()).unwrap(), b"\"b\"".to_vec()],
    };
    let (mut job, reader) = job(Some(offered));
    assert_eq!(reader.resumed(), 0);
    assert_eq!(job.accept_resume()[1], "b");
    job.emitter().try_emit(&"c".into()).unwrap();
    assert_eq!((reader.resumed(), reader.len()), (2, 3));
    assert_eq!(pieces(&reader, 1), ["b", "c"]);
    assert_eq!(job.accept_resume().len(), 2);
}

#[test]
fn nothing_is_resumed_after_the_first_piece() {
    let offered = Pieces { first: 0, pieces: vec![b"\"a\"".to_vec(), b"\"b\"".to_vec()] };
    let (mut job, reader) = job(Some(offered));
    job.emitter().try_emit(&"a".into()).unwrap();
    assert!(job.accept_resume().is_empty());
    job.emitter().try_emit(&"b".into()).unwrap();
    assert_eq!((reader.resumed(), reader.len()), (0, 2));
    assert_eq!(pieces(&reader, 0), ["a", "b"]);
}

#[test]
fn pieces_of_another_type_are_not_resumed() {
    let offered = Pieces { first: 0, pieces: vec![b"\"a\"".to_vec(), b"7".to_vec()] };
    let (mut job, reader) = job(Some(offered));
    assert!(job.accept_resume().is_empty());
    assert_eq!((reader.resumed(), reader.len()), (0, 0));
}

#[test]
fn a_read_takes_whole_pieces_up_to_its_limit_and_at_least_one() {
    let (job, reader) = job(None);
    for text in ["aa", "bb", "cc"] {
        job.emitter().try_emit(&text.into()).unwrap();
    }
    let read = |max| reader.cursor(StartAt::PieceZero).read(max, &mut Vec::new());
    assert_eq!([read(1), read(8), read(16), read(23), read(24)], [1, 1, 2, 2, 3]);
    assert_eq!(reader.bytes(), 12);
}

#[tokio::test(flavor = "current_thread")]
async fn a_cursor_hands_out_each_piece_once_and_in_order() {
    let (job, reader) = job(None);
    let mut cursor = reader.cursor(StartAt::FirstNew);
    assert!(cursor.is_at_end());
    assert!(cursor.wait_for_bytes(1).now_or_never().is_none());
    let mut nothing = Vec::new();
    assert_eq!((cursor.read(usize::MAX, &mut nothing), nothing.len()), (0, 0));
    for text in ["aa", "bb", "cc"] {
        job.emitter().try_emit(&text.into()).unwrap();
    }
    assert_eq!(batch(&mut cursor, 16), (0, vec!["aa".to_owned(), "bb".to_owned()]));
    assert_eq!((cursor.position(), cursor.is_at_end()), (2, false));
    assert!(cursor.wait_for_bytes(8).now_or_never().is_some());
    assert!(cursor.wait_for_bytes(9).now_or_never().is_none());
    assert_eq!(batch(&mut cursor, 16), (2, vec!["cc".to_owned()]));
    assert!(cursor.is_at_end());
}

#[test]
fn a_cursor_begins_after_resumed_pieces_or_with_them() {
    let offered = Pieces { first: 0, pieces: vec![b"\"a\"".to_vec(), b"\"b\"".to_vec()] };
    let (mut job, reader) = job(Some(offered));
    // Both streams are open before the handler accepts the pieces.
    let mut new = reader.cursor(StartAt::FirstNew);
    let mut all = reader.cursor(StartAt::PieceZero);
    assert_eq!((new.position(), all.position()), (0, 0));
    job.accept_resume();
    assert_eq!((new.position(), all.position()), (2, 0));
    assert_eq!((new.is_at_end(), all.is_at_end()), (true, false));
    job.emitter().try_emit(&"c".into()).unwrap();
    assert_eq!(batch(&mut new, usize::MAX), (2, vec!["c".to_owned()]));
    assert_eq!(batch(&mut all, usize::MAX).0, 0);
    assert_eq!((new.position(), all.position()), (3, 3));
}
