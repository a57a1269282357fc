//! Many attempts, one text: rules C1 to C5, without any I/O.
//!
//! The broker may give a request to a second worker while the first still runs. Each attempt is a
//! stream of its own; what they agree on is the reply, and where they differ the later one wins.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::{fmt, mem};

use nsbridge_crypto::{ContentType, Opened, Read, ReplyHead, ReplyKind, ReplyOpener, ReplyRoot};
use nsbridge_protocol::{
    AttemptNo, ControlKind, Failure, Fingerprint, Open, Pieces, Resume, Revision, StreamId, Summary,
};

/// Frames of one stream that may wait for their turn; a worker's window holds no more.
const MAX_AHEAD: usize = 256;

/// Bytes of frames that came before their stream's open: some thousand pieces.
const MAX_EARLY_BYTES: usize = 1 << 20;

/// Streams of one request that are followed at once.
const MAX_STREAMS: usize = 4;

/// The bytes of a piece that every attempt must agree on.
pub(crate) type SeamOf = fn(&[u8]) -> Cow<'_, [u8]>;

/// What one frame led to, for the caller or for a worker.
#[derive(PartialEq, Eq)]
pub(crate) enum Step {
    /// The next piece of the reply.
    Piece(Vec<u8>),
    /// A later attempt differs from here on: the pieces after the first `kept` are withdrawn.
    Restarted { kept: usize },
    /// The reply is complete.
    Done(Summary),
    /// The worker ended the request without a reply.
    Failed(Failure),
    /// Tell the worker of the stream that was just opened, under the root of its enqueue.
    Tell { enqueue: usize, kind: ControlKind, body: Vec<u8> },
}

impl fmt::Debug for Step {
    /// Leaves out what the reply says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Piece(piece) => write!(f, "Piece({} bytes)", piece.len()),
            Self::Restarted { kept } => write!(f, "Restarted({kept})"),
            Self::Done(summary) => write!(f, "Done({summary:?})"),
            Self::Failed(failure) => write!(f, "Failed({})", failure.code),
            Self::Tell { enqueue, kind, .. } => write!(f, "Tell({enqueue}, {kind:?})"),
        }
    }
}

/// The state of one request's reply.
pub(crate) struct Merge {
    /// One root per enqueue, in order.
    roots: Vec<ReplyRoot>,
    seam: SeamOf,
    pieces: Vec<Vec<u8>>,
    streams: Vec<Stream>,
    /// The stream that made the last piece, and its arithmetic.
    author: Option<(Rank, Option<Fingerprint>)>,
    /// The model's revision at the author; before there is one, at the stream that opened last.
    revision: Option<Revision>,
    state: State,
    /// A frame was missing before one that came.
    gap: bool,
    /// An end came that its stream's frames do not lead up to.
    broken_end: bool,
    heard: u64,
    /// Frames of streams whose open has not come yet, unread: after a reconnect it may be handed out
    /// behind them.
    early: VecDeque<Vec<u8>>,
    /// The highest stream that ended in `moved`: what it was of waits for its turn.
    moved: Option<Rank>,
    /// The enqueue that the latest open belongs to.
    answered: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Going,
    Over,
}

/// Decides disagreements, and nothing else: enqueue, attempt, time of opening, stream.
type Rank = (usize, AttemptNo, u64, StreamId);

struct Stream {
    opener: ReplyOpener,
    rank: Rank,
    fingerprint: Option<Fingerprint>,
    revision: Option<Revision>,
    /// The index of its next piece, once its first data frame said where it starts.
    position: Option<usize>,
    chunks: u64,
    /// Bytes of the reply up to `position`, as this stream has them.
    bytes: u64,
    stale: bool,
    /// Frames that came before their turn. After a reconnect the broker may hand out new frames
    /// ahead of those that the old connection held.
    ahead: BTreeMap<u64, Vec<u8>>,
}

impl fmt::Debug for Merge {
    /// Leaves out what the reply says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merge")
            .field("pieces", &self.pieces.len())
            .field("streams", &self.streams.len())
            .finish_non_exhaustive()
    }
}

impl Stream {
    fn keep(&mut self, seq: u64, frame: Vec<u8>) {
        if self.ahead.len() < MAX_AHEAD {
            self.ahead.entry(seq).or_insert(frame);
        }
    }

