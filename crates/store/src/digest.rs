//! Digests of chunks that add up to the digest of their file.
//!
//! BLAKE3 is a tree over 1 KiB leaves, so an aligned power of two of bytes is a subtree: its chaining
//! value verifies a chunk alone, and the chaining values of all chunks give the hash of the file, the
//! one that `b3sum` prints (O'Connor et al., the BLAKE3 paper, section 2.1). A file of one chunk has
//! the hash itself for that chunk's value.

use blake3::Hasher;
use blake3::hazmat::{
    HasherExt as _, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};

/// A chunk's value, or a file's hash.
pub(crate) type Digest = [u8; 32];

/// Hashes one chunk of a file.
#[derive(Clone, Debug)]
pub(crate) struct ChunkHasher {
    hasher: Hasher,
    offset: u64,
    alone: bool,
}

impl ChunkHasher {
    /// For the chunk that begins at `offset`, a multiple of the chunks' size. `alone` if the file
    /// has no other.
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

/// The hash of a file of `size` bytes, from the values of its chunks of `chunk` bytes.
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
