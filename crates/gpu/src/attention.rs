//! Keys and values in pages, and attention over them.

#![expect(unsafe_code, reason = "kernels are launched with addresses")]

use std::sync::Arc;

use crate::args::{self, Args, AttendArgs, CopyArgs, MergeArgs, PlaceArgs};
use crate::device::{Buffer, Device, Plain, address};
use crate::error::Result;
use crate::rows::Count;

/// Positions in a page of the KV cache.
pub const PAGE: usize = 32;

/// Positions whose scores are computed together. Splits begin at multiples of it.
pub const SPLIT: usize = 256;

/// Numbers of queries that a block of threads keeps, and the number of queries.
const KEPT_QUERIES: usize = 2048;
const MOST_QUERIES: usize = 16;

/// Largest number of dimensions of a head.
pub const WIDEST_HEAD: usize = 512;

/// Heads of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Number of heads of queries.
    pub queries: usize,
    /// Number of heads of keys and values.
    pub keys: usize,
    /// Dimensions of a head, an even number.
    pub dim: usize,
}

impl Heads {
    /// Returns the number of query heads that share keys and values.
    pub fn group(self) -> usize {
        self.queries / self.keys
    }

    /// Returns how many rows of a sequence a block of threads takes at most.
    pub fn rows_at_once(self) -> usize {
        (self.queries_at_once(usize::MAX) / self.group()).max(1)
    }

    /// Returns the number of queries that a block takes for items of at most `rows` rows.
    fn queries_at_once(self, rows: usize) -> usize {
        let most = (KEPT_QUERIES / self.dim).min(MOST_QUERIES);
        let wanted = rows.saturating_mul(self.group()).min(most);
        [1, 2, 4, 8, 16].into_iter().rfind(|size| *size <= most && *size < 2 * wanted).unwrap_or(1)
    }

    /// Returns the numbers of a row's queries, keys and values together.
    fn width(self) -> usize {
        (self.queries + 2 * self.keys) * self.dim
    }
}

/// Keys and values of all layers: `[layer, page, head, dim, 32]` and `[layer, page, head, 32, dim]`.
#[derive(Debug)]
pub struct KvCache {
    keys: Buffer,
    values: Buffer,
    heads: Heads,
    pages: usize,
    layers: usize,
    /// True if numbers are bf16, false if they are f32.
    brains: bool,
}

impl KvCache {
    /// Allocates zeroed pages.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short.
    pub fn new(
        device: &Arc<dyn Device>,
        heads: Heads,
        (layers, pages): (usize, usize),
        brains: bool,
    ) -> Result<Self> {
        let width = if brains { 2 } else { 4 };
        let bytes = layers * pages * heads.keys * heads.dim * PAGE * width;
        let (keys, values) = (Buffer::zeroed(device, bytes)?, Buffer::zeroed(device, bytes)?);
        Ok(Self { keys, values, heads, pages, layers, brains })
    }

    /// Returns the buffers of keys and of values.
    pub fn buffers(&self) -> [&Buffer; 2] {
        [&self.keys, &self.values]
    }

    /// Returns the bytes of a page in one layer.
    fn page_bytes(&self) -> usize {
        self.keys.bytes() / (self.layers * self.pages).max(1)
    }

    fn layer(&self, layer: usize) -> args::Cache {
        let bytes = self.page_bytes() * self.pages;
        args::Cache {
            keys: self.keys.place(layer * bytes, bytes),
            values: self.values.place(layer * bytes, bytes),
            heads: self.heads.keys as u32,
            dim: self.heads.dim as u32,
        }
    }

    /// Copies a page in all layers.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Panics
    ///
    /// Panics if there is no such page.
    pub fn copy(&self, from: u32, to: u32) -> Result<()> {
        assert!([from, to].iter().all(|page| (*page as usize) < self.pages), "pages that exist");
        let args = CopyArgs {
            keys: self.keys.place(0, 0),
            values: self.values.place(0, 0),
            layer_bytes: (self.page_bytes() * self.pages) as u64,
            page_bytes: self.page_bytes() as u32,
            from,
            to,
            reserved: 0,
        };
        // SAFETY: both pages exist in each layer.
        unsafe {
            self.keys.device().launch(&args.launch("copy_page", [self.layers as u32, 2], 256))
        }
    }
}

