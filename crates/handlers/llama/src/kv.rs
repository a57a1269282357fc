//! Keys and values of all sequences, in blocks of 32 positions that are handed out one by one.

use serde::{Deserialize, Serialize};

use crate::LoadError;
use crate::kernel::attention::{PAGE, Pages};
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

/// A number as the cache holds it.
pub(crate) trait Element: Plain {
    fn load(self) -> f32;
    fn store(x: f32) -> Self;
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
}

/// What the blocks are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) layers: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
    pub(crate) blocks: usize,
}

/// The memory of all blocks, and which of them are free.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) shape: Shape,
    pub(crate) data: Both,
    free: Vec<u32>,
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

impl KvCache {
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
        Ok(Self { shape, data, free: (0..count).rev().collect() })
    }

    /// Blocks that nobody has.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Gives a sequence the blocks for so many tokens more, or none and `false`.
    pub fn reserve(&mut self, table: &mut Table, tokens: usize) -> bool {
        let wanted = (table.len + tokens).div_ceil(PAGE).saturating_sub(table.blocks.len());
        if wanted > self.free.len() {
            return false;
        }
        table.blocks.extend(self.free.drain(self.free.len() - wanted..).rev());
        true
    }

    /// Forgets what follows the first `len` tokens, and frees the blocks that held only that.
    pub fn truncate(&mut self, table: &mut Table, len: usize) {
        table.len = table.len.min(len);
        let kept = table.len.div_ceil(PAGE);
        self.free.extend(table.blocks.drain(kept..).rev());
    }

    /// Takes a sequence's blocks back.
    pub fn release(&mut self, mut table: Table) {
        self.truncate(&mut table, 0);
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
