//! Keys and values of all sequences, in blocks of 32 positions that are handed out one by one.
//!
//! Whether a token's keys and values were computed for this sequence, or for another that began
//! alike, is no difference: their bits depend on the tokens up to it, and on nothing else.

mod blocks;
mod store;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::blocks::Blocks;
pub(crate) use self::store::{Shape, Store, Values};
use crate::LoadError;
use crate::kernel::attention::PAGE;

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvFormat {
    /// Four bytes a number.
    #[default]
    F32,
    /// Two bytes a number, rounded to the nearest, ties to even, as they are written.
    Bf16,
}

impl KvFormat {
    /// The bytes of a number.
    pub(crate) fn width(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Whose the blocks are. What is in them, each rank of a model has for the heads that it computes.
#[derive(Debug)]
pub struct KvCache<S = RandomState> {
    blocks: Blocks<S>,
    /// Blocks to be copied before anything is written, from one to the other, in this order.
    copies: Vec<(u32, u32)>,
}

/// The blocks of one sequence.
///
/// It does not free them: they go back to the cache that they are from with
/// [`KvCache::release`].
#[derive(Debug, Default)]
pub struct Table {
    blocks: Vec<u32>,
    /// Positions that were written.
    len: usize,
    /// Blocks at the front that are remembered.
    remembered: usize,
}

impl Table {
    /// The number of tokens whose keys and values it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
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

impl<S: BuildHasher + Default> KvCache<S> {
    pub(crate) fn new(blocks: usize) -> Result<Self, LoadError> {
        let count = u32::try_from(blocks).map_err(|_| {
            LoadError::unsupported("the number of blocks", blocks.to_string(), "less")
        })?;
        Ok(Self { blocks: Blocks::new(count), copies: Vec::new() })
    }

    /// What is to be copied before the next step writes anything.
    pub(crate) fn take_copies(&mut self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.copies)
    }

    /// Blocks that no sequence has.
    pub fn free(&self) -> usize {
        self.blocks.available()
    }

    /// How many blocks that were remembered have been forgotten, because others needed the room.
    pub fn evictions(&self) -> u64 {
        self.blocks.evictions()
    }

    /// Gives a sequence the blocks for so many tokens more, or none and `false`. One that holds all
    /// the blocks that are held gets every other.
    pub fn reserve(&mut self, table: &mut Table, tokens: usize) -> bool {
        // A last block that others may see is theirs: this sequence goes on in a copy.
        let last = table.len / PAGE;
        let mut copied = tokens > 0 && !self.may_write(table);
        let more = (table.len + tokens).div_ceil(PAGE).saturating_sub(table.blocks.len());
        if more + usize::from(copied) > self.free() {
            // If it is only remembered, it can be forgotten where a copy has no room.
            if !copied || more > self.free() || !self.blocks.make_private(table.blocks[last]) {
                return false;
            }
            copied = false;
        }
        if copied {
            let Some(own) = self.blocks.take() else { return false };
            let shared = std::mem::replace(&mut table.blocks[last], own);
            // Whoever has the shared one next writes to it after it was copied.
            self.copies.push((shared, own));
            self.blocks.let_go(shared);
        }
        table.blocks.extend((0..more).map_while(|_| self.blocks.take()));
        true
    }

    /// Whether what follows may be written where it would be: not if others see that block, and no
    /// room was reserved since.
    pub(crate) fn may_write(&self, table: &Table) -> bool {
        let begun = !table.len.is_multiple_of(PAGE);
        !begun || self.blocks.is_private(table.blocks[table.len / PAGE])
    }

    /// Forgets what follows the first `len` tokens, and lets go of the blocks that held only that.
    pub fn truncate(&mut self, table: &mut Table, len: usize) {
        table.len = table.len.min(len);
        table.remembered = table.remembered.min(table.len / PAGE);
        let kept = table.len.div_ceil(PAGE);
        // The last first: where one must be forgotten, what leads to others stays.
        for block in table.blocks.drain(kept..).rev() {
            self.blocks.let_go(block);
        }
    }

    /// Takes a sequence's blocks back.
    pub fn release(&mut self, mut table: Table) {
        self.truncate(&mut table, 0);
    }

    /// The same sequence once more, on the same blocks.
    pub fn fork(&mut self, table: &Table) -> Table {
        let blocks = table.blocks[..table.len.div_ceil(PAGE)].to_vec();
        blocks.iter().for_each(|block| self.blocks.hold(*block));
        Table { blocks, len: table.len, remembered: table.remembered }
    }

    /// Begins a sequence with what is remembered of these tokens, in this scope. At least the last
    /// of them is left to be run, for its logits. An empty table stays so if nothing is remembered;
    /// one that is not empty stays as it is.
    pub fn recall(&mut self, table: &mut Table, scope: &Arc<str>, tokens: &[u32]) {
        if !table.blocks.is_empty() {
            return;
        }
        let most = tokens.len().saturating_sub(1) / PAGE;
        for tokens in &tokens.as_chunks::<PAGE>().0[..most] {
            let before = table.blocks.last().copied();
            let Some(block) = self.blocks.find(scope, before, tokens) else { break };
            self.blocks.hold(block);
            table.blocks.push(block);
        }
        table.remembered = table.blocks.len();
        table.len = table.remembered * PAGE;
    }

    /// Forgets what ended sequences left: no other finds it any more.
    pub fn forget_all(&mut self) {
        self.blocks.forget_all();
    }

    /// Remembers the blocks that a sequence has filled, for others in this scope. `tokens` are the
    /// sequence's, and those that were run are final.
    pub fn remember(&mut self, table: &mut Table, scope: &Arc<str>, tokens: &[u32]) {
        let whole = &tokens.as_chunks::<PAGE>().0[..table.len / PAGE];
        for (index, tokens) in whole.iter().enumerate().skip(table.remembered) {
            let before = index.checked_sub(1).map(|before| table.blocks[before]);
            let own = table.blocks[index];
            let used = self.blocks.remember(scope, before, tokens, own);
            if used != own {
                // The same bits: one of both is enough.
                self.blocks.hold(used);
                self.blocks.let_go(own);
                table.blocks[index] = used;
            }
            table.remembered = index + 1;
        }
    }
}

#[cfg(test)]
mod tests;
