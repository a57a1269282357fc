//! Threads that share a piece of work, one small part after the other.
//!
//! Parts are claimed, not assigned: on a machine where others run too, a thread that was
//! interrupted does fewer of them. Whoever comes late to a piece of work is not waited for.

#![expect(unsafe_code, reason = "threads that outlive a call are lent what lives for the call")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread looks for work before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// The gate of a piece of work: its number in the upper half, whether one may join, how many have.
const OPEN: u64 = 1 << 31;
const JOINED: u64 = OPEN - 1;

/// The thread that asks, and others that help it.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    gate: AtomicU64,
    /// The next part to be claimed, and how many there are.
    next: AtomicUsize,
    parts: AtomicUsize,
    /// The work: a `&dyn Fn(usize)` on the stack of whoever asks. Valid while the gate is open or
    /// somebody has joined.
    work: AtomicPtr<()>,
    panicked: AtomicBool,
    ended: AtomicBool,
    asleep: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

type Part<'a> = &'a (dyn Fn(usize) + Sync);

impl Pool {
    /// A pool of so many threads, the one that asks among them.
    pub(crate) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let helper = |index: usize| {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("nsbridge-compute-{index}"));
            // Fewer threads are slower, and nothing else.
            thread.spawn(move || shared.help()).ok()
        };
        let threads = (1..threads).filter_map(helper).collect();
        Self { shared, threads }
    }

    /// How many there are.
    pub(crate) fn threads(&self) -> usize {
        1 + self.threads.len()
    }

    /// Runs `work` for each part below `parts`, on all threads. The parts must not depend on each
    /// other.
    ///
    /// # Panics
    ///
    /// If a part did.
    #[expect(clippy::needless_pass_by_ref_mut, reason = "two pieces of work at once would mix")]
    pub(crate) fn run(&mut self, parts: usize, work: Part<'_>) {
        if self.threads.is_empty() || parts < 2 {
            (0..parts).for_each(work);
            return;
        }
        let shared = &*self.shared;
        let mut place = work;
        shared.next.store(0, Ordering::Relaxed);
        shared.parts.store(parts, Ordering::Relaxed);
        shared.work.store((&raw mut place).cast(), Ordering::Relaxed);
        let gate = shared.gate.load(Ordering::Relaxed);
        let number = (gate >> 32).wrapping_add(1);
        shared.gate.store(number << 32 | OPEN, Ordering::SeqCst);
        if shared.asleep.load(Ordering::SeqCst) > 0 {
            drop(shared.lock.lock().unwrap_or_else(PoisonError::into_inner));
            shared.wake.notify_all();
        }
        // A panic here must wait for the others too: they work on this stack.
        let done = catch_unwind(AssertUnwindSafe(|| shared.claim(work)));
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
}

impl Shared {
    fn claim(&self, work: Part<'_>) {
        let parts = self.parts.load(Ordering::Relaxed);
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= parts {
                return;
            }
            work(part);
        }
    }

    fn help(&self) {
        let mut seen = 0;
        while let Some(number) = self.join(seen) {
            seen = number;
            // SAFETY: this thread has joined while the gate was open, so the caller waits for it,
            // and what it lent is still on its stack.
            let work = unsafe { *self.work.load(Ordering::Relaxed).cast::<Part<'_>>() };
            if catch_unwind(AssertUnwindSafe(|| self.claim(work))).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
                // Nobody is to go on with work that has failed.
                self.next.store(usize::MAX / 2, Ordering::Relaxed);
            }
            self.gate.fetch_sub(1, Ordering::Release);
        }
    }

    /// Joins the next piece of work, or gives nothing at the end.
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
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let idle = |_: &mut ()| {
            let gate = self.gate.load(Ordering::SeqCst);
            let work = gate >> 32 != seen && gate & OPEN > 0;
            !work && !self.ended.load(Ordering::SeqCst)
        };
        let guard = self.wake.wait_while(guard, idle);
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        drop(self.shared.lock.lock().unwrap_or_else(PoisonError::into_inner));
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
    use std::thread::sleep;
    use std::time::Duration;

    use super::Pool;

    #[test]
    fn every_part_is_done_once_before_it_returns() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads);
            for round in 0..500 {
                let parts = round % 67;
                let counts: Vec<AtomicU32> = (0..parts).map(|_| AtomicU32::new(0)).collect();
                pool.run(parts, &|part| {
                    counts[part].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                if round % 100 == 0 {
                    // Long enough for the helpers to sleep.
                    sleep(Duration::from_millis(2));
                }
            }
        }
    }

    #[test]
    fn two_panics_at_once_are_one() {
        let mut pool = Pool::new(2);
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
        let mut pool = Pool::new(3);
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
