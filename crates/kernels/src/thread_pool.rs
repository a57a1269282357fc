//! Compute thread pool with work stealing over numbered parts of a job.
//!
//! Each thread starts with a contiguous range of parts, since long sequential reads of memory are
//! faster. A thread with no parts left steals half of another thread's range. So on a machine with
//! other load, an interrupted thread does fewer parts. A thread that wakes too late to join a job
//! is not waited for.

#![expect(unsafe_code, reason = "threads that outlive a call are lent what lives for the call")]

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::disjoint_slice::DisjointSlice;

/// Duration of spinning for work before a thread sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// Bits of the gate word: its upper half is the job number, then an open flag and the count of
/// joined threads.
const OPEN: u64 = 1 << 31;
const JOINED: u64 = OPEN - 1;

/// Pool of the calling thread and its helpers.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use nsbridge_kernels::ThreadPool;
///
/// let mut pool = ThreadPool::new(4);
/// let sum = AtomicU64::new(0);
/// pool.run(1000, &|part| {
///     sum.fetch_add(part as u64, Ordering::Relaxed);
/// });
/// assert_eq!(sum.into_inner(), 499_500);
/// ```
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    gate: AtomicU64,
    /// Remaining parts of each thread; the first entry is the caller's.
    left: Vec<Left>,
    /// The job: a `&dyn Fn(usize)` on the caller's stack. Valid while the gate is open or a helper
    /// has joined.
    work: AtomicPtr<()>,
    panicked: AtomicBool,
    ended: AtomicBool,
    asleep: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

/// Remaining parts of a thread: the first in the lower half, the end of the range in the upper. It
/// has cache lines of its own, since its thread changes it with each part.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Left(AtomicU64);

impl Left {
    fn set(&self, parts: Range<usize>) {
        self.0.store(packed(parts.start as u64, parts.end as u64), Ordering::Relaxed);
    }

    /// Takes the first part.
    fn first(&self) -> Option<usize> {
        self.take(|first, end| (first + 1, end)).map(|(first, _)| first as usize)
    }

    /// Takes the second half of the range.
    fn half(&self) -> Option<Range<usize>> {
        let middle = |first, end| first + (end - first) / 2;
        let (first, end) = self.take(|first, end| (first, middle(first, end)))?;
        Some(middle(first, end) as usize..end as usize)
    }

    /// Shrinks the range by `less` and returns the range before.
    fn take(&self, less: impl Fn(u64, u64) -> (u64, u64)) -> Option<(u64, u64)> {
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            let (first, end) = unpacked(left);
            let (first, end) = (first < end).then(|| less(first, end))?;
            Some(packed(first, end))
        });
        taken.ok().map(unpacked)
    }
}

const HALF: u64 = u32::MAX as u64;

fn packed(first: u64, end: u64) -> u64 {
    end << 32 | first
}

fn unpacked(left: u64) -> (u64, u64) {
    (left & HALF, left >> 32)
}

type Part<'a> = &'a (dyn Fn(usize) + Sync);

