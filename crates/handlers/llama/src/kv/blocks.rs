//! Whose the blocks are: counted, shared, remembered and forgotten.
//!
//! A block that holds a whole run of committed tokens is remembered by its content: its tokens, and
//! the block before it or, for a sequence's first, the scope that may see it. The next sequence
//! that begins alike takes it instead of computing it again. The content itself is the key of the
//! map, not its hash, and the block before is named by a number that is never used again: so
//! whatever collides or is evicted in between, a block is found by its own whole prefix only.
//! (Prefix caching as in vLLM, Kwon et al., arXiv:2309.06180, which trusts the hash.)

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use crate::kernel::attention::PAGE;

/// What a remembered block holds.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Content {
    before: Before,
    tokens: [u32; PAGE],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Before {
    /// Nothing: the first block of whoever is in this scope.
    Start(Arc<str>),
    /// The remembered block with this serial number.
    Block(u64),
}

#[derive(Debug, Default)]
struct Block {
    holders: u32,
    memory: Option<Remembered>,
}

#[derive(Debug)]
struct Remembered {
    content: Arc<Content>,
    serial: u64,
    /// When the last holder let go of it, while nobody holds it.
    idle: u64,
}

/// The blocks of a cache.
#[derive(Debug)]
pub(super) struct Blocks<S = RandomState> {
    blocks: Vec<Block>,
    /// Neither held nor remembered.
    free: Vec<u32>,
    known: HashMap<Arc<Content>, u32, S>,
    /// Remembered and not held, by when they were let go.
    idle: BTreeMap<u64, u32>,
    /// Counts what happens: serial numbers and moments.
    clock: u64,
    evictions: u64,
}

impl<S: BuildHasher + Default> Blocks<S> {
    pub(super) fn new(count: u32) -> Self {
        Self {
            blocks: (0..count).map(|_| Block::default()).collect(),
            free: (0..count).rev().collect(),
            known: HashMap::default(),
            idle: BTreeMap::new(),
            clock: 0,
            evictions: 0,
        }
    }

    /// Blocks that can be taken.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// How often a remembered block was needed for something else.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// A block to write to; the one that was let go first is forgotten for it, if it must be.
    pub(super) fn take(&mut self) -> Option<u32> {
        let block = self.free.pop().or_else(|| {
            let (_, block) = self.idle.pop_first()?;
            self.forget(block);
            self.evictions += 1;
            Some(block)
        })?;
        self.blocks[block as usize].holders = 1;
        Some(block)
    }

    /// One more holder.
    pub(super) fn hold(&mut self, block: u32) {
        let place = &mut self.blocks[block as usize];
        if let (0, Some(memory)) = (place.holders, &place.memory) {
            self.idle.remove(&memory.idle);
        }
        place.holders += 1;
    }

    /// One holder less; what nobody holds is free, or idle if it is remembered.
    pub(super) fn let_go(&mut self, block: u32) {
        let now = self.tick();
        let place = &mut self.blocks[block as usize];
        place.holders -= 1;
        match &mut place.memory {
            _ if place.holders > 0 => {}
            None => self.free.push(block),
            Some(memory) => {
                memory.idle = now;
                self.idle.insert(now, block);
            }
        }
    }

    /// Whether its only holder may write to it.
    pub(super) fn is_private(&self, block: u32) -> bool {
        let block = &self.blocks[block as usize];
        block.holders == 1 && block.memory.is_none()
    }

    /// Forgets a block that has one holder, who may write to it then; `false` if it has others.
    pub(super) fn make_private(&mut self, block: u32) -> bool {
        let alone = self.blocks[block as usize].holders == 1;
        if alone && self.blocks[block as usize].memory.is_some() {
            self.forget(block);
            self.evictions += 1;
        }
        alone
    }

    /// The block with these tokens behind `before`, or at the beginning of the scope.
    pub(super) fn find(
        &self,
        scope: &Arc<str>,
        before: Option<u32>,
        tokens: &[u32; PAGE],
    ) -> Option<u32> {
        let content = Content { before: self.before(scope, before)?, tokens: *tokens };
        self.known.get(&content).copied()
    }

    /// Remembers what a block holds, unless another holds the same: gives the one to use.
    pub(super) fn remember(
        &mut self,
        scope: &Arc<str>,
        before: Option<u32>,
        tokens: &[u32; PAGE],
        block: u32,
    ) -> u32 {
        if self.blocks[block as usize].memory.is_some() {
            return block;
        }
        let Some(before) = self.before(scope, before) else { return block };
        let content = Arc::new(Content { before, tokens: *tokens });
        if let Some(other) = self.known.get(&content) {
            return *other;
        }
        let serial = self.tick();
        self.known.insert(content.clone(), block);
        self.blocks[block as usize].memory = Some(Remembered { content, serial, idle: 0 });
        block
    }

    /// `None` if the block before is not remembered.
    fn before(&self, scope: &Arc<str>, block: Option<u32>) -> Option<Before> {
        let Some(block) = block else { return Some(Before::Start(scope.clone())) };
        let memory = self.blocks[block as usize].memory.as_ref()?;
        Some(Before::Block(memory.serial))
    }

    fn forget(&mut self, block: u32) {
        if let Some(memory) = self.blocks[block as usize].memory.take() {
            self.known.remove(&memory.content);
        }
    }

    /// Forgets all that is remembered. What is held stays with its holders, and is free after them.
    pub(super) fn forget_all(&mut self) {
        for (block, number) in self.blocks.iter_mut().zip(0..) {
            if block.memory.take().is_some() && block.holders == 0 {
                self.free.push(number);
            }
        }
        self.known.clear();
        self.idle.clear();
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

#[cfg(test)]
impl<S> Blocks<S> {
    /// How many hold a block, and whether it is remembered.
    pub(super) fn of(&self, block: u32) -> (u32, bool) {
        let block = &self.blocks[block as usize];
        (block.holders, block.memory.is_some())
    }

    pub(super) fn known(&self) -> usize {
        self.known.len()
    }
}