/// Rows of a sequence that a block of threads attends for, as the device reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Item {
    /// First of the rows, which have consecutive positions.
    pub row: u32,
    /// Number of rows, at most [`Heads::rows_at_once`].
    pub count: u32,
    /// Offset of the sequence's block table.
    pub table: u32,
    /// First split.
    pub first: u32,
    /// Last split.
    pub last: u32,
    /// Number of the first row's partial result, if there are `pieces`.
    pub partial: u32,
    /// Distance of the partial results of a row from those of the next; 0 for an item that has all
    /// splits of its rows.
    pub pieces: u32,
    reserved: u32,
}

// SAFETY: integers without padding.
unsafe impl Plain for Item {}

/// Partial results of a row, as the device reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Merge {
    /// The row.
    pub row: u32,
    /// Number of the first partial result.
    pub partial: u32,
    /// Number of partial results.
    pub pieces: u32,
    reserved: u32,
}

// SAFETY: integers without padding.
unsafe impl Plain for Merge {}

impl Item {
    /// Creates an item that has all splits of its rows.
    pub fn whole((row, count): (u32, u32), table: u32, (first, last): (u32, u32)) -> Self {
        Self { row, count, table, first, last, ..Self::default() }
    }

    /// Returns the integers that the device reads.
    pub fn words(&self) -> [u32; 8] {
        let Self { row, count, table, first, last, partial, pieces, reserved } = *self;
        [row, count, table, first, last, partial, pieces, reserved]
    }

    /// Returns the item for one split, with a partial result.
    #[must_use]
    pub fn piece(self, split: u32, partial: u32, pieces: u32) -> Self {
        Self { first: split, last: split, partial, pieces, ..self }
    }
}

impl Merge {
    /// Returns the integers that the device reads.
    pub fn words(&self) -> [u32; 4] {
        [self.row, self.partial, self.pieces, self.reserved]
    }

    /// Merges `pieces` partial results of a row.
    pub fn new(row: u32, partial: u32, pieces: u32) -> Self {
        Self { row, partial, pieces, reserved: 0 }
    }
}

/// Queries, keys and values of rows: norms of the heads, rotary embedding, and the way into the pages.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Queries, keys and values of each row, `stride` numbers apart.
    pub x: &'a Buffer,
    /// Distance of the rows.
    pub stride: usize,
    /// Position of each row.
    pub positions: Count<'a>,
    /// Page of each row's position.
    pub pages: Count<'a>,
    /// Cosines and sines, `[positions, dim / 2]`.
    pub angles: [&'a Buffer; 2],
    /// Norms of the heads of queries and keys, if the model has them.
    pub norms: Option<[&'a Buffer; 2]>,
    /// Number that is added to the mean of the squares.
    pub eps: f32,
}

impl Place<'_> {
    /// Writes `count` rows, at most `most`: the queries in place, the rest into the pages of a layer.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Panics
    ///
    /// Panics if a buffer is too small.
    pub fn write(&self, (count, most): (Count<'_>, usize), to: (&KvCache, usize)) -> Result<()> {
        let (cache, layer) = to;
        let heads = cache.heads;
        assert!(heads.width() <= self.stride && heads.dim <= WIDEST_HEAD, "heads that fit");
        let args = PlaceArgs {
            x: self.x.place(0, 4 * most * self.stride),
            rows: count.address(),
            positions: self.positions.of(most),
            pages: self.pages.of(most),
            cos: address(Some(self.angles[0])),
            sin: address(Some(self.angles[1])),
            query_norm: address(self.norms.map(|[queries, _]| queries)),
            key_norm: address(self.norms.map(|[_, keys]| keys)),
            cache: cache.layer(layer),
            queries: heads.queries as u32,
            stride: self.stride as u32,
            eps: self.eps,
            reserved: 0,
        };
        let kernel = if cache.brains { "place_bf16" } else { "place_f32" };
        let blocks = [most as u32, (heads.queries + 2 * heads.keys) as u32];
        // SAFETY: the rows have these heads; positions and pages are those of the plan of a step.
        unsafe { self.x.device().launch(&args.launch(kernel, blocks, 128)) }
    }
}

/// Buffers of a step's attention.
#[derive(Debug)]
pub struct Attention {
    heads: Heads,
    /// Of each partial result and query head: largest score, sum of weights.
    of_heads: Buffer,
    mixes: Buffer,
    partials: usize,
}

/// Items, merges and tables of a step.
#[derive(Clone, Copy, Debug)]
pub struct AttentionPlan<'a> {
    /// Number of items, then number of merges.
    pub counts: Count<'a>,
    /// The items.
    pub items: Count<'a>,
    /// The merges.
    pub merges: Count<'a>,
    /// Block tables of all sequences.
    pub tables: Count<'a>,
    /// Position of each row.
    pub positions: Count<'a>,
    /// Largest number of rows of an item.
    pub rows_at_once: usize,
    /// Largest number of merges; 0 if no item has partial results.
    pub most_merges: usize,
    /// Number of positions that a row sees, if there is a window.
    pub window: Option<usize>,
}

