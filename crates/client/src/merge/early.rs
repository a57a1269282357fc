//! Frames that arrived before the open of their stream.

use std::collections::VecDeque;

use nsbridge_crypto::ReplyHead;
use nsbridge_protocol::StreamId;

/// Maximum number of early frames of one request.
pub(super) const MAX_EARLY: usize = 256;

/// Maximum total size of these frames in bytes: some thousand pieces.
pub(super) const MAX_EARLY_BYTES: usize = 1 << 20;

/// Frames whose stream is not known yet. After a reconnect the broker may deliver them before their
/// open. Without the open they cannot be verified, so little space is given to them. Frames that
/// claim the same sequence number of a stream are all kept until the open shows which one is valid.
#[derive(Default)]
pub(super) struct Early {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Early {
    /// Keeps a frame, and drops the oldest frames beyond the limits. An identical frame is kept
    /// only once.
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

    /// Removes and returns the frames that claim to belong to this stream.
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
