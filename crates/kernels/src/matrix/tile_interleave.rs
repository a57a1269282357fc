//! Interleaved layout of tiles in memory. A stretch is a run of consecutive columns of one tile,
//! contiguous in memory; the stretches of a group of tiles alternate.

use std::ops::Range;

/// Number of interleaved tiles. Memory holds one stretch of columns of each of these tiles, then
/// the next stretch of each. So activations in the L1 cache are used for this many tiles before
/// other ones replace them. Reloading them for each tile would interrupt the core's stream of
/// weights.
pub(crate) const TILES: usize = 4;

/// Layout of the stretches of a matrix's tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileInterleave {
    tiles: usize,
    /// Number of stretches in a tile, with equally many in each segment.
    pub(crate) count: usize,
    /// Columns in a stretch.
    pub(crate) stretch: usize,
}

impl TileInterleave {
    /// Chooses the layout for segments of `segment` columns, in multiples of `unit` columns.
    pub(super) fn new(tiles: usize, columns: usize, segment: usize, unit: usize) -> Self {
        // A few rows of this many activations fit in the L1 cache beside other data. Shorter
        // stretches would not pay for the interleaving.
        const MIN_COLUMNS: usize = 64;
        const MAX_COLUMNS: usize = 512;
        let fits = |stretch: &usize| segment.is_multiple_of(*stretch);
        let mut stretches =
            (MIN_COLUMNS.div_ceil(unit)..=MAX_COLUMNS / unit).rev().map(|units| units * unit);
        let stretch = stretches.find(fits).unwrap_or(segment).max(1);
        Self { tiles, count: columns / stretch, stretch }
    }

    /// Interleaves the tiles column by column, in multiples of `unit` columns.
    pub(super) fn by_unit(self, unit: usize) -> Self {
        Self { count: self.count * self.stretch / unit, stretch: unit, ..self }
    }

    /// Returns the tiles interleaved with a tile, including itself.
    pub(crate) fn beside(&self, tile: usize) -> Range<usize> {
        let first = tile / TILES * TILES;
        first..self.tiles.min(first + TILES)
    }

    /// Returns the number of stretches stored before the given one of a tile.
    pub(super) fn before(&self, tile: usize, stretch: usize) -> usize {
        let beside = self.beside(tile);
        beside.start * self.count + stretch * beside.len() + tile - beside.start
    }
}

#[cfg(test)]
mod tests {
    use super::TileInterleave;

    #[test]
    fn a_stretch_is_as_long_as_may_be_and_never_across_segments() {
        let of = |columns, segment, unit| TileInterleave::new(9, columns, segment, unit).stretch;
        // Llama 3 70B.
        assert_eq!((of(8192, 1024, 2), of(28672, 3584, 32), of(28672, 3584, 256)), (512, 512, 512));
        // TinyLlama: 704 and 2816 are 2 and 11 times as many.
        assert_eq!((of(5632, 704, 2), of(5632, 704, 32), of(5632, 2816, 256)), (352, 352, 256));
        // No divisor in range: the whole segment.
        assert_eq!((of(48, 6, 2), of(33, 33, 2), of(1042, 521, 1)), (6, 33, 521));
    }

    #[test]
    fn every_stretch_has_a_place_of_its_own() {
        for tiles in 1..10 {
            let interleave = TileInterleave::new(tiles, 1024, 128, 2);
            let places =
                (0..tiles).flat_map(|tile| (0..interleave.count).map(move |at| (tile, at)));
            let mut found: Vec<usize> =
                places.map(|(tile, at)| interleave.before(tile, at)).collect();
            found.sort_unstable();
            assert!(found.into_iter().eq(0..tiles * interleave.count));
        }
    }
}
