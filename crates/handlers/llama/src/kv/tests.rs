//! Model-based tests of the block cache: which sequence holds which block, and what each contains.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use proptest::prelude::*;

use super::{BlockTable, KvCacheManager, KvFormat, Shape, Values};
use nsbridge_kernels::attention::PAGE;

const BLOCKS: usize = 12;

/// Hasher under which all keys collide.
#[derive(Default)]
struct Collides;

struct Nothing;

impl BuildHasher for Collides {
    type Hasher = Nothing;

    fn build_hasher(&self) -> Nothing {
        Nothing
    }
}

impl Hasher for Nothing {
    fn finish(&self) -> u64 {
        7
    }

    fn write(&mut self, _: &[u8]) {}
}

#[derive(Clone, Debug)]
enum Event {
    /// Starts a sequence in a scope. Few kinds of tokens exist, so many sequences share a prefix.
    Begin {
        scope: usize,
        kind: u32,
        len: usize,
    },
    Run {
        which: usize,
        tokens: usize,
    },
    Fork {
        which: usize,
        kind: u32,
    },
    Cut {
        which: usize,
        tokens: usize,
    },
    End {
        which: usize,
    },
    ForgetAll,
}

fn event() -> impl Strategy<Value = Event> {
    let which = 0..8usize;
    prop_oneof![
        3 => (0..2usize, 0..3u32, 1..5 * PAGE)
            .prop_map(|(scope, kind, len)| Event::Begin { scope, kind, len }),
        5 => (which.clone(), 1..3 * PAGE).prop_map(|(which, tokens)| Event::Run { which, tokens }),
        1 => (which.clone(), 0..3u32).prop_map(|(which, kind)| Event::Fork { which, kind }),
        1 => (which.clone(), 0..4 * PAGE).prop_map(|(which, tokens)| Event::Cut { which, tokens }),
        2 => which.prop_map(|which| Event::End { which }),
        1 => Just(Event::ForgetAll),
    ]
}

/// Returns tokens that are equal for two blocks and then differ by kind.
fn tokens_of(kind: u32) -> Vec<u32> {
    (0..6 * PAGE as u32).map(|i| if i < 2 * PAGE as u32 { i } else { 1000 * kind + i }).collect()
}

struct Sequence {
    table: BlockTable,
    scope: usize,
    tokens: Vec<u32>,
    /// Number of tokens to compute in total.
    len: usize,
}

/// Returns the expected cache entry for a prefix in a scope: a hash of both.
fn mark(scope: usize, prefix: &[u32]) -> f32 {
    let mixed = prefix.iter().fold(scope as u32 + 1, |mixed, token| {
        (mixed ^ token).wrapping_mul(0x9e37_79b1).rotate_left(11)
    });
    (mixed >> 9) as f32
}

const SHAPE: Shape = Shape { layers: 2, kv_heads: 1, dim: 1, blocks: BLOCKS };

struct World<S> {
    cache: KvCacheManager<S>,
    values: Values,
    scopes: [Arc<str>; 2],
    sequences: Vec<Sequence>,
}

impl<S: BuildHasher + Default> World<S> {
    fn new() -> Self {
        let cache = KvCacheManager::new(BLOCKS).unwrap();
        let values = Values::new(KvFormat::F32, SHAPE).unwrap();
        Self { cache, values, scopes: ["a".into(), "b".into()], sequences: Vec::new() }
    }

    /// Computes tokens: writes their marks if the sequence gets the blocks.
    fn run(&mut self, which: usize, tokens: usize) {
        let Sequence { table, scope, tokens: all, len } = &mut self.sequences[which];
        let count = tokens.min(*len - table.len);
        if count == 0 || !self.cache.reserve(table, count) {
            return;
        }
        for (from, to) in self.cache.take_copies() {
            self.values.copy(SHAPE, from, to);
        }
        for position in table.len..table.len + count {
            let block = table.blocks[position / PAGE];
            assert_eq!(self.cache.pool.of(block), (1, false), "written by its one holder alone");
            let mark = mark(*scope, &all[..=position]);
            let Values::F32(data) = &mut self.values else { unreachable!() };
            for layer in 0..SHAPE.layers {
                data.write(SHAPE, (layer, 0), (block, position), &[mark], &[mark]);
            }
        }
        table.grow(count);
        self.cache.remember(table, &self.scopes[*scope], all);
    }