    /// The frame whose turn it is, if it came before.
    fn waiting(&mut self) -> Option<Vec<u8>> {
        self.ahead.remove(&self.opener.next())
    }
}

impl Merge {
    pub(crate) fn new(root: ReplyRoot, seam: SeamOf) -> Self {
        Self {
            roots: vec![root],
            seam,
            pieces: Vec::new(),
            streams: Vec::new(),
            author: None,
            revision: None,
            state: State::Going,
            gap: false,
            broken_end: false,
            heard: 0,
            early: VecDeque::new(),
            moved: None,
            answered: None,
        }
    }

    /// The request was sealed and enqueued once more: replies to that copy come under its own root.
    pub(crate) fn enqueued(&mut self, root: ReplyRoot) {
        self.roots.push(root);
        self.broken_end = false;
    }

    /// Pieces received so far.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// The model's revision that made the pieces so far, as far as their worker says.
    pub(crate) fn revision(&self) -> Option<&Revision> {
        self.revision.as_ref()
    }

    /// Whether a frame was missing before one that came.
    pub(crate) fn has_gap(&self) -> bool {
        self.gap
    }

    /// Whether an end came that does not fit what came before it: frames were lost on the way, and
    /// no worker knows.
    pub(crate) fn has_broken_end(&self) -> bool {
        self.broken_end
    }

    /// The enqueue whose copy was opened last, if any was.
    pub(crate) fn answered(&self) -> Option<usize> {
        self.answered
    }

    /// How often the request was enqueued.
    pub(crate) fn enqueues(&self) -> usize {
        self.roots.len()
    }

    /// Frames that a worker of this request made, heartbeats included.
    pub(crate) fn heard(&self) -> u64 {
        self.heard
    }

    /// Whether a worker opened the request, and none since said that it moves.
    pub(crate) fn has_streams(&self) -> bool {
        self.streams.iter().any(|stream| Some(stream.rank) > self.moved)
    }

    /// Whether another attempt than the one that ended may still run.
    pub(crate) fn has_rivals(&self) -> bool {
        self.streams.len() > 1
    }

    /// What seals control frames for the workers of one enqueue; those of another cannot open them.
    pub(crate) fn root(&self, enqueue: usize) -> Option<&ReplyRoot> {
        self.roots.get(enqueue)
    }

    /// Ends the request: from here on every open is answered with a cancel.
    pub(crate) fn end(&mut self) {
        self.state = State::Over;
        self.pieces = Vec::new();
        self.streams.clear();
        self.early.clear();
    }

    /// Takes a frame. One that was not made by a worker of this request leads to nothing.
    pub(crate) fn accept(&mut self, frame: &[u8]) -> Vec<Step> {
        let Ok(head) = ReplyHead::parse(frame) else { return Vec::new() };
        if head.kind == ReplyKind::Open {
            let mut steps: Vec<Step> = self.open(frame).into_iter().collect();
            let is_its = |frame: &Vec<u8>| {
                ReplyHead::parse(frame).is_ok_and(|early| early.stream == head.stream)
            };
            let early = mem::take(&mut self.early);
            let (its, others): (Vec<_>, Vec<_>) = early.into_iter().partition(is_its);
            self.early = others.into();
            steps.extend(its.iter().flat_map(|frame| self.accept(frame)));
            return steps;
        }
        if self.state == State::Over {
            return Vec::new();
        }
        let mut steps = Vec::new();
        let mut next = Some(frame.to_vec());
        while let Some(frame) = next {
            let Some(index) = self.find(head.stream) else {
                self.keep_early(frame);
                break;
            };
            self.read(index, &head, frame, &mut steps);
            next = self.find(head.stream).and_then(|index| self.streams[index].waiting());
        }
        steps
    }

    /// Nobody has verified it, so there is room for little.
    fn keep_early(&mut self, frame: Vec<u8>) {
        self.early.push_back(frame);
        let bytes = |early: &VecDeque<Vec<u8>>| early.iter().map(Vec::len).sum::<usize>();
        while self.early.len() > MAX_AHEAD || bytes(&self.early) > MAX_EARLY_BYTES {
            self.early.pop_front();
        }
    }

    fn find(&self, stream: StreamId) -> Option<usize> {
        self.streams.iter().position(|known| known.opener.stream() == stream)
    }

