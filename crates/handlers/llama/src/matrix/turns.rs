//! Tiles that take turns in memory.

use std::ops::Range;

/// So many tiles' stretches of columns lie one after the other, then the same tiles' next ones:
/// activations that a core holds are multiplied with so many before others take their place. Brought
/// back for each tile, they would come between the core and its stream of weights.
pub(crate) const TILES: usize = 4;

/// Where the stretches of a matrix's tiles are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    tiles: usize,
    /// A tile's stretches: as many in each segment.
    pub(crate) count: usize,
    /// The columns of one.
    pub(crate) stretch: usize,
}

impl Turns {
    /// Of a matrix whose segments have so many columns, of which `unit` belong together.
    pub(super) fn new(tiles: usize, columns: usize, segment: usize, unit: usize) -> Self {
        // A few rows of so many activations are in the innermost cache, whatever is beside them;
        // fewer would not be worth a turn.
        const LEAST: usize = 64;
        const MOST: usize = 512;
        let fits = |stretch: &usize| segment.is_multiple_of(*stretch);
        let mut stretches = (LEAST.div_ceil(unit)..=MOST / unit).rev().map(|units| units * unit);
        let stretch = stretches.find(fits).unwrap_or(segment).max(1);
        Self { tiles, count: columns / stretch, stretch }
    }

    /// The tiles that a tile takes turns with, itself among them.
    pub(crate) fn beside(&self, tile: usize) -> Range<usize> {
        let first = tile / TILES * TILES;
        first..self.tiles.min(first + TILES)
    }

    /// How many stretches lie before this one of a tile.
    pub(super) fn before(&self, tile: usize, stretch: usize) -> usize {
        let beside = self.beside(tile);
        beside.start * self.count + stretch * beside.len() + tile - beside.start
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;

    #[test]
    fn a_stretch_is_as_long_as_may_be_and_never_across_segments() {
        let of = |columns, segment, unit| Turns::new(9, columns, segment, unit).stretch;
        // Llama 3 70B's.
        assert_eq!((of(8192, 1024, 2), of(28672, 3584, 32), of(28672, 3584, 256)), (512, 512, 512));
        // TinyLlama's: 704 and 2816 are 2 and 11 times as many.
        assert_eq!((of(5632, 704, 2), of(5632, 704, 32), of(5632, 2816, 256)), (352, 352, 256));
        // None of that size: the whole segment.
        assert_eq!((of(48, 6, 2), of(33, 33, 2), of(1042, 521, 1)), (6, 33, 521));
    }

    #[test]
    fn every_stretch_has_a_place_of_its_own() {
        for tiles in 1..10 {
            let turns = Turns::new(tiles, 1024, 128, 2);
            let places = (0..tiles).flat_map(|tile| (0..turns.count).map(move |at| (tile, at)));
            let mut found: Vec<usize> = places.map(|(tile, at)| turns.before(tile, at)).collect();
            found.sort_unstable();
            assert!(found.into_iter().eq(0..tiles * turns.count));
        }
    }
}