    fn play(&mut self, event: &Event) {
        let count = self.sequences.len().max(1);
        match *event {
            Event::Begin { scope, kind, len } => {
                let (mut table, tokens) = (BlockTable::default(), tokens_of(kind));
                self.cache.recall(&mut table, &self.scopes[scope], &tokens[..len]);
                assert!(table.len < len, "the last token is run");
                self.sequences.push(Sequence { table, scope, tokens, len });
            }
            Event::ForgetAll => self.cache.forget_all(),
            _ if self.sequences.is_empty() => {}
            Event::Run { which, tokens } => self.run(which % count, tokens),
            Event::Fork { which, kind } => {
                let Sequence { table, scope, tokens, len } = &self.sequences[which % count];
                let fork = self.cache.fork(table);
                let (scope, len, run) = (*scope, *len, fork.len);
                let mut tokens = tokens.clone();
                tokens.truncate(run);
                tokens.extend((run..6 * PAGE).map(|i| 5000 + 1000 * kind + i as u32));
                self.sequences.push(Sequence { table: fork, scope, tokens, len });
            }
            Event::Cut { which, tokens } => {
                let table = &mut self.sequences[which % count].table;
                self.cache.truncate(table, table.len.saturating_sub(tokens));
            }
            Event::End { which } => {
                let ended = self.sequences.swap_remove(which % count);
                self.cache.release(ended.table);
            }
        }
    }

    /// Checks that every position holds the mark of its prefix and scope, and that every holder is
    /// counted.
    fn check(&self) {
        let Values::F32(data) = &self.values else { unreachable!() };
        let mut holders: HashMap<u32, u32> = HashMap::new();
        for Sequence { table, scope, tokens, .. } in &self.sequences {
            for block in &table.blocks {
                *holders.entry(*block).or_default() += 1;
            }
            for position in 0..table.len {
                let right = mark(*scope, &tokens[..=position]);
                let block = table.blocks[position / PAGE] as usize;
                for layer in 0..2 {
                    let at = (layer * BLOCKS + block) * PAGE + position % PAGE;
                    assert_eq!(data.keys[at], right, "position {position}");
                    assert_eq!(data.values[at], right, "position {position}");
                }
            }
        }
        let state = |block: u32| self.cache.pool.of(block);
        for block in 0..BLOCKS as u32 {
            assert_eq!(state(block).0, holders.get(&block).copied().unwrap_or(0), "{block}");
        }
        assert_eq!(self.cache.free(), BLOCKS - holders.len(), "neither lost nor given twice");
        let remembered = (0..BLOCKS as u32).filter(|block| state(*block).1).count();
        assert_eq!(self.cache.pool.known(), remembered);
    }
}