    fn read(&mut self, index: usize, head: &ReplyHead, frame: Vec<u8>, steps: &mut Vec<Step>) {
        match self.streams[index].opener.read(&frame) {
            Ok(Read::Frame(opened)) => {
                self.heard += 1;
                steps.extend(self.follow(index, &opened));
            }
            Ok(Read::Gap) => {
                self.heard += 1;
                self.gap = true;
                let end = matches!(head.kind, ReplyKind::FinalOk | ReplyKind::FinalError);
                self.broken_end |= end && !self.streams[index].stale;
                self.streams[index].keep(head.seq, frame);
            }
            Ok(Read::Duplicate) | Err(_) => {}
        }
    }

    /// Rule C1.
    fn open(&mut self, frame: &[u8]) -> Option<Step> {
        let tried = self.roots.iter().map(|root| ReplyOpener::accept(root, frame));
        let (enqueue, (opener, content)) =
            tried.enumerate().find_map(|(i, accepted)| Some((i, accepted.ok()?)))?;
        if self.find(opener.stream()).is_some() {
            return None;
        }
        self.heard += 1;
        self.answered = Some(enqueue);
        if self.state == State::Over {
            return Some(Step::Tell { enqueue, kind: ControlKind::Cancel, body: Vec::new() });
        }
        let open: Open = serde_json::from_slice(&content).ok()?;
        let rank = (enqueue, opener.attempt(), open.opened_at_ms, opener.stream());
        let retry = opener.attempt().is_retry();
        self.make_room();
        let (fingerprint, revision) = (open.fingerprint, open.revision);
        if self.author.is_none() {
            self.revision.clone_from(&revision);
        }
        let (position, chunks, bytes, stale, ahead) = (None, 0, 0, false, BTreeMap::new());
        self.streams.push(Stream {
            opener,
            rank,
            fingerprint,
            revision,
            position,
            chunks,
            bytes,
            stale,
            ahead,
        });
        let resume = retry && !self.pieces.is_empty();
        let kind = ControlKind::Resume;
        resume.then(|| Step::Tell { enqueue, kind, body: self.resume().encode() })
    }

    fn resume(&self) -> Resume {
        let fingerprint = self.author.and_then(|(_, fingerprint)| fingerprint);
        Resume { fingerprint, pieces: Pieces { first: 0, pieces: self.pieces.clone() } }
    }

    /// Forgets the stream that matters least, so that a flood of opens costs nothing.
    fn make_room(&mut self) {
        if self.streams.len() < MAX_STREAMS {
            return;
        }
        let least = (0..self.streams.len())
            .min_by_key(|i| (!self.streams[*i].stale, self.streams[*i].rank));
        if let Some(least) = least {
            self.streams.remove(least);
        }
    }

    fn follow(&mut self, index: usize, frame: &Opened) -> Vec<Step> {
        match frame.kind {
            ReplyKind::Data => {
                self.streams[index].chunks += 1;
                match pieces(frame) {
                    Some(pieces) => self.extend(index, pieces),
                    None => Vec::new(),
                }
            }
            ReplyKind::FinalOk => self.finish(index, &frame.content),
            ReplyKind::FinalError => self.fail(index, &frame.content),
            ReplyKind::Heartbeat | ReplyKind::Open => Vec::new(),
            // The stream is over and another follows.
            ReplyKind::Moved => {
                self.moved = self.moved.max(Some(self.streams.remove(index).rank));
                Vec::new()
            }
        }
    }

    /// Rules C3 and C4.
    fn extend(&mut self, index: usize, frame: Pieces) -> Vec<Step> {
        let first = frame.first as usize;
        let position = self.streams[index].position.unwrap_or(first);
        let fits =
            first == position && first <= self.pieces.len() && !self.is_foreign(index, first);
        if self.streams[index].stale || !fits {
            self.streams[index].stale = true;
            return Vec::new();
        }
        if self.streams[index].position.is_none() {
            self.streams[index].position = Some(first);
            self.streams[index].bytes = self.bytes(first);
        }
        let mut steps = Vec::new();
        for piece in frame.pieces {
            if !self.take(index, piece, &mut steps) {
                break;
            }
        }
        steps
    }

