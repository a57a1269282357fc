//! Reference counts, sharing, prefix caching and eviction of blocks.
//!
//! A block full of committed tokens is cached by its content: its tokens and the block before it
//! or, for the first block of a sequence, the scope that may see it. The next sequence with the
//! same prefix reuses the block instead of computing it again. The map's key is the content itself,
//! not its hash, and the block before is identified by a serial number that is never reused. So a
//! block is found only by its whole prefix, whatever hashes collide and whatever is evicted in
//! between. (Prefix caching as in vLLM, Kwon et al., arXiv:2309.06180, which trusts the hash.)

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use nsbridge_kernels::attention::PAGE;

/// Key of a cached block: its tokens and its predecessor.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Content {
    before: Before,
    tokens: [u32; PAGE],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Before {
    /// None: this is the first block of a sequence in this scope.
    Start(Arc<str>),
    /// Cached block with this serial number.
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
    /// Time at which the last holder released the block, valid while there is no holder.
    idle: u64,
}

/// All blocks of a cache.
#[derive(Debug)]
pub(super) struct BlockPool<S = RandomState> {
    blocks: Vec<Block>,
    /// BlockPool that are neither held nor cached.
    free: Vec<u32>,
    known: HashMap<Arc<Content>, u32, S>,
    /// BlockPool that are cached and not held, by the time of their release.
    idle: BTreeMap<u64, u32>,
    /// Logical clock for serial numbers and release times.
    clock: u64,
    evictions: u64,
}

impl<S: BuildHasher + Default> BlockPool<S> {
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

    /// Returns the number of blocks that can be allocated.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Returns how many cached blocks have been evicted.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Allocates a block to write to. If no block is free, the one released first is evicted.
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

    /// Adds a holder to a block.
    pub(super) fn retain(&mut self, block: u32) {
        let place = &mut self.blocks[block as usize];
        if let (0, Some(memory)) = (place.holders, &place.memory) {
            self.idle.remove(&memory.idle);
        }
        place.holders += 1;
    }

    /// Removes a holder from a block. Without holders, a block becomes idle if it is cached, else
    /// free.
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

    /// Returns true if the block has one holder, which may write to it.
    pub(super) fn is_private(&self, block: u32) -> bool {
        let block = &self.blocks[block as usize];
        block.holders == 1 && block.memory.is_none()
    }

    /// Evicts a block that has one holder, which may then write to it. Returns `false` if it has
    /// more.
    pub(super) fn make_private(&mut self, block: u32) -> bool {
        let alone = self.blocks[block as usize].holders == 1;
        if alone && self.blocks[block as usize].memory.is_some() {
            self.forget(block);
            self.evictions += 1;
        }
        alone
    }

    /// Returns the cached block with these tokens after `before`, or at the start of the scope.
    pub(super) fn find(
        &self,
        scope: &Arc<str>,
        before: Option<u32>,
        tokens: &[u32; PAGE],
    ) -> Option<u32> {
        let content = Content { before: self.before(scope, before)?, tokens: *tokens };
        self.known.get(&content).copied()
    }

    /// Caches the content of a block, unless another block has the same content. Returns the block
    /// to use.
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

    /// Returns `None` if the block before is not cached.
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

    /// Clears the prefix cache. Held blocks stay with their holders and become free after them.
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
impl<S> BlockPool<S> {
    /// Returns the number of holders of a block, and whether it is cached.
    pub(super) fn of(&self, block: u32) -> (u32, bool) {
        let block = &self.blocks[block as usize];
        (block.holders, block.memory.is_some())
    }

    pub(super) fn known(&self) -> usize {
        self.known.len()
    }
}