impl Attention {
    /// Allocates room for partial results.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short.
    pub fn new(device: &Arc<dyn Device>, heads: Heads, partials: usize) -> Result<Self> {
        let numbers = partials * heads.queries;
        let of_heads = Buffer::zeroed(device, numbers * 8)?;
        let mixes = Buffer::zeroed(device, numbers * heads.dim * 4)?;
        Ok(Self { heads, of_heads, mixes, partials })
    }

    /// Returns the number of partial results that there is room for.
    pub fn partials(&self) -> usize {
        self.partials
    }

    /// Attends for the queries of rows `stride` numbers apart. The result is `[rows, queries, dim]`.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Panics
    ///
    /// Panics if a buffer is too small for `most` rows.
    pub fn attend(
        &self,
        (queries, stride): (&Buffer, usize),
        most: usize,
        plan: &AttentionPlan<'_>,
        (cache, layer): (&KvCache, usize),
        out: &Buffer,
    ) -> Result<()> {
        let heads = self.heads;
        assert!(heads == cache.heads, "the heads of the cache");
        let args = AttendArgs {
            queries: queries.place(0, 4 * most * stride),
            counts: plan.counts.of(2),
            items: plan.items.of(0),
            positions: plan.positions.of(most),
            tables: plan.tables.of(0),
            cache: cache.layer(layer),
            out: out.place(0, 4 * most * heads.queries * heads.dim),
            heads: address(Some(&self.of_heads)),
            mixes: address(Some(&self.mixes)),
            group: heads.group() as u32,
            stride: stride as u32,
            window: plan.window.unwrap_or(0) as u32,
            scale: (1.0 / (heads.dim as f64).sqrt()) as f32,
        };
        let at_once = heads.queries_at_once(plan.rows_at_once);
        let device = queries.device();
        let blocks = device.processors() * 4;
        let launch = args.launch(kernel(cache.brains, at_once), [blocks, 1], 256);
        // SAFETY: the items are those of the plan of a step, within the rows and the pages.
        unsafe { device.launch(&launch)? };
        if plan.most_merges == 0 {
            return Ok(());
        }
        let args = MergeArgs {
            counts: plan.counts.of(2) + 4,
            merges: plan.merges.of(0),
            heads: args.heads,
            mixes: args.mixes,
            out: args.out,
            queries: heads.queries as u32,
            dim: heads.dim as u32,
        };
        let blocks = [plan.most_merges as u32, heads.queries as u32];
        // SAFETY: as above.
        unsafe { device.launch(&args.launch("merge", blocks, 128)) }
    }
}

fn kernel(brains: bool, queries: usize) -> &'static str {
    match (brains, queries) {
        (false, 1) => "attend_f32_1",
        (false, 2) => "attend_f32_2",
        (false, 4) => "attend_f32_4",
        (false, 8) => "attend_f32_8",
        (false, _) => "attend_f32_16",
        (true, 1) => "attend_bf16_1",
        (true, 2) => "attend_bf16_2",
        (true, 4) => "attend_bf16_4",
        (true, 8) => "attend_bf16_8",
        (true, _) => "attend_bf16_16",
    }
}
