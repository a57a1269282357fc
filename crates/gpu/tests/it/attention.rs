//! Attention has the CPU's bits, whatever the blocks of threads.

use std::sync::Arc;

use nsbridge_gpu::attention::{
    Attention, AttentionPlan, Heads, Item, KvCache, Merge, PAGE, Place, SPLIT,
};
use nsbridge_gpu::device::{Buffer, Device};
use nsbridge_kernels::attention::{Attention as CpuAttention, Pages, Token};
use nsbridge_kernels::{ThreadPool, Tier};

use crate::{assert_bits, count, counts, device, numbers, read};

/// Sequence of some length, whose last rows attend.
struct Case {
    heads: Heads,
    length: usize,
    rows: usize,
    window: Option<usize>,
    brains: bool,
}

impl Case {
    fn table(&self) -> Vec<u32> {
        // Pages in another order than their positions.
        let pages = self.length.div_ceil(PAGE) as u32;
        (0..pages).map(|page| (page * 7 + 3) % pages).collect()
    }

    fn width(&self) -> usize {
        (self.heads.queries + 2 * self.heads.keys) * self.heads.dim
    }

    /// Queries, keys and values of all positions.
    fn x(&self) -> Vec<f32> {
        numbers(11, self.length * self.width()).iter().map(|x| x * 2.0).collect()
    }

    /// Returns the bits of the CPU, for the last rows.
    fn of_cpu(&self) -> Vec<f32> {
        let (Heads { queries, keys, dim }, table) = (self.heads, self.table());
        let (x, size) = (self.x(), dim * PAGE);
        let rounded = |x: f32| if self.brains { half::bf16::from_f32(x).to_f32() } else { x };
        let pages = table.iter().copied().max().unwrap_or(0) as usize + 1;
        let mut cached = [vec![0.0f32; pages * keys * size], vec![0.0f32; pages * keys * size]];
        for position in 0..self.length {
            let page = table[position / PAGE] as usize;
            for head in 0..keys {
                let start = (page * keys + head) * size;
                for d in 0..dim {
                    let key = x[position * self.width() + (queries + head) * dim + d];
                    let value = x[position * self.width() + (queries + keys + head) * dim + d];
                    cached[0][start + d * PAGE + position % PAGE] = rounded(key);
                    cached[1][start + position % PAGE * dim + d] = rounded(value);
                }
            }
        }
        let rows = self.length - self.rows..self.length;
        let tokens: Vec<_> = rows.map(|row| Token { row, position: row, table: &table }).collect();
        let mut out = vec![0.0; self.length * queries * dim];
        let attention = CpuAttention {
            queries: &x,
            stride: self.width(),
            heads: keys,
            group: self.heads.group(),
            dim,
            scale: (1.0 / (dim as f64).sqrt()) as f32,
            window: self.window,
            tokens: &tokens,
            keys: Pages { data: &cached[0][..], stride: keys * size },
            values: Pages { data: &cached[1][..], stride: keys * size },
        };
        attention.run((&mut ThreadPool::new(2), Tier::best()), &mut Vec::new(), &mut out);
        out.split_off((self.length - self.rows) * queries * dim)
    }

    /// Returns the bits of the device. With `pieces`, each split is an item.
    fn on(&self, device: &Arc<dyn Device>, rows_at_once: usize, pieces: bool) -> Vec<f32> {
        let Heads { queries, dim, .. } = self.heads;
        let (table, width) = (self.table(), self.width());
        let cache = KvCache::new(device, self.heads, (1, table.len()), self.brains).unwrap();
        let x = Buffer::of(device, &self.x()).unwrap();
        let all: Vec<u32> = (0..self.length as u32).collect();
        let positions = counts(device, &all);
        let pages: Vec<u32> = all.iter().map(|at| table[*at as usize / PAGE]).collect();
        let pages = counts(device, &pages);
        // Angles of zero turn nothing.
        let angles = [vec![1.0f32; self.length * dim / 2], vec![0.0; self.length * dim / 2]]
            .map(|x| Buffer::of(device, &x).unwrap());
        let place = Place {
            x: &x,
            stride: width,
            positions: count(&positions),
            pages: count(&pages),
            angles: angles.each_ref(),
            norms: None,
            eps: 0.0,
        };
        let n = counts(device, &[self.length as u32]);
        place.write((count(&n), self.length), (&cache, 0)).unwrap();

        let first_row = self.length - self.rows;
        let own = Buffer::of(device, &self.x()[first_row * width..]).unwrap();
        let first_of =
            |row: usize| self.window.map_or(0, |w| (first_row + row + 1).saturating_sub(w)) / SPLIT;
        let last_of = |row: usize| (first_row + row) / SPLIT;
        let (mut items, mut merges, mut partials) = (Vec::new(), Vec::new(), 0);
        for row in (0..self.rows).step_by(rows_at_once) {
            let count = rows_at_once.min(self.rows - row);
            let (first, last) = (first_of(row), last_of(row + count - 1));
            let item = Item::whole((row as u32, count as u32), 0, (first as u32, last as u32));
            let splits = last - first + 1;
            if !pieces || splits == 1 {
                items.push(item);
                continue;
            }
            for (at, split) in (first..=last).enumerate() {
                items.push(item.piece(split as u32, (partials + at) as u32, splits as u32));
            }
            for own in row..row + count {
                let partial = partials + (own - row) * splits + first_of(own) - first;
                let many = last_of(own) - first_of(own) + 1;
                merges.push(Merge::new(own as u32, partial as u32, many as u32));
            }
            partials += count * splits;
        }
        let both = counts(device, &[items.len() as u32, merges.len() as u32]);
        let row_positions: Vec<u32> = (first_row as u32..self.length as u32).collect();
        let (row_positions, tables) = (counts(device, &row_positions), counts(device, &table));
        let attention = Attention::new(device, self.heads, partials).unwrap();
        let items_there = Buffer::of(device, &items).unwrap();
        let merges_there = Buffer::of(device, &merges).unwrap();
        let plan = AttentionPlan {
            counts: count(&both),
            items: count(&items_there),
            merges: count(&merges_there),
            tables: count(&tables),
            positions: count(&row_positions),
            rows_at_once,
            most_merges: merges.len(),
            window: self.window,
        };
        let len = self.rows * queries * dim;
        let out = Buffer::zeroed(device, 4 * len).unwrap();
        attention.attend((&own, width), self.rows, &plan, (&cache, 0), &out).unwrap();
        read(&out, len)
    }
}

#[test]
fn attention_has_the_bits_of_the_cpu_in_whole_and_in_pieces() {
    let heads = |queries, keys, dim| Heads { queries, keys, dim };
    let cases = [
        (heads(2, 2, 16), 5, 1, None),
        (heads(4, 2, 24), 300, 3, None),
        (heads(8, 1, 64), 520, 5, None),
        (heads(6, 2, 40), 700, 9, Some(290)),
        (heads(20, 1, 16), 258, 2, Some(3)),
        (heads(3, 3, 128), 33, 33, None),
        (heads(2, 1, 320), 270, 4, Some(256)),
    ];
    for (heads, length, rows, window) in cases {
        for brains in [false, true] {
            let case = Case { heads, length, rows, window, brains };
            let expected = case.of_cpu();
            for (order, at_once) in [(0, 1), (1, heads.rows_at_once()), (5, heads.rows_at_once())] {
                for pieces in [false, true] {
                    let ours = case.on(&device(order), at_once, pieces);
                    let what = format!("{heads:?} {length} {rows} {window:?} {brains} {pieces}");
                    assert_bits(&ours, &expected, &what);
                }
            }
        }
    }
}
