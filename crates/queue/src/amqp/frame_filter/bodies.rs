//! Body size limits of a connection, and the sizes of dropped bodies.

use std::collections::{BTreeMap, HashMap};

use nsbridge_protocol::topology;
use parking_lot::Mutex;

/// Maximum number of dropped bodies remembered per channel: a consumer's prefetch has 16 bits.
const MOST_REMEMBERED: usize = 1 << 16;

/// Body size limits by channel, and the sizes of dropped bodies.
///
/// The socket filter writes the sizes. A consumer reads them when it receives the message without
/// its body a moment later.
#[derive(Debug, Default)]
pub(crate) struct Bodies(Mutex<HashMap<u16, Channel>>);

#[derive(Debug)]
struct Channel {
    limit: u64,
    /// Sizes in bytes by delivery tag.
    dropped: BTreeMap<u64, u64>,
}

impl Bodies {
    /// Sets the maximum size in bytes of bodies delivered on this channel from now on.
    pub(crate) fn limit(&self, channel: u16, limit: u64) {
        self.0.lock().insert(channel, Channel { limit, dropped: BTreeMap::new() });
    }

    /// Removes a channel whose subscription has ended.
    pub(crate) fn forget(&self, channel: u16) {
        self.0.lock().remove(&channel);
    }

    /// Returns true if a body of this size must be dropped, and remembers its size for the
    /// consumer.
    ///
    /// On a channel without a subscription, the limit is the largest message of the protocol.
    pub(super) fn drops(&self, channel: u16, tag: Option<u64>, size: u64) -> bool {
        let mut channels = self.0.lock();
        let Some(channel) = channels.get_mut(&channel) else {
            return size > topology::LARGEST_BODY as u64;
        };
        if size <= channel.limit {
            return false;
        }
        if let Some(tag) = tag
            && channel.dropped.len() < MOST_REMEMBERED
        {
            channel.dropped.insert(tag, size);
        }
        true
    }

    /// Removes and returns the size of this delivery's dropped body, if one was dropped.
    pub(crate) fn take(&self, channel: u16, tag: u64) -> Option<u64> {
        self.0.lock().get_mut(&channel)?.dropped.remove(&tag)
    }
}
