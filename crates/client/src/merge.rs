//! Merge of several attempts into one text: rules C1 to C5, without any I/O.
//!
//! The broker may deliver a request to a second worker while the first one still runs. Each attempt
//! sends one or more streams. The reply is the text on which the streams agree; where they differ, the
//! later stream wins.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::{fmt, mem};

use nsbridge_crypto::{ContentType, Opened, ReplyHead, ReplyKind, ReplyOpener, ReplyRoot};
use nsbridge_protocol::{
    AttemptNo, ControlKind, Fingerprint, Open, Pieces, Resume, Revision, StreamId, Summary,
};
use serde::de::DeserializeOwned;

use crate::merge::early::Early;
pub(crate) use crate::merge::step::Step;
use crate::merge::stream::{Rank, State, Stream, Taken};
use crate::piece_log::{PieceLog, too_large};

mod early;
mod step;
mod stream;

/// Maximum number of streams of a request that are followed at once.
const MAX_STREAMS: usize = 4;

/// Maximum number of former streams that are remembered, so that a repeated open cannot start them
/// again.
const MAX_GONE: usize = 64;

/// Function that returns the bytes of a piece on which all attempts must agree.
pub(crate) type ReplayKeyOf = fn(&[u8]) -> Cow<'_, [u8]>;

/// State of one request's reply.
pub(crate) struct Merge {
    /// Copies of the request in the order of enqueue.
    copies: Vec<RequestCopy>,
    replay_key: ReplayKeyOf,
    pieces: PieceLog,
    /// Followed streams. Ended streams stay until their slot is needed.
    streams: Vec<Stream>,
    /// Evicted streams, the newest last.
    gone: VecDeque<Gone>,
    early: Early,
    /// Rank and fingerprint of the stream that produced the last piece.
    author: Option<(Rank, Option<Fingerprint>)>,
    /// Revision of the model at the author; before there is an author, at the stream that opened
    /// last.
    revision: Option<Revision>,
    /// True once the request is done, failed or given up. Every further open is then answered with
    /// a cancel.
    over: bool,
    /// True if a final frame arrived that does not fit the frames before it.
    broken_end: bool,
    heard: u64,
    /// Stream that opened last, and its enqueue.
    newest: Option<(StreamId, usize)>,
    /// Highest rank of all streams that ever opened.
    highest: Option<Rank>,
    /// Highest rank of the streams that ended in `moved`. The copy of such a stream waits in a
    /// queue again.
    moved: Option<Rank>,
}

/// One enqueue of the request.
struct RequestCopy {
    root: ReplyRoot,
    opened: bool,
}

/// Stream that is no longer followed.
struct Gone {
    stream: StreamId,
    ended: bool,
}

impl fmt::Debug for Merge {
    /// Leaves out the text of the reply.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merge")
            .field("pieces", &self.pieces.len())
            .field("streams", &self.streams.len())
            .finish_non_exhaustive()
    }
}

impl Merge {
    pub(crate) fn new(root: ReplyRoot, replay_key: ReplayKeyOf) -> Self {
        Self {
            copies: vec![RequestCopy { root, opened: false }],
            replay_key,
            pieces: PieceLog::default(),
            streams: Vec::new(),
            gone: VecDeque::new(),
            early: Early::default(),
            author: None,
            revision: None,
            over: false,
            broken_end: false,
            heard: 0,
            newest: None,
            highest: None,
            moved: None,
        }
    }

    /// Begins after the pieces of an earlier client. Every stream of this client outranks the one
    /// that produced them.
    pub(crate) fn after(mut self, pieces: PieceLog, fingerprint: Option<Fingerprint>) -> Self {
        let before = (0, AttemptNo(0), 0, StreamId([0; 16]));
        self.author = (pieces.len() > 0).then_some((before, fingerprint));
        self.pieces = pieces;
        self
    }

    /// Records that the request was sealed and enqueued again. Replies to that copy use its own
    /// root.
    pub(crate) fn enqueued(&mut self, root: ReplyRoot) {
        self.copies.push(RequestCopy { root, opened: false });
        self.broken_end = false;
    }

    /// Returns the pieces received so far.
    pub(crate) fn pieces(&self) -> &PieceLog {
        &self.pieces
    }

    /// Returns the revision of the model that produced the pieces so far, as reported by its
    /// worker.
    pub(crate) fn revision(&self) -> Option<&Revision> {
        self.revision.as_ref()
    }

