//! KV cache as the schedule allocates it.

use super::{Counts, EngineRequest, Running};
use crate::kv::KvCacheManager;
use crate::schedule::{Memory, Work};

/// KV cache with the requests that hold its blocks.
pub(super) struct Blocks<'a> {
    pub(super) cache: &'a mut KvCacheManager,
    pub(super) counts: &'a Counts,
    pub(super) running: &'a mut [Running],
    /// True if requests find blocks of each other.
    pub(super) caching: bool,
}

impl Memory for Blocks<'_> {
    /// Starts from cached blocks of other requests, or of this one before its preemption.
    fn begin(&mut self, index: usize) -> Work {
        let EngineRequest { group, scope, .. } = &mut self.running[index].request.input;
        if let Some((hits, misses)) = group.recall(self.cache, scope) {
            self.counts.change(|counts| {
                counts.cache_hits += hits as u64;
                counts.cache_misses += misses as u64;
            });
        }
        group.work()
    }

    fn reserve(&mut self, index: usize, tokens: usize) -> bool {
        self.running[index].request.input.group.reserve(self.cache, tokens)
    }

    fn awaits_prefix(&self, index: usize, other: usize) -> bool {
        let of = |index: usize| &self.running[index].request.input;
        self.caching && of(index).scope == of(other).scope && {
            of(index).group.prefix().is_some_and(|own| of(other).group.computes_more_of(own))
        }
    }

    fn preempt(&mut self, index: usize) {
        self.running[index].request.input.group.release(self.cache);
    }

    fn shrink(&mut self, index: usize) -> Option<Work> {
        let group = &mut self.running[index].request.input.group;
        group.shrink(self.cache).then(|| group.work())
    }
}
