//! Chunk digests that combine into the digest of their file.
//!
//! BLAKE3 is a tree over leaves of 1 KiB, so an aligned block whose size is a power of two is a
//! subtree. The chaining value of a chunk verifies the chunk alone. The chaining values of all
//! chunks combine into the hash of the file, the one that `b3sum` prints (O'Connor et al., the
//! BLAKE3 paper, section 2.1). If a file has only one chunk, that chunk's value is the file's hash
//! itself.

use blake3::Hasher;
use blake3::hazmat::{
    HasherExt as _, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};

/// Chaining value of a chunk, or hash of a file.
pub(crate) type Digest = [u8; 32];

/// Incremental hasher of one chunk of a file.
#[derive(Clone, Debug)]
pub(crate) struct ChunkHasher {
    hasher: Hasher,
    offset: u64,
    alone: bool,
}

impl ChunkHasher {
    /// Creates a hasher for the chunk at byte `offset`, a multiple of the chunk size. `alone` is
    /// true if the chunk is the file's only one.
    pub(crate) fn new(offset: u64, alone: bool) -> Self {
        let mut hasher = Hasher::new();
        hasher.set_input_offset(offset);
        Self { hasher, offset, alone }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    pub(crate) fn restart(&mut self) {
        *self = Self::new(self.offset, self.alone);
    }

    pub(crate) fn finish(&self) -> Digest {
        if self.alone { self.hasher.finalize().into() } else { self.hasher.finalize_non_root() }
    }
}

/// Combines the values of chunks of `chunk` bytes into the hash of a file of `size` bytes.
pub(crate) fn file_digest(size: u64, chunk: u64, values: &[Digest]) -> Digest {
    match values {
        [] => blake3::hash(b"").into(),
        [only] => *only,
        _ => {
            let (left, right) = halves(size, chunk, values);
            merge_subtrees_root(&left, &right, Mode::Hash).into()
        }
    }
}

fn halves(size: u64, chunk: u64, values: &[Digest]) -> (Digest, Digest) {
    let left = left_subtree_len(size);
    let (first, second) = values.split_at((left / chunk) as usize);
    (inner(left, chunk, first), inner(size - left, chunk, second))
}

fn inner(size: u64, chunk: u64, values: &[Digest]) -> Digest {
    if let [only] = values {
        return *only;
    }
    let (left, right) = halves(size, chunk, values);
    merge_subtrees_non_root(&left, &right, Mode::Hash)
}

#[cfg(test)]
mod tests {
    use super::{ChunkHasher, file_digest};

    #[test]
    fn the_values_of_the_chunks_make_the_hash_of_the_file() {
        const CHUNK: u64 = 64 << 10;
        let sizes = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5 * CHUNK + 17, 8 * CHUNK];
        for size in sizes {
            let bytes: Vec<u8> = (0..size).map(|i| (i * i % 251) as u8).collect();
            let chunks = bytes.chunks(CHUNK as usize);
            let alone = size <= CHUNK;
            let values: Vec<_> = chunks
                .zip(0..)
                .map(|(chunk, i)| {
                    let mut hasher = ChunkHasher::new(i * CHUNK, alone);
                    chunk.chunks(1000).for_each(|part| hasher.update(part));
                    hasher.finish()
                })
                .collect();
            let whole: [u8; 32] = blake3::hash(&bytes).into();
            assert_eq!(file_digest(size, CHUNK, &values), whole, "{size}");
        }
    }
}
