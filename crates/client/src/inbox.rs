//! Position of a caller in its reply, and the events that it has yet to be told.

use std::collections::VecDeque;
use std::fmt;
use std::task::Waker;

use nsbridge_protocol::{ErrorCode, Failure, Summary};

use crate::piece_log::PieceLog;

/// Maximum number of hints that the caller of a request receives.
pub(crate) const MOST_HINTS: usize = 16;

/// Notification for the caller of a request.
pub(crate) enum ReplyEvent {
    Piece(Vec<u8>),
    Restarted {
        kept: usize,
    },
    Done(Summary),
    Failed(Failure),
    /// Unsealed hint. It never changes the state of the request.
    Hint(ErrorCode),
}

impl fmt::Debug for ReplyEvent {
    /// Leaves out the text of the reply.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Piece(_) => "Piece",
            Self::Restarted { .. } => "Restarted",
            Self::Done(_) => "Done",
            Self::Failed(_) => "Failed",
            Self::Hint(_) => "Hint",
        })
    }
}

/// Position of the caller in the pieces of its reply.
///
/// The pieces themselves are in the log of the merge, so a caller that reads slowly takes no more
/// memory than one that reads fast, and holds up nothing.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Number of pieces that the caller has.
    read: usize,
    /// Number of pieces that a restart has left to the caller, which was not told of it yet.
    kept: Option<usize>,
    hints: VecDeque<ErrorCode>,
    /// Number of hints so far.
    hinted: usize,
    /// Last event, due after the last piece.
    end: Option<ReplyEvent>,
    waker: Option<Waker>,
}

impl Inbox {
    /// Creates the inbox of a caller that has the first `read` pieces.
    pub(crate) fn after(read: usize) -> Self {
        Self { read, ..Self::default() }
    }

    /// Records that only the first `kept` pieces stand. A restart beyond the caller's position
    /// concerns no piece that it has.
    pub(crate) fn restart(&mut self, kept: usize) {
        if kept < self.read {
            self.read = kept;
            self.kept = Some(kept);
        }
    }

    /// Adds a hint. Any publisher can send any number of hints, so their number is limited.
    pub(crate) fn hint(&mut self, code: ErrorCode) {
        if self.hinted < MOST_HINTS {
            self.hinted += 1;
            self.hints.push_back(code);
        }
    }

    /// Sets the last event.
    pub(crate) fn end(&mut self, event: ReplyEvent) {
        self.end = Some(event);
    }

    /// Returns the next event, if there is one.
    pub(crate) fn next(&mut self, log: &PieceLog) -> Option<ReplyEvent> {
        if let Some(kept) = self.kept.take() {
            return Some(ReplyEvent::Restarted { kept });
        }
        if let Some(code) = self.hints.pop_front() {
            return Some(ReplyEvent::Hint(code));
        }
        if let Some(piece) = log.get(self.read) {
            self.read += 1;
            return Some(ReplyEvent::Piece(piece.to_vec()));
        }
        self.end.take()
    }

    /// Sets what wakes the caller when there is a new event.
    pub(crate) fn wake_by(&mut self, waker: &Waker) {
        match &mut self.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Wakes the caller.
    pub(crate) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, prop, prop_oneof, proptest};

    use super::{Inbox, ReplyEvent};
    use crate::piece_log::{PieceLog, too_large};

    #[derive(Clone, Debug)]
    enum Act {
        /// The merge has a piece more.
        Piece(u8),
        /// The merge keeps this part of its pieces, in 16ths.
        Restart(usize),
        /// The caller reads this number of events.
        Read(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            (0..4_u8).prop_map(Act::Piece),
            (0..16_usize).prop_map(Act::Restart),
            (0..6_usize).prop_map(Act::Read),
            Just(Act::Read(1)),
        ]
    }

    /// Reads up to `most` events into `text`. Returns true at the end of the reply.
    fn read(inbox: &mut Inbox, log: &PieceLog, text: &mut Vec<Vec<u8>>, most: usize) -> bool {
        for _ in 0..most {
            match inbox.next(log) {
                None => return false,
                Some(ReplyEvent::Piece(piece)) => text.push(piece),
                Some(ReplyEvent::Restarted { kept }) => {
                    assert!(kept < text.len(), "a restart withdraws pieces that the caller has");
                    text.truncate(kept);
                }
                Some(ReplyEvent::Failed(_)) => return true,
                Some(other) => panic!("{other:?}"),
            }
        }
        false
    }

    proptest! {
        #[test]
        fn whenever_the_caller_reads_it_has_the_pieces_of_the_merge_in_the_end(
            acts in prop::collection::vec(act(), 0..60),
        ) {
            let (mut log, mut inbox, mut text) = (PieceLog::default(), Inbox::default(), Vec::new());
            for act in acts {
                match act {
                    Act::Piece(piece) => assert!(log.push(&[piece])),
                    Act::Restart(part) => {
                        let kept = log.len() * part / 16;
                        log.truncate(kept);
                        inbox.restart(kept);
                    }
                    Act::Read(most) => assert!(!read(&mut inbox, &log, &mut text, most)),
                }
            }
            inbox.end(ReplyEvent::Failed(too_large()));
            assert!(read(&mut inbox, &log, &mut text, usize::MAX));
            assert_eq!(text, log.to_vec());
            assert!(inbox.next(&log).is_none());
        }
    }

    #[test]
    fn a_restart_of_pieces_that_were_not_read_is_not_seen_and_several_are_one() {
        let mut log = PieceLog::of(&[b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]).unwrap();
        let (mut inbox, mut text) = (Inbox::default(), Vec::new());
        read(&mut inbox, &log, &mut text, 2);
        log.truncate(2);
        inbox.restart(2);
        assert!(inbox.next(&log).is_none());
        for kept in [1, 0] {
            log.truncate(kept);
            inbox.restart(kept);
        }
        assert!(matches!(inbox.next(&log), Some(ReplyEvent::Restarted { kept: 0 })));
        assert!(inbox.next(&log).is_none());
    }
}
