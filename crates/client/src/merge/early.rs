//! Frames that came before the open of their stream.

use std::collections::VecDeque;

use nsbridge_crypto::ReplyHead;
use nsbridge_protocol::StreamId;

/// How many frames of one request may wait for an open.
pub(super) const MAX_EARLY: usize = 256;

/// How many bytes they may have together: some thousand pieces.
pub(super) const MAX_EARLY_BYTES: usize = 1 << 20;

/// Frames whose stream is not known yet: after a reconnect, the broker may hand them out before
/// their open. Nobody can verify them without the open, so there is room for little, and frames that
/// claim to be one and the same number of a stream are all kept until the open tells which is true.
#[derive(Default)]
pub(super) struct Early {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Early {
    /// Keeps a frame, and drops the oldest for which there is no room any more. A frame that is kept
    /// already is not kept twice.
    pub(super) fn keep(&mut self, frame: &[u8]) {
        if frame.len() > MAX_EARLY_BYTES || self.frames.iter().any(|known| known == frame) {
            return;
        }
        self.bytes += frame.len();
        self.frames.push_back(frame.to_vec());
        while self.frames.len() > MAX_EARLY || self.bytes > MAX_EARLY_BYTES {
            self.bytes -= self.frames.pop_front().map_or(0, |frame| frame.len());
        }
    }

    /// Takes out the frames that claim to be of this stream.
    pub(super) fn take(&mut self, stream: StreamId) -> Vec<Vec<u8>> {
        let is_its =
            |frame: &Vec<u8>| ReplyHead::parse(frame).is_ok_and(|head| head.stream == stream);
        let (its, others): (Vec<_>, Vec<_>) = self.frames.drain(..).partition(is_its);
        self.frames = others.into();
        self.bytes -= its.iter().map(Vec::len).sum::<usize>();
        its
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.bytes, self.frames.iter().map(Vec::len).sum::<usize>());
        self.frames.len()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
