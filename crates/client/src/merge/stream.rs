//! One attempt's reply, as far as it was read.

use std::collections::BTreeMap;

use nsbridge_crypto::{Opened, Read, ReplyHead, ReplyKind, ReplyOpener};
use nsbridge_protocol::{AttemptNo, Fingerprint, Open, Revision, StreamId};

/// Frames of one stream that may wait for their turn; a worker's window holds no more.
pub(super) const MAX_AHEAD: usize = 256;

/// Decides disagreements, and nothing else: enqueue, attempt, time of opening, stream.
pub(super) type Rank = (usize, AttemptNo, u64, StreamId);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its pieces count.
    Live,
    /// Its frames are read in their turn, so that its end is seen; its pieces do not count.
    Stale,
    /// Its last frame was read. Nothing follows.
    Ended,
}

pub(super) struct Stream {
    opener: ReplyOpener,
    pub(super) rank: Rank,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) revision: Option<Revision>,
    /// The index of its next piece, once its first data frame said where it starts.
    pub(super) position: Option<usize>,
    pub(super) chunks: u64,
    /// Bytes of the reply up to `position`, as this stream has them.
    pub(super) bytes: u64,
    state: State,
    /// Frames that came before their turn. After a reconnect the broker may hand out new frames
    /// ahead of those that the old connection held.
    ahead: BTreeMap<u64, Vec<u8>>,
}

/// What became of a frame.
pub(super) enum Taken {
    /// Its turn has come.
    Read(Opened),
    /// It is new, true, and kept for its turn.
    Kept,
    /// It was here before, is not true, or there is no room for it.
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

    /// Its pieces do not count any more.
    pub(super) fn distrust(&mut self) {
        if self.is_live() {
            self.state = State::Stale;
        }
    }

    pub(super) fn end(&mut self) {
        self.state = State::Ended;
        self.ahead.clear();
    }

    /// Whether frames are missing before one that came.
    pub(super) fn has_gap(&self) -> bool {
        self.is_live() && !self.ahead.is_empty()
    }

    /// Rule C2.
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

    /// There is one place more for the last frame: it tells that what is missing will not come.
    fn has_room(&self, kind: ReplyKind) -> bool {
        self.ahead.len() < MAX_AHEAD + usize::from(is_last(kind))
    }

    /// The frame whose turn it is, if it came before.
    pub(super) fn turn(&mut self) -> Option<Opened> {
        let frame = self.ahead.remove(&self.opener.next())?;
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
