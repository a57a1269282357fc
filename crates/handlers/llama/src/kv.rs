//! Keys and values of all sequences, in blocks of 32 positions that are handed out one by one.
//!
//! Whether a token's keys and values were computed for this sequence, or for another that began
//! alike, is no difference: their bits depend on the tokens up to it, and on nothing else.

mod blocks;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::blocks::Blocks;
use crate::LoadError;
use crate::kernel::LANES;
use crate::kernel::attention::{PAGE, Pages};
use crate::kernel::simd::Simd;
use crate::memory::{Memory, Plain};

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

/// A number as the cache holds it.
pub(crate) trait Element: Plain {
    fn load(self) -> f32;
    fn store(x: f32) -> Self;
    fn vector<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Vector;
}

impl Element for f32 {
    #[inline(always)]
    fn load(self) -> f32 {
        self
    }

    #[inline(always)]
    fn store(x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn vector<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Vector {
        simd.load(from)
    }
}

/// The upper half of an f32.
impl Element for u16 {
    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }

    #[inline(always)]
    fn store(x: f32) -> Self {
        half::bf16::from_f32(x).to_bits()
    }

    #[inline(always)]
    fn vector<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Vector {
        simd.brains(from)
    }
}

/// What the blocks are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) layers: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
    pub(crate) blocks: usize,
}

/// The memory of all blocks, and whose they are.
#[derive(Debug)]
pub struct KvCache<S = RandomState> {
    pub(crate) shape: Shape,
    pub(crate) data: Both,
    blocks: Blocks<S>,
}

/// Keys and values in the cache's format.
#[derive(Debug)]
pub(crate) enum Both {
    F32(Store<f32>),
    Bf16(Store<u16>),
}

/// By layer, block and head: keys `[dim, 32]`; and values `[32, dim]` alike.
#[derive(Debug)]
pub(crate) struct Store<E: Plain> {
    pub(crate) keys: Memory<E>,
    pub(crate) values: Memory<E>,
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
    pub(crate) fn new(format: KvFormat, shape: Shape) -> Result<Self, LoadError> {
        let Shape { layers, kv_heads, dim, blocks } = shape;
        let count = layers * kv_heads * dim * blocks * PAGE;
        let data = match format {
            KvFormat::F32 => Both::F32(Store::new(count)?),
            KvFormat::Bf16 => Both::Bf16(Store::new(count)?),
        };
        let count = u32::try_from(blocks).map_err(|_| {
            LoadError::unsupported("the number of blocks", blocks.to_string(), "less")
        })?;
        Ok(Self { shape, data, blocks: Blocks::new(count) })
    }

    /// Blocks that no sequence has.
    pub fn free(&self) -> usize {
        self.blocks.available()
    }

    /// How many blocks that were remembered have been forgotten, because others needed the room.
    pub fn evictions(&self) -> u64 {
        self.blocks.evictions()
    }

    /// Gives a sequence the blocks for so many tokens more, or none and `false`.
    pub fn reserve(&mut self, table: &mut Table, tokens: usize) -> bool {
        // A last block that others may see is theirs: this sequence goes on in a copy.
        let last = table.len / PAGE;
        let copied = tokens > 0 && !self.may_write(table);
        let more = (table.len + tokens).div_ceil(PAGE).saturating_sub(table.blocks.len());
        if more + usize::from(copied) > self.free() {
            return false;
        }
        if copied {
            let Some(own) = self.blocks.take() else { return false };
            let shared = std::mem::replace(&mut table.blocks[last], own);
            match &mut self.data {
                Both::F32(data) => data.copy(self.shape, shared, own),
                Both::Bf16(data) => data.copy(self.shape, shared, own),
            }
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

impl<E: Element> Store<E> {
    fn new(count: usize) -> Result<Self, LoadError> {
        Ok(Self { keys: Memory::zeroed(count)?, values: Memory::zeroed(count)? })
    }

    /// A layer's and head's blocks, as a sequence has them.
    pub(crate) fn pages<'a>(
        data: &'a [E],
        shape: Shape,
        layer: usize,
        head: usize,
        table: &'a [u32],
    ) -> Pages<'a, E> {
        let size = shape.dim * PAGE;
        let start = (layer * shape.blocks * shape.kv_heads + head) * size;
        Pages { data: &data[start..], stride: shape.kv_heads * size, size, table }
    }

    /// Copies a block of all layers.
    fn copy(&mut self, shape: Shape, from: u32, to: u32) {
        let size = shape.kv_heads * shape.dim * PAGE;
        for layer in 0..shape.layers {
            let place = |block: u32| (layer * shape.blocks + block as usize) * size;
            for data in [&mut self.keys, &mut self.values] {
                data.copy_within(place(from)..place(from) + size, place(to));
            }
        }
    }

    /// Writes a token's key and value of one head.
    pub(crate) fn write(
        &mut self,
        shape: Shape,
        (layer, head): (usize, usize),
        (block, position): (u32, usize),
        key: &[f32],
        value: &[f32],
    ) {
        let size = shape.dim * PAGE;
        let start = ((layer * shape.blocks + block as usize) * shape.kv_heads + head) * size;
        let lane = position % PAGE;
        let keys = &mut self.keys[start..][..size];
        for (keys, key) in keys.as_chunks_mut::<PAGE>().0.iter_mut().zip(key) {
            keys[lane] = E::store(*key);
        }
        let values = &mut self.values[start + lane * shape.dim..][..shape.dim];
        for (place, value) in values.iter_mut().zip(value) {
            *place = E::store(*value);
        }
    }
}

#[cfg(test)]
mod tests;