impl ThreadPool {
    /// Creates a pool of `threads`, the caller included.
    pub fn new(threads: usize) -> Self {
        let left = (0..threads.max(1)).map(|_| Left::default()).collect();
        let shared = Arc::new(Shared { left, ..Shared::default() });
        let helper = |index: usize| {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("nsbridge-compute-{index}"));
            // With fewer threads the pool is slower, but it works.
            thread.spawn(move || shared.help(index)).ok()
        };
        let threads = (1..threads).filter_map(helper).collect();
        Self { shared, threads }
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        1 + self.threads.len()
    }

    /// Runs `work` for each part below `parts`, on all threads. The parts must not depend on each
    /// other.
    ///
    /// # Panics
    ///
    /// Panics if a part panics, or if there are more than 2^32 - 1 parts.
    pub fn run(&mut self, parts: usize, work: Part<'_>) {
        if self.threads.is_empty() || parts < 2 {
            (0..parts).for_each(work);
            return;
        }
        let shared = &*self.shared;
        let mut place = work;
        assert!(parts as u64 <= HALF, "parts are counted in 32 bits");
        // Rounded up: the caller is awake, so it gets a part first.
        let before = |thread: usize| (thread * parts).div_ceil(shared.left.len());
        for (thread, left) in shared.left.iter().enumerate() {
            left.set(before(thread)..before(thread + 1));
        }
        shared.work.store((&raw mut place).cast(), Ordering::Relaxed);
        let gate = shared.gate.load(Ordering::Relaxed);
        let number = (gate >> 32).wrapping_add(1);
        shared.gate.store(number << 32 | OPEN, Ordering::SeqCst);
        if shared.asleep.load(Ordering::SeqCst) > 0 {
            drop(shared.lock.lock());
            shared.wake.notify_all();
        }
        // After a panic here the helpers must still be waited for: they use this stack.
        let done = catch_unwind(AssertUnwindSafe(|| shared.claim(0, work)));
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let started = Instant::now();
        while shared.gate.load(Ordering::Acquire) & JOINED > 0 {
            if started.elapsed() > SPIN {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let panicked = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
        assert!(!panicked, "a compute thread panicked");
    }

    /// Splits a slice into chunks of `len` elements, without a shorter rest, and runs `work` for
    /// each chunk and its number, on all threads.
    ///
    /// ```
    /// use nsbridge_kernels::ThreadPool;
    ///
    /// let mut numbers = [1, 2, 3, 4, 5, 6];
    /// ThreadPool::new(2).for_each_chunk(&mut numbers, 2, |row, chunk| {
    ///     chunk.iter_mut().for_each(|number| *number *= 10 * row);
    /// });
    /// assert_eq!(numbers, [0, 0, 30, 40, 100, 120]);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `len` is 0, if `work` panics, or if there are more than 2^32 - 1 chunks.
    pub fn for_each_chunk<T: Send>(
        &mut self,
        slice: &mut [T],
        len: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let chunks = slice.len() / len;
        let slice = DisjointSlice::new(slice);
        self.run(chunks, &|chunk| {
            // SAFETY: each chunk belongs to a single part of the job.
            work(chunk, unsafe { slice.part(chunk * len, len) });
        });
    }
}

impl Shared {
    /// Does the thread's own parts, then those that it can steal.
    fn claim(&self, thread: usize, work: Part<'_>) {
        let own = &self.left[thread];
        let (before, after) = self.left.split_at(thread);
        loop {
            while let Some(part) = own.first() {
                work(part);
            }
            let Some(more) = after.iter().chain(before).find_map(Left::half) else { return };
            // The first stolen part runs at once. Otherwise threads could steal a part back and
            // forth forever.
            own.set(more.start + 1..more.end);
            work(more.start);
        }
    }

    fn help(&self, thread: usize) {
        let mut seen = 0;
        while let Some(number) = self.join(seen) {
            seen = number;
            // SAFETY: this thread joined while the gate was open, so the caller waits for it, and
            // the job is still on the caller's stack.
            let work = unsafe { *self.work.load(Ordering::Relaxed).cast::<Part<'_>>() };
            if catch_unwind(AssertUnwindSafe(|| self.claim(thread, work))).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
                // The job has failed, so the remaining parts are dropped, except those being stolen
                // right now.
                self.left.iter().for_each(|left| left.set(0..0));
            }
            self.gate.fetch_sub(1, Ordering::Release);
        }
    }

    /// Joins the next job. Returns `None` when the pool is dropped.
    fn join(&self, seen: u64) -> Option<u64> {
        let mut started = Instant::now();
        loop {
            if self.ended.load(Ordering::SeqCst) {
                return None;
            }
            let gate = self.gate.load(Ordering::SeqCst);
            let number = gate >> 32;
            if number != seen && gate & OPEN > 0 {
                let joined = self.gate.compare_exchange_weak(
                    gate,
                    gate + 1,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                if joined.is_ok() {
                    return Some(number);
                }
            } else if started.elapsed() < SPIN {
                std::hint::spin_loop();
            } else {
                self.sleep(seen);
                started = Instant::now();
            }
        }
    }

    fn sleep(&self, seen: u64) {
        let mut guard = self.lock.lock();
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let idle = |_: &mut ()| {
            let gate = self.gate.load(Ordering::SeqCst);
            let work = gate >> 32 != seen && gate & OPEN > 0;
            !work && !self.ended.load(Ordering::SeqCst)
        };
        self.wake.wait_while(&mut guard, idle);
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        drop(self.shared.lock.lock());
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use super::{Left, ThreadPool};

    #[test]
    fn what_is_left_is_taken_from_the_front_and_shared_in_halves() {
        let left = Left::default();
        assert_eq!((left.first(), left.half()), (None, None));
        left.set(3..10);
        assert_eq!((left.first(), left.half(), left.half()), (Some(3), Some(7..10), Some(5..7)));
        assert_eq!((left.first(), left.first(), left.half()), (Some(4), None, None));
        left.set(6..7);
        assert_eq!((left.half(), left.first()), (Some(6..7), None));
    }

    #[test]
    fn every_part_is_done_once_before_it_returns() {
        for threads in [1, 2, 5] {
            let mut pool = ThreadPool::new(threads);
            for round in 0..500 {
                let parts = round % 67;
                let counts: Vec<AtomicU32> = (0..parts).map(|_| AtomicU32::new(0)).collect();
                pool.run(parts, &|part| {
                    counts[part].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                if round % 100 == 0 {
                    // The next job has to wake the helpers.
                    let started = Instant::now();
                    while pool.shared.asleep.load(Ordering::SeqCst) < threads - 1 {
                        assert!(started.elapsed() < Duration::from_secs(60), "a helper is awake");
                        std::thread::yield_now();
                    }
                }
            }
        }
    }

    #[test]
    fn each_thread_begins_with_neighbours_and_then_takes_from_the_other() {
        let mut pool = ThreadPool::new(2);
        for held in [0, 4] {
            let (both, done) = (Barrier::new(2), AtomicU32::new(0));
            pool.run(8, &|part| {
                if part % 4 == 0 {
                    both.wait();
                    assert_eq!(done.load(Ordering::SeqCst), 0, "nobody did others before");
                    both.wait();
                }
                // One thread is held in its first part until the other has done the rest.
                let started = Instant::now();
                while part == held && done.load(Ordering::SeqCst) < 7 {
                    assert!(started.elapsed() < Duration::from_secs(60), "nobody took the rest");
                    std::thread::yield_now();
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(done.into_inner(), 8);
        }
    }

    #[test]
    fn two_panics_at_once_are_one() {
        let mut pool = ThreadPool::new(2);
        let both = Barrier::new(2);
        let run = AssertUnwindSafe(|| {
            pool.run(2, &|_| {
                both.wait();
                panic!("as it was told to");
            });
        });
        assert!(catch_unwind(run).is_err());
        pool.run(2, &|_| ());
    }

    #[test]
    fn a_panic_reaches_whoever_asked_and_the_pool_lives_on() {
        let mut pool = ThreadPool::new(3);
        for broken in [0, 40] {
            let run = AssertUnwindSafe(|| {
                pool.run(60, &|part| assert_ne!(part, broken));
            });
            assert!(catch_unwind(run).is_err());
            let count = AtomicU32::new(0);
            pool.run(60, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 60);
        }
    }
}
