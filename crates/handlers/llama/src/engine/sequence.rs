//! One sequence of a group: a reply with its blocks and the pieces whose turn has not come.

use std::collections::VecDeque;

use nsbridge_handler::{FinishReason, Result, TextPiece};

use crate::kv::BlockTable;
use crate::reply::Reply;
use crate::speculation::AcceptanceStats;

/// Sequence of a group.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) reply: Reply,
    /// Block table of the tokens that were run. An empty table starts as a fork of another
    /// sequence's prompt.
    pub(super) table: BlockTable,
    /// Pieces whose turn has not come.
    pub(super) pieces: VecDeque<TextPiece>,
    pub(super) end: Option<Result<FinishReason>>,
    /// True while the sequence has no memory and waits for another one to end.
    pub(super) waits: bool,
    /// Number of last tokens that are not run: 1 for a prompt whose last row nothing reads.
    pub(super) unread: usize,
    /// Number of pieces delivered so far.
    pub(super) told: usize,
    /// Id for drafters.
    pub(super) id: u64,
    pub(super) stats: AcceptanceStats,
}

impl Sequence {
    pub(super) fn new(reply: Reply) -> Self {
        Self {
            reply,
            table: BlockTable::default(),
            pieces: VecDeque::new(),
            end: None,
            waits: false,
            unread: 0,
            told: 0,
            id: 0,
            stats: AcceptanceStats::default(),
        }
    }

    /// Returns the number of tokens to run before the sequence has all rows that it needs.
    pub(super) fn left(&self) -> usize {
        self.reply.tokens().len() - self.unread - self.table.len()
    }

    /// Returns false if nothing is generated.
    pub(super) fn has_reply(&self) -> bool {
        self.reply.longest() > 0
    }

    /// Returns true if the sequence is neither ended nor waiting.
    pub(super) fn goes_on(&self) -> bool {
        self.end.is_none() && !self.waits
    }
}
