//! Both halves of a transcript together, through the types that the handler uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use nsbridge_protocol::{MAX_PIECE_BYTES, MAX_TRANSCRIPT_BYTES, Pieces, RequestId};

use super::{ROOM_BYTES, Reader, Stop, transcript};
use crate::{AsyncJob, Job, JobInfo, Refused};

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

fn pieces(reader: &Reader, from: usize) -> Vec<String> {
    let mut frame = vec![0; 4];
    reader.read(from, usize::MAX, &mut frame);
    let pieces = Pieces::decode(&frame).unwrap().pieces;
    pieces.iter().map(|piece| serde_json::from_slice(piece).unwrap()).collect()
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
    assert_eq!(wakes.load(Ordering::Relaxed), 0);

    reader.sent(1);
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
    reader.sent(1);
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
    reader.sent(1);
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

#[test]
fn a_reply_beyond_the_limit_is_stopped_as_too_large() {
    let (job, reader) = job(None);
    let emitter = job.emitter();
    // Each piece adds two quotation marks and a length field of 4 bytes.
    let piece = "x".repeat((32 << 10) - 6);
    for index in 1..=MAX_TRANSCRIPT_BYTES >> 15 {
        emitter.try_emit(&piece).unwrap();
        reader.sent(index);
    }
    assert_eq!(emitter.try_emit(&"one more".into()), Err(Refused::Stopped(Stop::TooLarge)));
    assert_eq!(reader.stopped(), Some(Stop::TooLarge));
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
    let taken = |max| reader.read(0, max, &mut Vec::new());
    assert_eq!([taken(1), taken(8), taken(16), taken(23), taken(24)], [1, 1, 2, 2, 3]);
    assert_eq!(reader.bytes(), 12);
    assert_eq!(reader.waiting(2), 8);
}
