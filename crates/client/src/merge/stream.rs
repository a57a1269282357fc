//! State of one attempt's reply stream.

use std::collections::BTreeMap;

use nsbridge_crypto::{Opened, Read, ReplyHead, ReplyKind, ReplyOpener};
use nsbridge_protocol::{AttemptNo, Fingerprint, Open, Revision, StreamId};

/// Maximum number of frames of a stream that wait for their turn. A worker's window holds no more.
pub(super) const MAX_AHEAD: usize = 256;

/// Rank of a stream, used only to resolve disagreements: enqueue, attempt, time of the open, stream
/// id.
pub(super) type Rank = (usize, AttemptNo, u64, StreamId);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Pieces of the stream count.
    Live,
    /// Frames are read in order to detect the end of the stream, but its pieces do not count.
    Stale,
    /// The last frame was read. No frame follows.
    Ended,
}

pub(super) struct Stream {
    opener: ReplyOpener,
    pub(super) rank: Rank,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) revision: Option<Revision>,
    /// Index of the next piece, known from the first data frame on.
    pub(super) position: Option<usize>,
    pub(super) chunks: u64,
    /// Bytes of the reply up to `position`, in this stream's version.
    pub(super) bytes: u64,
    state: State,
    /// Frames that arrived before their turn. After a reconnect the broker may deliver new frames
    /// before those that the old connection held.
    ahead: BTreeMap<u64, Vec<u8>>,
}

/// Result of taking a frame.
pub(super) enum Taken {
    /// The frame is next in order, and was opened.
    Read(Opened),
    /// The frame is new and valid, and is kept for its turn.
    Kept,
    /// The frame is a duplicate or invalid, or there is no space for it.
    Dropped,
}

impl Stream {
    pub(super) fn new(opener: ReplyOpener, enqueue: usize, open: Open) -> Self {
        Self {
            rank: (enqueue, opener.attempt(), open.opened_at_ms, opener.stream()),
            opener,
            fingerprint: open.fingerprint,
            revision: open.revision,
            position: None,
            chunks: 0,
            bytes: 0,
            state: State::Live,
            ahead: BTreeMap::new(),
        }
    }

    pub(super) fn id(&self) -> StreamId {
        self.opener.stream()
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// Marks the stream as stale: its pieces no longer count.
    pub(super) fn distrust(&mut self) {
        if self.is_live() {
            self.state = State::Stale;
        }
    }

    pub(super) fn end(&mut self) {
        self.state = State::Ended;
        self.ahead.clear();
    }

    /// Returns true if frames are missing before one that arrived.
    pub(super) fn has_gap(&self) -> bool {
        self.is_live() && !self.ahead.is_empty()
    }

    /// Takes a frame, in order or ahead of its turn (rule C2).
    pub(super) fn take(&mut self, head: &ReplyHead, frame: &[u8]) -> Taken {
        if self.ahead.contains_key(&head.seq) {
            return Taken::Dropped;
        }
        match self.opener.read(frame) {
            Ok(Read::Frame(opened)) => Taken::Read(opened),
            Ok(Read::Gap) if self.has_room(head.kind) => {
                self.ahead.insert(head.seq, frame.to_vec());
                Taken::Kept
            }
            Ok(Read::Gap | Read::Duplicate) | Err(_) => Taken::Dropped,
        }
    }

    /// Returns true if a frame can be kept ahead of its turn. One extra slot is reserved for a last
    /// frame, because it shows that the missing frames will not come.
    fn has_room(&self, kind: ReplyKind) -> bool {
        self.ahead.len() < MAX_AHEAD + usize::from(is_last(kind))
    }

    /// Returns the next frame in order if it arrived early.
    pub(super) fn turn(&mut self) -> Option<Opened> {
        let frame = self.ahead.remove(&self.opener.next_seq())?;
        match self.opener.read(&frame) {
            Ok(Read::Frame(opened)) => Some(opened),
            Ok(Read::Gap | Read::Duplicate) | Err(_) => None,
        }
    }
}

fn is_last(kind: ReplyKind) -> bool {
    match kind {
        ReplyKind::FinalOk | ReplyKind::FinalError | ReplyKind::Moved => true,
        ReplyKind::Open | ReplyKind::Data | ReplyKind::Heartbeat => false,
    }
}
