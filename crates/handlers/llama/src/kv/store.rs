//! Contents of the blocks: keys and values of one rank's heads.

use super::KvFormat;
use crate::error::LoadError;
use nsbridge_kernels::Element;
use nsbridge_kernels::attention::{PAGE, Pages};
use nsbridge_kernels::memory::{AlignedBuffer, Plain};

/// Dimensions of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) layers: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
    pub(crate) blocks: usize,
}

/// Keys and values in the cache's format.
#[derive(Debug)]
pub(crate) enum Values {
    F32(Store<f32>),
    Bf16(Store<u16>),
}

/// Data by layer, block and head: keys as `[dim, 32]`, values as `[32, dim]`.
#[derive(Debug)]
pub(crate) struct Store<E: Plain> {
    pub(crate) keys: AlignedBuffer<E>,
    pub(crate) values: AlignedBuffer<E>,
}

impl Values {
    pub(crate) fn new(format: KvFormat, shape: Shape) -> Result<Self, LoadError> {
        let Shape { layers, kv_heads, dim, blocks } = shape;
        let count = layers * kv_heads * dim * blocks * PAGE;
        Ok(match format {
            KvFormat::F32 => Self::F32(Store::new(count)?),
            KvFormat::Bf16 => Self::Bf16(Store::new(count)?),
        })
    }

    pub(crate) fn format(&self) -> KvFormat {
        match self {
            Self::F32(_) => KvFormat::F32,
            Self::Bf16(_) => KvFormat::Bf16,
        }
    }

    /// Copies a block in all layers.
    pub(crate) fn copy(&mut self, shape: Shape, from: u32, to: u32) {
        match self {
            Self::F32(data) => data.copy(shape, from, to),
            Self::Bf16(data) => data.copy(shape, from, to),
        }
    }
}

impl<E: Element> Store<E> {
    fn new(count: usize) -> Result<Self, LoadError> {
        Ok(Self { keys: AlignedBuffer::zeroed(count)?, values: AlignedBuffer::zeroed(count)? })
    }

    /// Returns the blocks of a layer: keys and values.
    pub(crate) fn pages(&self, shape: Shape, layer: usize) -> [Pages<'_, E>; 2] {
        let stride = shape.kv_heads * shape.dim * PAGE;
        let data = layer * shape.blocks * stride..(layer + 1) * shape.blocks * stride;
        [&self.keys, &self.values].map(|all| Pages { data: &all[data.clone()], stride })
    }

    /// Copies a block in all layers.
    fn copy(&mut self, shape: Shape, from: u32, to: u32) {
        let size = shape.kv_heads * shape.dim * PAGE;
        for layer in 0..shape.layers {
            let place = |block: u32| (layer * shape.blocks + block as usize) * size;
            for data in [&mut self.keys, &mut self.values] {
                data.copy_within(place(from)..place(from) + size, place(to));
            }
        }
    }

    /// Writes the key and the value of a token for one head.
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
