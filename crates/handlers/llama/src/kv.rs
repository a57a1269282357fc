//! Paged KV cache: keys and values of all sequences, in blocks of 32 positions allocated on demand.
//!
//! The bits of a token's keys and values depend only on the tokens up to it. So it makes no
//! difference whether they were computed for this sequence or for another one with the same prefix.

mod block_pool;
mod store;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::block_pool::BlockPool;
pub(crate) use self::store::{Shape, Store, Values};
use crate::error::LoadError;
use nsbridge_kernels::attention::PAGE;

/// Storage format of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KvFormat {
    /// Four bytes a number.
    #[default]
    F32,
    /// Two bytes a number, rounded to nearest, ties to even, when written.
    Bf16,
}

impl KvFormat {
    /// Returns the bytes of a number.
    pub(crate) fn width(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Block allocator of the paged KV cache. The data lives in each rank's `Store`, for the heads
/// that the rank computes.
#[derive(Debug)]
pub struct KvCacheManager<S = RandomState> {
    pool: BlockPool<S>,
    /// Block copies `(from, to)` to be done in this order before the next write.
    copies: Vec<(u32, u32)>,
}

/// Block table of one sequence.
///
/// Dropping it does not free the blocks: return them to their cache with
/// [`KvCacheManager::release`].
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<u32>,
    /// Number of positions written.
    len: usize,
    /// Number of blocks at the front that are in the prefix cache.
    remembered: usize,
}

impl BlockTable {
    /// Returns the number of tokens whose keys and values are cached.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no tokens are cached.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    pub(crate) fn grow(&mut self, tokens: usize) {
        self.len += tokens;
    }
}

impl<S: BuildHasher + Default> KvCacheManager<S> {
    pub(crate) fn new(blocks: usize) -> Result<Self, LoadError> {
        let count = u32::try_from(blocks).map_err(|_| {
            LoadError::unsupported("the number of blocks", blocks.to_string(), "less")
        })?;
        Ok(Self { pool: BlockPool::new(count), copies: Vec::new() })
    }

    /// Takes the block copies to be done before the next step writes anything.
    pub(crate) fn take_copies(&mut self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.copies)
    }

    /// Returns the number of blocks that no sequence holds.
    pub fn free(&self) -> usize {
        self.pool.available()
    }

    /// Returns how many blocks the prefix cache has evicted to make room.
    pub fn evictions(&self) -> u64 {
        self.pool.evictions()
    }

    /// Reserves the blocks for `tokens` more tokens. If there are not enough, it reserves none and
    /// returns `false`. A sequence that is the only holder of blocks can get all other blocks.
    pub fn reserve(&mut self, table: &mut BlockTable, tokens: usize) -> bool {
        // A last block that other sequences may see is not written to: this sequence continues in a
        // copy.
        let last = table.len / PAGE;
        let mut copied = tokens > 0 && !self.may_write(table);
        let more = (table.len + tokens).div_ceil(PAGE).saturating_sub(table.blocks.len());
        if more + usize::from(copied) > self.free() {
            // With no room for a copy, a block held by this sequence alone leaves the prefix cache
            // instead.
            if !copied || more > self.free() || !self.pool.make_private(table.blocks[last]) {
                return false;
            }
            copied = false;
        }
        if copied {
            let Some(own) = self.pool.take() else { return false };
            let shared = std::mem::replace(&mut table.blocks[last], own);
            // The shared block's next holder writes to it only after this copy.
            self.copies.push((shared, own));
            self.pool.let_go(shared);
        }
        table.blocks.extend((0..more).map_while(|_| self.pool.take()));
        true
    }

    /// Returns true if the next token may be written to its block: not if the block is shared or in
    /// the prefix cache, and no room was reserved since.
    pub(crate) fn may_write(&self, table: &BlockTable) -> bool {
        let begun = !table.len.is_multiple_of(PAGE);
        !begun || self.pool.is_private(table.blocks[table.len / PAGE])
    }

    /// Drops the tokens after the first `len`, and releases the blocks that held only those.
    pub fn truncate(&mut self, table: &mut BlockTable, len: usize) {
        table.len = table.len.min(len);
        table.remembered = table.remembered.min(table.len / PAGE);
        let kept = table.len.div_ceil(PAGE);
        // The last block is released first: under eviction, the blocks that lead to others stay.
        for block in table.blocks.drain(kept..).rev() {
            self.pool.let_go(block);
        }
    }

    /// Releases all blocks of a sequence.
    pub fn release(&mut self, mut table: BlockTable) {
        self.truncate(&mut table, 0);
    }

    /// Creates a second sequence on the same blocks.
    pub fn fork(&mut self, table: &BlockTable) -> BlockTable {
        let blocks = table.blocks[..table.len.div_ceil(PAGE)].to_vec();
        blocks.iter().for_each(|block| self.pool.retain(*block));
        BlockTable { blocks, len: table.len, remembered: table.remembered }
    }

    /// Starts a sequence with the longest prefix of `tokens` cached in this scope. At least the
    /// last token is left to compute, for its logits. The table stays empty if nothing is cached; a
    /// table that is not empty is left unchanged.
    pub fn recall(&mut self, table: &mut BlockTable, scope: &Arc<str>, tokens: &[u32]) {
        if !table.blocks.is_empty() {
            return;
        }
        let most = tokens.len().saturating_sub(1) / PAGE;
        for tokens in &tokens.as_chunks::<PAGE>().0[..most] {
            let before = table.blocks.last().copied();
            let Some(block) = self.pool.find(scope, before, tokens) else { break };
            self.pool.retain(block);
            table.blocks.push(block);
        }
        table.remembered = table.blocks.len();
        table.len = table.remembered * PAGE;
    }

    /// Clears the prefix cache, so no sequence finds the blocks of an earlier one.
    pub fn forget_all(&mut self) {
        self.pool.forget_all();
    }

    /// Adds the blocks that a sequence has filled to the prefix cache of this scope. `tokens` are
    /// those of the sequence; the ones already computed must be final.
    pub fn remember(&mut self, table: &mut BlockTable, scope: &Arc<str>, tokens: &[u32]) {
        let whole = &tokens.as_chunks::<PAGE>().0[..table.len / PAGE];
        for (index, tokens) in whole.iter().enumerate().skip(table.remembered) {
            let before = index.checked_sub(1).map(|before| table.blocks[before]);
            let own = table.blocks[index];
            let used = self.pool.remember(scope, before, tokens, own);
            if used != own {
                // Both blocks hold the same bits, so one of them is enough.
                self.pool.retain(used);
                self.pool.let_go(own);
                table.blocks[index] = used;
            }
            table.remembered = index + 1;
        }
    }
}

#[cfg(test)]
mod tests;
