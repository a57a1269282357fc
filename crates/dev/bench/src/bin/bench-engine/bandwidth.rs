//! Memory read bandwidth of this machine, the upper bound for a step that reads each weight once.

use std::hint::black_box;
use std::iter::repeat_n;
use std::thread;
use std::time::Instant;

use anyhow::Result;
use nsbridge_kernels::prefetch::{DISTANCES, prefetch_ahead};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of each thread's buffer, many times the size of the caches.
const BYTES: usize = 512 << 20;

/// Bytes that a thread reads in its turn, as the kernels share a matrix out.
const TURN: usize = 64 << 10;

/// Number of reads in the fastest way, after one in each way.
const READS: usize = 4;

/// Buffers of small and huge pages, reused between rounds because their allocation takes longer
/// than a read.
pub(crate) struct Bandwidth {
    buffers: Vec<[Pages; 2]>,
}

/// Way to read all buffers once.
#[derive(Clone, Copy)]
struct Way {
    /// Index of the kind of pages.
    pages: usize,
    /// True if all threads read each buffer, in turns of [`TURN`] bytes; false if each has its own buffer.
    in_turns: bool,
    /// Prefetch distance in bytes; 0 for none.
    distance: usize,
}

impl Bandwidth {
    /// Allocates the buffers for `threads` threads.
    pub(crate) fn new(threads: usize) -> Result<Self> {
        let both =
            || Ok([Pages::new(Advice::LinuxNoHugepage)?, Pages::new(Advice::LinuxHugepage)?]);
        Ok(Self { buffers: (0..threads).map(|_| both()).collect::<Result<_>>()? })
    }

    /// Measures the bytes per second of all threads together, in the fastest of all ways in which the kernels
    /// read weights.
    pub(crate) fn measure(&self) -> f64 {
        let ways = [0, 1].into_iter().flat_map(|pages| {
            [false, true].into_iter().flat_map(move |in_turns| {
                DISTANCES.into_iter().map(move |distance| Way { pages, in_turns, distance })
            })
        });
        let rates = ways.map(|way| (way, self.read(way)));
        let Some((way, rate)) = rates.max_by(|a, b| a.1.total_cmp(&b.1)) else { return 0.0 };
        // The maximum of several measurements approximates the machine's capability, even if other
        // processes use it too.
        repeat_n(way, READS).map(|way| self.read(way)).fold(rate, f64::max)
    }

    /// Reads all buffers once, and returns the bytes per second.
    fn read(&self, way: Way) -> f64 {
        let threads = self.buffers.len();
        let started = Instant::now();
        thread::scope(|scope| {
            for own in 0..threads {
                scope.spawn(move || {
                    if !way.in_turns {
                        black_box(sum(self.buffers[own][way.pages].words(), way.distance));
                        return;
                    }
                    for buffers in &self.buffers {
                        let turns = buffers[way.pages].words().chunks(TURN / 8);
                        for turn in turns.skip(own).step_by(threads) {
                            black_box(sum(turn, way.distance));
                        }
                    }
                });
            }
        });
        (BYTES * threads) as f64 / started.elapsed().as_secs_f64()
    }
}

/// XORs 64 words at a time, so that the loads limit the speed and not the arithmetic.
fn sum(words: &[u64], distance: usize) -> u64 {
    let mut sums = [0_u64; 64];
    for block in words.as_chunks::<64>().0 {
        if distance > 0 {
            for line in block.as_chunks::<8>().0 {
                prefetch_ahead(line.as_ptr(), distance);
            }
        }
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