    /// Whether a stream that has no position yet goes on from pieces of another kind of worker than
    /// those that are here: they have changed since they were handed to its worker, or somebody
    /// repeated an older resume to it.
    fn is_foreign(&self, index: usize, first: usize) -> bool {
        let stream = &self.streams[index];
        let another = |(_, fingerprint)| fingerprint != stream.fingerprint;
        stream.position.is_none() && first > 0 && self.author.is_some_and(another)
    }

    /// Holds one piece against what is there; `false` if its stream has become stale.
    fn take(&mut self, index: usize, piece: Vec<u8>, steps: &mut Vec<Step>) -> bool {
        let at = self.streams[index].position.unwrap_or(0);
        let bytes = piece.len() as u64;
        match self.pieces.get(at) {
            Some(known) if (self.seam)(known) == (self.seam)(&piece) => {}
            Some(_) => {
                if !self.overrule(index, at, steps) {
                    return false;
                }
                self.push(index, piece, steps);
            }
            None => self.push(index, piece, steps),
        }
        self.streams[index].position = Some(at + 1);
        self.streams[index].bytes += bytes;
        true
    }

    fn bytes(&self, pieces: usize) -> u64 {
        self.pieces[..pieces].iter().map(|piece| piece.len() as u64).sum()
    }

    fn push(&mut self, index: usize, piece: Vec<u8>, steps: &mut Vec<Step>) {
        let stream = &self.streams[index];
        if self.author.is_none_or(|(author, _)| author != stream.rank) {
            self.author = Some((stream.rank, stream.fingerprint));
            self.revision.clone_from(&stream.revision);
        }
        self.pieces.push(piece.clone());
        steps.push(Step::Piece(piece));
    }

    /// A stream says that the reply differs from piece `kept` on. Believed if it outranks the one
    /// that made what is there, and nobody of a higher rank agrees with that.
    fn overrule(&mut self, index: usize, kept: usize, steps: &mut Vec<Step>) -> bool {
        let rank = self.streams[index].rank;
        let vouches = |other: &Stream| {
            !other.stale && other.rank > rank && other.position.is_some_and(|at| at > kept)
        };
        let outranks = self.author.is_none_or(|(author, _)| rank > author);
        if !outranks || self.streams.iter().any(vouches) {
            self.streams[index].stale = true;
            return false;
        }
        self.pieces.truncate(kept);
        steps.push(Step::Restarted { kept });
        for stream in &mut self.streams {
            // A higher one has not spoken up to here: it is heard when it does.
            stream.stale |= stream.rank < rank;
        }
        true
    }

    /// Rule C5.
    fn finish(&mut self, index: usize, content: &[u8]) -> Vec<Step> {
        let Ok(summary) = serde_json::from_slice::<Summary>(content) else { return Vec::new() };
        let stream = &self.streams[index];
        let claimed = usize::try_from(summary.pieces).unwrap_or(usize::MAX);
        // A stream without pieces goes on from all that its worker was handed, or says nothing.
        let position = stream.position.unwrap_or(claimed);
        if stream.stale {
            // The job is over for its worker, and this was the one that held it.
            let highest = self.streams.iter().map(|stream| stream.rank).max();
            self.broken_end |= highest == Some(stream.rank);
            return Vec::new();
        }
        let fits = position == claimed && position <= self.pieces.len();
        if !fits || self.is_foreign(index, position) {
            self.broken_end = true;
            return Vec::new();
        }
        let bytes = if stream.position.is_none() { self.bytes(position) } else { stream.bytes };
        if (stream.chunks, bytes) != (summary.chunks, summary.bytes) {
            self.broken_end = true;
            return Vec::new();
        }
        let mut steps = Vec::new();
        // An end before the end of what is there is a disagreement like any other.
        if position < self.pieces.len() && !self.overrule(index, position, &mut steps) {
            return steps;
        }
        steps.push(Step::Done(summary));
        steps
    }

    fn fail(&self, index: usize, content: &[u8]) -> Vec<Step> {
        match serde_json::from_slice::<Failure>(content) {
            Ok(failure) if !self.streams[index].stale => vec![Step::Failed(failure)],
            _ => Vec::new(),
        }
    }
}

fn pieces(frame: &Opened) -> Option<Pieces> {
    (frame.content_type == ContentType::Pieces).then(|| Pieces::decode(&frame.content).ok())?
}

#[cfg(test)]
mod tests;
