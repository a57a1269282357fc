//! Plan of a step as the device reads it: one buffer of integers.
//!
//! The places of its parts depend on capacities, not on the step, so that recorded launches can be
//! used again.

use nsbridge_gpu::attention::{Heads, Item, Merge, PAGE, SPLIT};

use crate::network::plan::Step;

/// Integers of an item and of a merge.
const ITEM: usize = size_of::<Item>() / 4;
const MERGE: usize = size_of::<Merge>() / 4;

/// Number of blocks of threads per multiprocessor below which the splits of a row are computed by
/// different blocks.
const BLOCKS_PER_PROCESSOR: usize = 4;

/// Places of the parts of a plan, in integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// Capacities.
    pub(super) rows: usize,
    pub(super) tables: usize,
    pub(super) items: usize,
    pub(super) merges: usize,
    windows: usize,
}

impl Places {
    /// Index of the number of rows.
    pub(super) const ROWS: usize = 0;
    /// Index of the number of rows that need logits.
    pub(super) const WANTED: usize = 1;

    /// Index of the number of the step.
    pub(super) const STEP: usize = 2;

    /// Returns the index of the number of items of a window, which that of merges follows.
    pub(super) fn counts(window: usize) -> usize {
        Self::STEP + 1 + 2 * window
    }

    fn first(&self) -> usize {
        Self::counts(self.windows).next_multiple_of(64)
    }

    pub(super) fn tokens(&self) -> usize {
        self.first()
    }

    pub(super) fn positions(&self) -> usize {
        self.first() + self.rows
    }

    pub(super) fn pages(&self) -> usize {
        self.first() + 2 * self.rows
    }

    pub(super) fn wanted(&self) -> usize {
        self.first() + 3 * self.rows
    }

    pub(super) fn tables(&self) -> usize {
        self.first() + 4 * self.rows
    }

    pub(super) fn merges(&self, window: usize) -> usize {
        self.tables() + self.tables + window * self.merges * MERGE
    }

    pub(super) fn items(&self, window: usize) -> usize {
        self.merges(self.windows) + window * self.items * ITEM
    }

    /// Returns the number of integers.
    pub(super) fn len(&self) -> usize {
        self.items(self.windows)
    }
}

/// Plan of a step.
#[derive(Debug)]
pub(super) struct GpuPlan {
    pub(super) rows: usize,
    pub(super) wanted: usize,
    /// Largest number of rows of an item.
    pub(super) rows_at_once: usize,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    pages: Vec<u32>,
    picked: Vec<u32>,
    tables: Vec<u32>,
    windows: Vec<(Vec<Item>, Vec<Merge>)>,
}

impl GpuPlan {
    /// Plans a step. There is room for `partials` partial results of attention.
    pub(super) fn new(
        step: &Step,
        heads: Heads,
        windows: &[Option<usize>],
        (processors, partials): (usize, usize),
    ) -> Self {
        let mut tables = Vec::new();
        let mut starts = Vec::new();
        for table in &step.tables {
            starts.push(tables.len() as u32);
            tables.extend_from_slice(table);
        }
        let several = step.chunks().any(|(rows, _, _)| rows.len() > 1);
        let rows_at_once = if several { heads.rows_at_once() } else { 1 };
        let windows = windows.iter().map(|window| {
            items(step, &starts, (heads, rows_at_once), *window, (processors, partials))
        });
        let pages = step.rows.iter().map(|row| step.tables[row.chunk][row.position / PAGE]);
        Self {
            rows: step.rows.len(),
            wanted: step.wanted.len(),
            rows_at_once,
            tokens: step.tokens.clone(),
            positions: step.rows.iter().map(|row| row.position as u32).collect(),
            pages: pages.collect(),
            picked: step.wanted.iter().map(|row| *row as u32).collect(),
            windows: windows.collect(),
            tables,
        }
    }