    /// Returns the attempt that produced the last piece.
    pub(crate) fn attempt(&self) -> Option<AttemptNo> {
        self.author.map(|((_, attempt, _, _), _)| attempt)
    }

    /// Returns the fingerprint of the worker that produced the last piece.
    pub(crate) fn fingerprint(&self) -> Option<Fingerprint> {
        self.author.and_then(|(_, fingerprint)| fingerprint)
    }

    /// Returns true if a frame is missing before one that arrived.
    pub(crate) fn has_gap(&self) -> bool {
        self.streams.iter().any(Stream::has_gap)
    }

    /// Returns true if a final frame arrived that does not fit the frames before it. Frames were
    /// then lost in transit, and no worker knows of the loss. Cleared when the request is enqueued
    /// again.
    pub(crate) fn has_broken_end(&self) -> bool {
        self.broken_end
    }

    /// Returns the stream that opened last, and its enqueue.
    pub(crate) fn newest(&self) -> Option<(StreamId, usize)> {
        self.newest
    }

    /// Returns the number of enqueues of the request.
    pub(crate) fn enqueues(&self) -> usize {
        self.copies.len()
    }

    /// Returns true if a worker has opened this copy.
    pub(crate) fn is_opened(&self, enqueue: usize) -> bool {
        self.copies.get(enqueue).is_some_and(|copy| copy.opened)
    }

    /// Returns the number of new valid frames from workers of this request, heartbeats included.
    pub(crate) fn heard(&self) -> u64 {
        self.heard
    }

    /// Returns true if a worker opened the request and the highest stream has not ended in `moved`.
    pub(crate) fn is_held(&self) -> bool {
        self.highest > self.moved
    }

    /// Returns true if the last frame of the stream was received.
    pub(crate) fn has_ended(&self, stream: StreamId) -> bool {
        match self.find(stream) {
            Some(index) => self.streams[index].state() == State::Ended,
            None => self.gone.iter().any(|gone| gone.stream == stream && gone.ended),
        }
    }

    /// Returns the root that seals control frames for the workers of one enqueue. Workers of
    /// another enqueue cannot open them.
    pub(crate) fn root(&self, enqueue: usize) -> Option<&ReplyRoot> {
        self.copies.get(enqueue).map(|copy| &copy.root)
    }

    /// Drops the pieces of a request that is over.
    pub(crate) fn discard(&mut self) {
        self.pieces = PieceLog::default();
    }

    /// Ends the request. Every further open is answered with a cancel. The pieces stay.
    pub(crate) fn end(&mut self) {
        self.over = true;
        self.early = Early::default();
        for stream in mem::take(&mut self.streams) {
            self.forget(stream.id(), stream.state() == State::Ended);
        }
    }

    /// Processes a frame. A frame that no worker of this request has made yields no steps.
    pub(crate) fn accept(&mut self, frame: &[u8]) -> Vec<Step> {
        let mut steps = Vec::new();
        let Ok(head) = ReplyHead::parse(frame) else { return steps };
        if self.gone.iter().any(|gone| gone.stream == head.stream) {
            return steps;
        }
        match self.find(head.stream) {
            None if head.kind == ReplyKind::Open => self.open(frame, &mut steps),
            _ if self.over => {}
            Some(index) => self.read(index, &head, frame, &mut steps),
            None => self.early.keep(frame),
        }
        steps
    }

    fn find(&self, stream: StreamId) -> Option<usize> {
        self.streams.iter().position(|known| known.id() == stream)
    }

    /// Reads a frame of a followed stream (rule C2).
    fn read(&mut self, index: usize, head: &ReplyHead, frame: &[u8], steps: &mut Vec<Step>) {
        match self.streams[index].take(head, frame) {
            Taken::Read(opened) => {
                self.heard += 1;
                let mut turn = Some(opened);
                while let Some(opened) = turn.filter(|_| !self.over) {
                    self.follow(index, &opened, steps);
                    turn = self.streams[index].turn();
                }
            }
            Taken::Kept => {
                self.heard += 1;
                if matches!(head.kind, ReplyKind::FinalOk | ReplyKind::FinalError) {
                    self.note_broken_end(index);
                }
            }
            Taken::Dropped => {}
        }
    }

