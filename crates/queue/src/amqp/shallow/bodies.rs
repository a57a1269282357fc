//! The sizes of bodies that a connection takes, and those that it dropped.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nsbridge_protocol::topology;

/// Bodies that are remembered as dropped on one channel: a consumer's prefetch has 16 bits.
const MOST_REMEMBERED: usize = 1 << 16;

/// Limits of bodies by channel, and the sizes of those that were dropped.
///
/// Written by what reads the socket and read by consumers, which meet the message without its body
/// a moment later.
#[derive(Debug, Default)]
pub(crate) struct Bodies(Mutex<HashMap<u16, Channel>>);

#[derive(Debug)]
struct Channel {
    limit: u64,
    /// Sizes by delivery tag.
    dropped: BTreeMap<u64, u64>,
}

impl Bodies {
    /// Drops bodies of more than so many bytes that are delivered on this channel from now on.
    pub(crate) fn limit(&self, channel: u16, limit: u64) {
        self.channels().insert(channel, Channel { limit, dropped: BTreeMap::new() });
    }

    /// Forgets a channel whose subscription has ended.
    pub(crate) fn forget(&self, channel: u16) {
        self.channels().remove(&channel);
    }

    /// Returns true if a body of this size is to be dropped, and remembers it for its consumer.
    ///
    /// A channel without a subscription takes what the largest message of the protocol has.
    pub(super) fn drops(&self, channel: u16, tag: Option<u64>, size: u64) -> bool {
        let mut channels = self.channels();
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

    /// Returns the size of the body that was dropped of this delivery, if one was.
    pub(crate) fn take(&self, channel: u16, tag: u64) -> Option<u64> {
        self.channels().get_mut(&channel)?.dropped.remove(&tag)
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<u16, Channel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