fn play<S: BuildHasher + Default>(events: &[Event]) {
    let mut world = World::<S>::new();
    for event in events {
        world.play(event);
        world.check();
    }
    for sequence in std::mem::take(&mut world.sequences) {
        world.cache.release(sequence.table);
    }
    world.check();
    assert_eq!(world.cache.free(), BLOCKS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn blocks_are_neither_lost_nor_mixed_up(events in prop::collection::vec(event(), 1..60)) {
        play::<RandomState>(&events);
    }

    #[test]
    fn nor_where_every_hash_collides(events in prop::collection::vec(event(), 1..60)) {
        play::<Collides>(&events);
    }
}

#[test]
fn what_another_began_with_is_recalled_in_its_scope_alone() {
    let mut world = World::<RandomState>::new();
    let begin = |scope, kind| Event::Begin { scope, kind, len: 3 * PAGE + 5 };
    world.play(&begin(0, 1));
    world.run(0, 1000);
    for (scope, kind, recalled) in [(0, 1, 3), (0, 2, 2), (1, 1, 0)] {
        world.play(&begin(scope, kind));
        let table = &world.sequences.last().unwrap().table;
        assert_eq!(table.len, recalled * PAGE, "scope {scope}, kind {kind}");
    }
    // The prefix is still found after the end of the sequence, until its blocks are needed.
    for _ in 0..4 {
        world.play(&Event::End { which: 0 });
    }
    world.play(&begin(0, 1));
    assert_eq!(world.sequences[0].table.len, 3 * PAGE);
    world.check();
}

#[test]
fn the_longest_unused_is_forgotten_first_and_its_end_before_its_beginning() {
    let mut world = World::<RandomState>::new();
    for (scope, kind) in [(0, 1), (1, 2)] {
        world.play(&Event::Begin { scope, kind, len: 5 * PAGE });
        world.run(0, 1000);
        world.play(&Event::End { which: 0 });
    }
    // Ten of twelve blocks are cached: six more evict the last four of the first sequence.
    world.play(&Event::Begin { scope: 0, kind: 0, len: 1 });
    let table = &mut world.sequences[0].table;
    assert!(world.cache.reserve(table, 6 * PAGE));
    for (scope, kind, recalled) in [(0, 1, 1), (1, 2, 4)] {
        let (mut table, tokens) = (BlockTable::default(), tokens_of(kind));
        world.cache.recall(&mut table, &world.scopes[scope], &tokens[..5 * PAGE]);
        assert_eq!(table.len, recalled * PAGE, "scope {scope}");
        world.cache.release(table);
    }
}

#[test]
fn what_is_run_again_is_kept_once() {
    let mut world = World::<RandomState>::new();
    world.play(&Event::Begin { scope: 0, kind: 1, len: 4 * PAGE });
    world.run(0, 1000);
    let blocks = world.sequences[0].table.blocks.clone();
    world.play(&Event::Cut { which: 0, tokens: 2 * PAGE + 9 });
    assert!(!world.cache.may_write(&world.sequences[0].table), "others may find that block");
    world.run(0, 1000);
    world.check();
    assert_eq!(world.sequences[0].table.blocks, blocks, "those that were remembered");
}

#[test]
fn a_sequence_that_is_alone_has_room_to_the_last_block() {
    let mut world = World::<RandomState>::new();
    world.play(&Event::Begin { scope: 0, kind: 1, len: 6 * PAGE });
    world.run(0, 1000);
    world.play(&Event::Cut { which: 0, tokens: 3 * PAGE + 9 });
    let table = &mut world.sequences[0].table;
    assert!(!world.cache.may_write(table), "others may find that block");
    let (len, known) = (table.len, world.cache.pool.known());
    assert!(!world.cache.reserve(table, BLOCKS * PAGE - len + 1));
    assert!(!world.cache.may_write(table), "nothing was given");
    assert!(world.cache.reserve(table, BLOCKS * PAGE - len));
    assert!(world.cache.may_write(table) && world.cache.take_copies().is_empty());
    // The blocks before it stay cached.
    assert_eq!((world.cache.free(), known, world.cache.pool.known()), (0, 6, 2));
    assert_eq!(world.cache.evictions(), 4);
    world.check();
    // A second holder keeps the block.
    let mut world = World::<RandomState>::new();
    world.play(&Event::Begin { scope: 0, kind: 1, len: 6 * PAGE });
    world.run(0, PAGE + 9);
    world.play(&Event::Fork { which: 0, kind: 1 });
    let table = &mut world.sequences[1].table;
    assert!(!world.cache.reserve(table, 11 * PAGE - 9));
    world.check();
}

/// After a key is revoked, blocks computed under it are not reused.
#[test]
fn what_is_forgotten_is_recalled_by_none_and_its_room_is_free() {
    let mut world = World::<RandomState>::new();
    let begin = |world: &mut World<RandomState>| {
        world.play(&Event::Begin { scope: 0, kind: 1, len: 5 * PAGE });
        world.sequences.last().unwrap().table.len
    };
    assert_eq!(begin(&mut world), 0);
    world.play(&Event::Run { which: 0, tokens: 5 * PAGE });
    // A running sequence keeps its blocks.
    assert_eq!(begin(&mut world), 4 * PAGE);
    world.play(&Event::ForgetAll);
    world.check();
    assert_eq!(begin(&mut world), 0, "it was recalled all the same");
    for _ in 0..3 {
        world.play(&Event::End { which: 0 });
    }
    assert_eq!(world.cache.free(), BLOCKS);
    assert_eq!(begin(&mut world), 0);
}