    /// Verifies and adds a new stream (rule C1).
    fn open(&mut self, frame: &[u8], steps: &mut Vec<Step>) {
        let tried = self.copies.iter().map(|copy| ReplyOpener::accept(&copy.root, frame));
        let accepted = tried.enumerate().find_map(|(i, accepted)| Some((i, accepted.ok()?)));
        let Some((enqueue, (opener, content))) = accepted else { return };
        if self.over {
            self.forget(opener.stream(), false);
            steps.push(Step::Tell { enqueue, kind: ControlKind::Cancel, body: Vec::new() });
            return;
        }
        let Ok(open) = serde_json::from_slice::<Open>(&content) else { return };
        self.heard += 1;
        self.copies[enqueue].opened = true;
        if opener.attempt().is_retry() {
            let body = self.resume().encode();
            steps.push(Step::Tell { enqueue, kind: ControlKind::Resume, body });
        }
        let stream = Stream::new(opener, enqueue, open);
        if self.author.is_none() {
            self.revision.clone_from(&stream.revision);
        }
        let id = stream.id();
        self.newest = Some((id, enqueue));
        self.highest = self.highest.max(Some(stream.rank));
        self.make_room();
        self.streams.push(stream);
        let index = self.streams.len() - 1;
        for early in self.early.take(id) {
            if let Ok(head) = ReplyHead::parse(&early) {
                self.read(index, &head, &early, steps);
            }
        }
    }

    fn resume(&self) -> Resume {
        let fingerprint = self.fingerprint();
        Resume { fingerprint, pieces: Pieces { first: 0, pieces: self.pieces.to_vec() } }
    }

    /// Evicts the least important stream if all slots are taken. The stream of a killed worker
    /// never ends by itself.
    fn make_room(&mut self) {
        if self.streams.len() < MAX_STREAMS {
            return;
        }
        let all = self.streams.iter().enumerate();
        let least = all.min_by_key(|(_, stream)| (stream.is_live(), stream.rank));
        if let Some((least, _)) = least {
            let stream = self.streams.remove(least);
            self.forget(stream.id(), stream.state() == State::Ended);
        }
    }

    fn forget(&mut self, stream: StreamId, ended: bool) {
        if self.gone.len() == MAX_GONE {
            self.gone.pop_front();
        }
        self.gone.push_back(Gone { stream, ended });
    }

    fn follow(&mut self, index: usize, frame: &Opened, steps: &mut Vec<Step>) {
        match frame.kind {
            ReplyKind::Data => {
                self.streams[index].chunks += 1;
                match pieces(frame) {
                    Some(pieces) => self.extend(index, pieces, steps),
                    None => self.streams[index].distrust(),
                }
            }
            ReplyKind::Heartbeat | ReplyKind::Open => {}
            // Another stream follows.
            ReplyKind::Moved => {
                self.moved = self.moved.max(Some(self.streams[index].rank));
                self.streams[index].end();
            }
            ReplyKind::FinalOk | ReplyKind::FinalError => {
                if !self.conclude(index, frame, steps) {
                    self.note_broken_end(index);
                }
                self.streams[index].end();
            }
        }
    }

    /// Notes a final frame that did not end the request: its worker considers the job over. A stale
    /// stream counts only if it has the highest rank, because its worker then held the request.
    fn note_broken_end(&mut self, index: usize) {
        let stream = &self.streams[index];
        self.broken_end |= stream.is_live() || self.highest == Some(stream.rank);
    }

    /// Adds the pieces of a data frame (rules C3 and C4).
    fn extend(&mut self, index: usize, frame: Pieces, steps: &mut Vec<Step>) {
        if !self.streams[index].is_live() {
            return;
        }
        let first = frame.first as usize;
        let position = self.streams[index].position.unwrap_or(first);
        if first != position || first > self.pieces.len() || self.is_foreign(index, first) {
            self.streams[index].distrust();
            return;
        }
        if self.streams[index].position.is_none() {
            self.streams[index].position = Some(first);
            self.streams[index].bytes = self.pieces.bytes(first) as u64;
        }
        for piece in frame.pieces {
            if !self.take(index, piece, steps) {
                break;
            }
        }
    }

    /// Returns true if a stream without a position starts after pieces of a worker with another
    /// fingerprint. Either the pieces have changed since they were sent to the stream's worker, or
    /// an older resume was replayed to it.
    fn is_foreign(&self, index: usize, first: usize) -> bool {
        let stream = &self.streams[index];
        let another = |(_, fingerprint)| fingerprint != stream.fingerprint;
        stream.position.is_none() && first > 0 && self.author.is_some_and(another)
    }

