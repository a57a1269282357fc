//! Pieces of a reply that are held back until no refused text can be a part of them.

use std::collections::{HashMap, VecDeque};

use nsbridge_handler::{FinishReason, TextInput, TextPiece};

use crate::judge::Judge;
use crate::passage::{Passage, Refusal};
use crate::policy::Thresholds;

/// Pieces of all replies of a request, in the order in which the handler made them.
///
/// A piece is released once the text up to its end is decided. Its token may stand for more than its
/// text: a handler holds back text that may be a stop sequence, and the first bytes of a character.
/// So a piece waits for that much text after its end too.
#[derive(Debug)]
pub(crate) struct Hold<'a, J> {
    judge: &'a J,
    thresholds: &'a Thresholds,
    /// Maximum length of text that the handler holds back, in characters: the longest stop sequence
    /// without its last character.
    stop: usize,
    /// Number of replies of the request.
    replies: u32,
    waiting: VecDeque<Waiting>,
    passages: HashMap<u32, Reply>,
    /// Number of released pieces of replies.
    released: u64,
}

/// Piece that is held back.
#[derive(Debug)]
struct Waiting {
    piece: TextPiece,
    /// Number of characters of its reply up to the end of the piece.
    end: usize,
    /// True if the client has the piece from an earlier attempt.
    sent: bool,
}

/// State of one of the replies.
#[derive(Debug, Default)]
struct Reply {
    passage: Passage,
    ended: bool,
    finish_reason: Option<FinishReason>,
    /// True once the piece that ends a refused reply was released.
    closed: bool,
}

impl Reply {
    /// Returns true if the piece that ends at this character can be released, false if it is a part
    /// of a refusal; `None` if that is not decided.
    fn decide(&self, end: usize, stop: usize) -> Option<bool> {
        match self.passage.refusal() {
            Some(Refusal { at, ascii, .. }) => {
                // The bytes of an ASCII character are never divided between tokens.
                let part = usize::from(!ascii);
                Some(end + stop + part <= at)
            }
            None if self.ended => Some(true),
            None => (end + stop < self.passage.clear()).then_some(true),
        }
    }

    fn is_over(&self) -> bool {
        self.ended || self.passage.refusal().is_some()
    }
}

impl<'a, J: Judge> Hold<'a, J> {
    /// Creates the hold of the replies to `input`.
    pub(crate) fn new(judge: &'a J, thresholds: &'a Thresholds, input: &TextInput) -> Self {
        let stops = input.stop.iter().map(|stop| stop.chars().count().saturating_sub(1));
        Self {
            judge,
            thresholds,
            stop: stops.max().unwrap_or(0),
            replies: input.n.unwrap_or(1),
            waiting: VecDeque::new(),
            passages: HashMap::new(),
            released: 0,
        }
    }

    /// Adds a piece; `sent` if the client already has it. Returns the category that refuses its reply
    /// from now on.
    pub(crate) fn push(&mut self, piece: TextPiece, sent: bool) -> Option<usize> {
        if piece.prompt {
            self.waiting.push_back(Waiting { piece, end: 0, sent });
            return None;
        }
        let reply = self.passages.entry(piece.index).or_default();
        if reply.is_over() {
            return None;
        }
        reply.passage.push(&piece.text);
        reply.finish_reason = piece.finish_reason;
        reply.ended = piece.finish_reason.is_some();
        let refusal = reply.passage.check(self.judge, self.thresholds, reply.ended);
        self.waiting.push_back(Waiting { piece, end: reply.passage.end(), sent });
        refusal.map(|refusal| refusal.category)
    }

    /// Ends all replies. Returns the categories that refuse one of them from now on.
    pub(crate) fn end(&mut self) -> Vec<usize> {
        let open = self.passages.values_mut().filter(|reply| !reply.is_over());
        let ended = open.filter_map(|reply| {
            reply.ended = true;
            reply.passage.check(self.judge, self.thresholds, true)
        });
        ended.map(|refusal| refusal.category).collect()
    }

    /// Returns the next piece that can be sent. A refused reply among several ends with a piece of
    /// its own, which has no text and the reason.
    pub(crate) fn release(&mut self) -> Option<TextPiece> {
        loop {
            let Waiting { piece, end, .. } = self.waiting.front()?;
            let good = match self.passages.get(&piece.index) {
                Some(reply) if !piece.prompt => reply.decide(*end, self.stop)?,
                _ => true,
            };
            let Waiting { piece, sent, .. } = self.waiting.pop_front()?;
            if good {
                self.released += u64::from(!piece.prompt);
                if !sent {
                    return Some(piece);
                }
            } else if let Some(reply) = self.passages.get_mut(&piece.index)
                && self.replies > 1
                && !std::mem::replace(&mut reply.closed, true)
            {
                let finish_reason = Some(FinishReason::ContentFilter);
                let index = piece.index;
                return Some(TextPiece { index, finish_reason, ..TextPiece::default() });
            }
        }
    }

    /// Returns true if all replies have ended or are refused, and at least one is refused.
    pub(crate) fn is_over(&self) -> bool {
        let over = self.passages.values().filter(|reply| reply.is_over());
        over.count() == self.replies as usize && self.refused() > 0
    }

    /// Returns the number of replies that are refused.
    pub(crate) fn refused(&self) -> usize {
        self.passages.values().filter(|reply| reply.passage.refusal().is_some()).count()
    }

    /// Returns the finish reason of the first reply; `None` if its last piece had none.
    pub(crate) fn finish_reason(&self) -> Option<FinishReason> {
        let reply = self.passages.get(&0)?;
        let refused = reply.passage.refusal().map(|_| FinishReason::ContentFilter);
        refused.or(reply.finish_reason)
    }

    /// Returns the number of replies that have begun.
    pub(crate) fn begun(&self) -> usize {
        self.passages.len()
    }

    /// Returns the number of pieces of replies that were released.
    pub(crate) fn released(&self) -> u64 {
        self.released
    }
}

#[cfg(test)]
mod tests;
