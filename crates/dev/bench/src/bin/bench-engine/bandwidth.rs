//! Memory read bandwidth of this machine, the upper bound for a step that reads each weight once.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use anyhow::Result;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes that each thread reads, many times the size of the caches.
const BYTES: usize = 512 << 20;

/// Buffers of small and huge pages, reused between rounds because their allocation takes longer
/// than a read.
pub(crate) struct Bandwidth {
    buffers: Vec<[Pages; 2]>,
}

impl Bandwidth {
    /// Allocates the buffers for `threads` threads.
    pub(crate) fn new(threads: usize) -> Result<Self> {
        let both =
            || Ok([Pages::new(Advice::LinuxNoHugepage)?, Pages::new(Advice::LinuxHugepage)?]);
        Ok(Self { buffers: (0..threads).map(|_| both()).collect::<Result<_>>()? })
    }

    /// Measures the bytes per second of all threads together, the better one of small and huge
    /// pages.
    pub(crate) fn measure(&self) -> f64 {
        let rate = |kind: usize| {
            let started = Instant::now();
            thread::scope(|scope| {
                for buffers in &self.buffers {
                    scope.spawn(|| black_box(sum(buffers[kind].words())));
                }
            });
            (BYTES * self.buffers.len()) as f64 / started.elapsed().as_secs_f64()
        };
        // The maximum of several measurements approximates the machine's capability, even if other
        // processes use it too.
        (0..6).map(|round| rate(round % 2)).fold(0.0, f64::max)
    }
}

/// XORs 64 words at a time, so that the loads limit the speed and not the arithmetic.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0_u64; 64];
    for block in words.as_chunks::<64>().0 {
        for (sum, word) in sums.iter_mut().zip(block) {
            *sum ^= word;
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}

struct Pages(*mut std::ffi::c_void);

// SAFETY: the memory is only read after `new`.
#[expect(unsafe_code, reason = "pages of a chosen kind")]
unsafe impl Sync for Pages {}

#[expect(unsafe_code, reason = "pages of a chosen kind")]
impl Pages {
    fn new(advice: Advice) -> Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the system chooses the address of the new mapping, and the advice covers only
        // this mapping.
        let pages = unsafe {
            let start = mmap_anonymous(std::ptr::null_mut(), BYTES, protection, flags)?;
            // A system without huge pages uses small pages for both.
            let _ = madvise(start, BYTES, advice);
            Self(start)
        };
        // SAFETY: the mapping has `BYTES` bytes and no other reference.
        unsafe { std::ptr::write_bytes(pages.0.cast::<u8>(), 1, BYTES) };
        Ok(pages)
    }

    fn words(&self) -> &[u64] {
        // SAFETY: `BYTES` of initialized memory at a page boundary, which lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.0.cast(), BYTES / 8) }
    }
}

#[expect(unsafe_code, reason = "pages of a chosen kind")]
impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size.
        let _ = unsafe { munmap(self.0, BYTES) };
    }
}