    /// Returns places with room for this plan: those before, or larger ones.
    pub(super) fn places(&self, before: Places) -> Places {
        let larger = |before: usize, needed: usize| {
            if needed <= before { before } else { needed.next_power_of_two() }
        };
        let items = self.windows.iter().map(|(items, _)| items.len()).max().unwrap_or(0);
        let merges = self.windows.iter().map(|(_, merges)| merges.len()).max().unwrap_or(0);
        Places {
            rows: larger(before.rows, self.rows.max(64)),
            tables: larger(before.tables, self.tables.len().max(1024)),
            items: larger(before.items, items.max(256)),
            merges: larger(before.merges, merges.max(64)),
            windows: self.windows.len(),
        }
    }

    /// Writes the integers.
    pub(super) fn write(&self, places: &Places, step: u32, out: &mut Vec<u32>) {
        out.clear();
        out.resize(places.len(), 0);
        out[Places::ROWS] = self.rows as u32;
        out[Places::WANTED] = self.wanted as u32;
        out[Places::STEP] = step;
        let mut put = |at: usize, numbers: &[u32]| {
            out[at..at + numbers.len()].copy_from_slice(numbers);
        };
        put(places.tokens(), &self.tokens);
        put(places.positions(), &self.positions);
        put(places.pages(), &self.pages);
        put(places.wanted(), &self.picked);
        put(places.tables(), &self.tables);
        let mut end = places.merges(0);
        for (window, (items, merges)) in self.windows.iter().enumerate() {
            let counts = [items.len() as u32, merges.len() as u32];
            put(Places::counts(window), &counts);
            for (at, merge) in merges.iter().enumerate() {
                put(places.merges(window) + at * MERGE, &merge.words());
            }
            for (at, item) in items.iter().enumerate() {
                put(places.items(window) + at * ITEM, &item.words());
            }
            end = places.items(window) + items.len() * ITEM;
        }
        out.truncate(end);
    }
}

/// Returns what the blocks of threads do for one window, and the results to merge.
fn items(
    step: &Step,
    starts: &[u32],
    (heads, rows_at_once): (Heads, usize),
    window: Option<usize>,
    (processors, partials): (usize, usize),
) -> (Vec<Item>, Vec<Merge>) {
    let first_split =
        |position: usize| window.map_or(0, |window| (position + 1).saturating_sub(window)) / SPLIT;
    let (mut wholes, mut spans) = (Vec::new(), Vec::new());
    for (chunk, (rows, position, _)) in step.chunks().enumerate() {
        for row in rows.clone().step_by(rows_at_once) {
            let count = rows_at_once.min(rows.end - row);
            let own = position + row - rows.start;
            let (first, last) = (first_split(own), (own + count - 1) / SPLIT);
            let places = (row as u32, count as u32);
            wholes.push(Item::whole(places, starts[chunk], (first as u32, last as u32)));
            spans.push((own, first, last));
        }
    }
    let blocks = wholes.len() * heads.keys;
    let needed = spans
        .iter()
        .zip(&wholes)
        .map(|((_, first, last), item)| item.count as usize * (last - first + 1));
    if blocks >= BLOCKS_PER_PROCESSOR * processors || needed.sum::<usize>() > partials {
        return (wholes, Vec::new());
    }
    let (mut items, mut merges, mut partial) = (Vec::new(), Vec::new(), 0);
    for (whole, (position, first, last)) in wholes.into_iter().zip(spans) {
        let splits = last - first + 1;
        if splits == 1 {
            items.push(whole);
            continue;
        }
        for split in first..=last {
            let number = partial + split - first;
            items.push(whole.piece(split as u32, number as u32, splits as u32));
        }
        for at in 0..whole.count as usize {
            let own = position + at;
            let (from, to) = (first_split(own), own / SPLIT);
            let number = partial + at * splits + from - first;
            merges.push(Merge::new(whole.row + at as u32, number as u32, (to - from + 1) as u32));
        }
        partial += whole.count as usize * splits;
    }
    (items, merges)
}