    /// Compares one piece with the known pieces, or appends it. Returns false if the stream has
    /// become stale, or the reply too large.
    fn take(&mut self, index: usize, piece: Vec<u8>, steps: &mut Vec<Step>) -> bool {
        let at = self.streams[index].position.unwrap_or(0);
        let bytes = piece.len() as u64;
        match self.pieces.get(at) {
            Some(known) if (self.replay_key)(known) == (self.replay_key)(&piece) => {}
            Some(_) => {
                if !self.overrule(index, at, steps) || !self.push(index, piece, steps) {
                    return false;
                }
            }
            None => {
                if !self.push(index, piece, steps) {
                    return false;
                }
            }
        }
        self.streams[index].position = Some(at + 1);
        self.streams[index].bytes += bytes;
        true
    }

    /// Appends a piece. Returns false if the reply is too large.
    fn push(&mut self, index: usize, piece: Vec<u8>, steps: &mut Vec<Step>) -> bool {
        if !self.pieces.push(&piece) {
            self.over = true;
            steps.push(Step::Failed(too_large()));
            return false;
        }
        let stream = &self.streams[index];
        if self.author.is_none_or(|(author, _)| author != stream.rank) {
            self.author = Some((stream.rank, stream.fingerprint));
            self.revision.clone_from(&stream.revision);
        }
        steps.push(Step::Piece(piece));
        true
    }

    /// Handles a stream that differs from piece `kept` on. The stream wins if it outranks the
    /// author of the known pieces and no live stream of a higher rank agrees with them.
    fn overrule(&mut self, index: usize, kept: usize, steps: &mut Vec<Step>) -> bool {
        let rank = self.streams[index].rank;
        let vouches = |other: &Stream| {
            other.is_live() && other.rank > rank && other.position.is_some_and(|at| at > kept)
        };
        let outranks = self.author.is_none_or(|(author, _)| rank > author);
        if !outranks || self.streams.iter().any(vouches) {
            self.streams[index].distrust();
            return false;
        }
        self.pieces.truncate(kept);
        steps.push(Step::Restarted { kept });
        // A stream of higher rank has not reached this piece yet. It stays live and may overrule
        // later.
        self.streams.iter_mut().filter(|other| other.rank < rank).for_each(Stream::distrust);
        true
    }

    /// Handles a final frame (rule C5). Returns false if it is no valid end: frames are missing, or
    /// the stream is stale.
    fn conclude(&mut self, index: usize, frame: &Opened, steps: &mut Vec<Step>) -> bool {
        if !self.streams[index].is_live() {
            return false;
        }
        let end = match frame.kind {
            ReplyKind::FinalError => json(frame).map(Step::Failed),
            _ => self.finish(index, frame, steps).map(Step::Done),
        };
        self.over |= end.is_some();
        steps.extend(end);
        self.over
    }

    /// Returns the summary of a final-ok if it agrees with the frames before it.
    fn finish(&mut self, index: usize, frame: &Opened, steps: &mut Vec<Step>) -> Option<Summary> {
        let summary: Summary = json(frame)?;
        let stream = &self.streams[index];
        let claimed = usize::try_from(summary.pieces).ok()?;
        // A stream without data frames had nothing to add to the pieces that its worker was given.
        let position = stream.position.unwrap_or(claimed);
        if position != claimed || position > self.pieces.len() || self.is_foreign(index, position) {
            return None;
        }
        let bytes = match stream.position {
            Some(_) => stream.bytes,
            None => self.pieces.bytes(position) as u64,
        };
        let agrees = (stream.chunks, bytes) == (summary.chunks, summary.bytes);
        // An end before the last known piece is a disagreement (rule C4).
        if !agrees || (position < self.pieces.len() && !self.overrule(index, position, steps)) {
            return None;
        }
        Some(summary)
    }
}

fn pieces(frame: &Opened) -> Option<Pieces> {
    (frame.content_type == ContentType::Pieces).then(|| Pieces::decode(&frame.content).ok())?
}

fn json<T: DeserializeOwned>(frame: &Opened) -> Option<T> {
    (frame.content_type == ContentType::Plain)
        .then(|| serde_json::from_slice(&frame.content).ok())?
}

#[cfg(test)]
mod tests;
