//! Ranks that are threads of this process.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use super::{Communicator, RankLost};

/// Duration of spinning before a rank sleeps, if each rank has a core. Ranks do about equal work,
/// so waiting for the rest is usually shorter than a wake-up.
const SPIN: Duration = Duration::from_millis(1);

/// Numbers summed at a time.
const PIECE: usize = 256;

/// Group of ranks that are threads of this process, and their rendezvous point.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use nsbridge_kernels::collectives::{Communicator, RankGroup, RankLost};
///
/// let group = Arc::new(RankGroup::new(2, Duration::from_secs(5)));
/// let sums: Vec<Result<Vec<f32>, RankLost>> = std::thread::scope(|scope| {
///     let run = |(rank, mut handle)| scope.spawn(move || {
///         let mut numbers = vec![rank as f32, 10.0];
///         Communicator::all_reduce(&mut handle, &mut numbers, 2)?;
///         Ok(numbers)
///     });
///     let threads: Vec<_> = group.handles().into_iter().enumerate().map(run).collect();
///     threads.into_iter().map(|thread| thread.join().unwrap()).collect()
/// });
/// assert_eq!(sums, [Ok(vec![1.0, 20.0]), Ok(vec![1.0, 20.0])]);
/// ```
#[derive(Debug)]
pub struct RankGroup {
    /// Number of rendezvous that each rank has reached.
    arrivals: Vec<AtomicU64>,
    /// Number of ranks in a step, without rank 0.
    in_step: AtomicUsize,
    patience: Duration,
    spin: Duration,
    /// Reason for the end of the group.
    lost: OnceLock<RankLost>,
    asleep: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

/// One rank's handle, with the buffers that it exchanges.
///
/// Each rank alternates between two buffers. While it writes one, the other ranks may still read
/// the other, and no rank can be two rendezvous behind. So one rendezvous is enough for an
/// exchange.
#[derive(Debug)]
pub struct RankHandle<T> {
    group: Arc<RankGroup>,
    buffers: Arc<[[RwLock<T>; 2]]>,
    rank: usize,
    arrivals: u64,
}

impl RankGroup {
    /// Makes a group of `ranks`, which wait for each other up to `patience`.
    pub fn new(ranks: usize, patience: Duration) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            arrivals: (0..ranks).map(|_| AtomicU64::new(0)).collect(),
            in_step: AtomicUsize::new(0),
            patience,
            spin: if ranks > cores { Duration::ZERO } else { SPIN },
            lost: OnceLock::new(),
            asleep: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Returns the handles of all ranks, in order.
    pub fn handles<T: Default>(self: &Arc<Self>) -> Vec<RankHandle<T>> {
        let ranks = self.arrivals.len();
        let buffers: Arc<[_]> = (0..ranks).map(|_| <[RwLock<T>; 2]>::default()).collect();
        let handle =
            |rank| RankHandle { group: self.clone(), buffers: buffers.clone(), rank, arrivals: 0 };
        (0..ranks).map(handle).collect()
    }

    /// Reports a rank as lost and ends the group for all ranks.
    pub fn report_lost(&self, rank: usize, what: &str) -> RankLost {
        let lost = match self.ranks() {
            1 => format!("the model {what}"),
            ranks => format!("rank {rank} of {ranks} {what}"),
        };
        let lost = RankLost(lost);
        let lost = self.lost.get_or_init(|| lost).clone();
        self.wake_all();
        lost
    }

    /// Returns the reason as an error if the group has ended.
    ///
    /// # Errors
    ///
    /// Returns an error if a rank is lost.
    pub fn check(&self) -> Result<(), RankLost> {
        self.lost.get().map_or(Ok(()), |lost| Err(lost.clone()))
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.arrivals.len()
    }

    /// Returns the time limit for waiting on another rank.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Returns the number of rendezvous that a rank has reached.
    pub fn arrivals(&self, rank: usize) -> u64 {
        self.arrivals[rank].load(Ordering::SeqCst)
    }

    /// Runs a step of a rank other than rank 0, counted in
    /// [`others_in_step`](Self::others_in_step).
    pub fn run_step<R>(&self, step: impl FnOnce() -> R) -> R {
        self.in_step.fetch_add(1, Ordering::Relaxed);
        let result = step();
        self.in_step.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Returns true if a rank other than rank 0 is in a step.
    pub fn others_in_step(&self) -> bool {
        self.in_step.load(Ordering::Relaxed) > 0
    }

    /// Returns a rank that has not yet reached rendezvous number `arrivals`.
    fn missing(&self, arrivals: u64) -> Option<usize> {
        self.arrivals.iter().position(|rank| rank.load(Ordering::SeqCst) < arrivals)
    }

    fn wait(&self, arrivals: u64) -> Result<(), RankLost> {
        let begun = Instant::now();
        while self.missing(arrivals).is_some() {
            self.check()?;
            if begun.elapsed() < self.spin {
                std::hint::spin_loop();
            } else {
                return self.sleep(arrivals);
            }
        }
        Ok(())
    }

    fn sleep(&self, arrivals: u64) -> Result<(), RankLost> {
        let mut guard = self.lock.lock();
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let waits = |_: &mut ()| self.missing(arrivals).is_some() && self.lost.get().is_none();
        let mut waiting = Patience::new(self.patience);
        while waits(&mut ()) && !waiting.is_over() {
            self.wake.wait_while_for(&mut guard, waits, waiting.stretch());
            waiting.poll();
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
        match self.missing(arrivals) {
            None => Ok(()),
            Some(rank) => {
                let seconds = self.patience.as_secs_f64();
                Err(self.report_lost(rank, &format!("did not answer within {seconds} s")))
            }
        }
    }

    fn wake_all(&self) {
        drop(self.lock.lock());
        self.wake.notify_all();
    }
}

/// Waiting time of a polling thread, without the time in which the process was stopped.
#[derive(Debug)]
pub struct Patience {
    patience: Duration,
    waited: Duration,
    last: Instant,
}

impl Patience {
    /// Starts to wait, for at most `patience`.
    pub fn new(patience: Duration) -> Self {
        Self { patience, waited: Duration::ZERO, last: Instant::now() }
    }

    /// Returns the longest time between two polls.
    fn stretch(&self) -> Duration {
        // Rounded up, so that four of them reach the limit.
        (self.patience / 4).saturating_add(Duration::from_nanos(1))
    }

    /// Adds the time since the last poll, capped at the polling interval: if the process was
    /// stopped, the ranks it waits for were stopped too.
    pub fn poll(&mut self) {
        let now = Instant::now();
        let since = now - std::mem::replace(&mut self.last, now);
        self.waited = self.waited.saturating_add(since.min(self.stretch()));
    }

    /// Returns true once the thread has waited for the time limit.
    pub fn is_over(&self) -> bool {
        self.waited >= self.patience
    }
}

impl<T> RankHandle<T> {
    /// Returns the number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the reason as an error if the group has ended.
    ///
    /// # Errors
    ///
    /// Returns an error if a rank is lost.
    pub fn check(&self) -> Result<(), RankLost> {
        self.group.check()
    }

    /// Returns the time limit for waiting on another rank.
    pub fn patience(&self) -> Duration {
        self.group.patience
    }

    /// Reports this rank as lost and ends the group for all ranks.
    pub fn report_lost(&self, what: &str) -> RankLost {
        self.group.report_lost(self.rank, what)
    }

    /// Counts a rendezvous without waiting for other ranks.
    pub fn arrive(&mut self) {
        self.arrivals += 1;
        self.group.arrivals[self.rank].store(self.arrivals, Ordering::Relaxed);
    }

    /// Exchanges buffers: hands in `lent`, waits for all ranks, then calls `read` with the buffers
    /// of all ranks. `lent` is swapped for this rank's buffer from two rendezvous ago.
    ///
    /// # Errors
    ///
    /// Returns an error if a rank is lost.
    pub fn exchange<R>(
        &mut self,
        lent: &mut T,
        read: impl FnOnce(&[&T], &mut T) -> R,
    ) -> Result<R, RankLost> {
        let group = &*self.group;
        group.check()?;
        let side = (self.arrivals % 2) as usize;
        let own = &self.buffers[self.rank][side];
        std::mem::swap(&mut *own.write(), lent);
        self.arrivals += 1;
        group.arrivals[self.rank].store(self.arrivals, Ordering::SeqCst);
        if group.asleep.load(Ordering::SeqCst) > 0 {
            group.wake_all();
        }
        group.wait(self.arrivals)?;
        let buffers = self.buffers.iter().map(|buffers| &buffers[side]);
        let guards: Vec<_> = buffers.map(RwLock::read).collect();
        let all: Vec<&T> = guards.iter().map(|guard| &**guard).collect();
        Ok(read(&all, lent))
    }
}

impl Communicator for RankHandle<Vec<f32>> {
    fn ranks(&self) -> usize {
        self.group.arrivals.len()
    }

    fn all_reduce(&mut self, numbers: &mut Vec<f32>, len: usize) -> Result<(), RankLost> {
        self.exchange(numbers, |all, sums| {
            sums.resize(sums.len().max(len), 0.0);
            add_up(all, &mut sums[..len]);
        })
    }

    fn gather(
        &mut self,
        numbers: &mut Vec<f32>,
        len: usize,
        show: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), RankLost> {
        let first = self.rank == 0;
        self.exchange(numbers, |all, _| {
            if first {
                all.iter().enumerate().for_each(|(rank, all)| show(rank, &all[..len]));
            }
        })
    }
}

/// Sums the numbers of all ranks by a pairwise tree: neighbors, then neighboring pairs, and so on.
fn add_up(all: &[&Vec<f32>], sums: &mut [f32]) {
    let mut terms: Vec<[f32; PIECE]> = vec![[0.0; PIECE]; all.len()];
    for (number, sums) in sums.chunks_mut(PIECE).enumerate() {
        for (term, numbers) in terms.iter_mut().zip(all) {
            let numbers = &numbers[number * PIECE..][..sums.len()];
            term[..sums.len()].copy_from_slice(numbers);
        }
        let mut left = terms.len();
        while left > 1 {
            left /= 2;
            for i in 0..left {
                let (a, b) = (terms[2 * i], terms[2 * i + 1]);
                terms[i] = std::array::from_fn(|at| a[at] + b[at]);
            }
        }
        sums.copy_from_slice(&terms[0][..sums.len()]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{Communicator, Patience, RankGroup, RankHandle, RankLost};

    const LONG_TIME: Duration = Duration::from_secs(3600);

    fn numbers(rank: usize, round: usize, len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 31 + rank * 17 + round * 7) % 1009) as f32 * 1.1e-3 - 0.5).collect()
    }

    type Numbers = RankHandle<Vec<f32>>;

    fn on_all<T: Send>(group: &Arc<RankGroup>, run: impl Fn(Numbers, usize) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let start = |(rank, handle)| {
                let run = &run;
                scope.spawn(move || run(handle, rank))
            };
            let threads: Vec<_> = group.handles().into_iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn sums_are_those_of_the_tree_on_every_rank_however_often_they_meet() {
        for ranks in [2, 4, 8] {
            let group = Arc::new(RankGroup::new(ranks, LONG_TIME));
            let rounds = 300;
            let sums = on_all(&group, |mut handle, rank| {
                let mut x = Vec::new();
                let round = |round: usize| {
                    // Lengths of up to several pieces.
                    let len = 1 + round * 13 % 900;
                    let own = numbers(rank, round, len);
                    x.resize(x.len().max(len), 0.0);
                    x[..len].copy_from_slice(&own);
                    handle.all_reduce(&mut x, len).unwrap();
                    x[..len].to_vec()
                };
                (0..rounds).map(round).collect::<Vec<_>>()
            });
            for (round, first) in sums[0].iter().enumerate() {
                let mut terms: Vec<_> =
                    (0..ranks).map(|rank| numbers(rank, round, first.len())).collect();
                while terms.len() > 1 {
                    let pair = |pair: &[Vec<f32>]| {
                        pair[0].iter().zip(&pair[1]).map(|(a, b)| a + b).collect()
                    };
                    terms = terms.chunks(2).map(pair).collect();
                }
                assert!(sums.iter().all(|rank| rank[round] == terms[0]), "round {round}");
            }
        }
    }

    #[test]
    fn the_first_sees_what_each_has_and_the_others_nothing() {
        let group = Arc::new(RankGroup::new(4, LONG_TIME));
        let seen = on_all(&group, |mut handle, rank| {
            let mut seen = Vec::new();
            let mut x = vec![rank as f32; 3];
            handle.gather(&mut x, 2, &mut |rank, x| seen.push((rank, x.to_vec()))).unwrap();
            seen
        });
        assert_eq!(seen[0], [0, 1, 2, 3].map(|rank| (rank, vec![rank as f32; 2])));
        assert!(seen[1..].iter().all(Vec::is_empty));
    }

    #[test]
    fn one_that_stays_away_is_named_and_nobody_waits_for_it_again() {
        let group = Arc::new(RankGroup::new(4, Duration::from_millis(1500)));
        let lost = RankLost("rank 2 of 4 did not answer within 1.5 s".to_owned());
        let results = on_all(&group, |mut handle, rank| {
            let mut x = vec![1.0];
            if rank == 2 {
                return Ok(());
            }
            assert!(handle.all_reduce(&mut x, 1).is_err());
            let arrivals = handle.group.arrivals(rank);
            let result = handle.all_reduce(&mut x, 1);
            assert_eq!(handle.group.arrivals(rank), arrivals, "it waits at no rendezvous");
            result
        });
        assert_eq!(results, [Err(lost.clone()), Err(lost.clone()), Ok(()), Err(lost)]);
    }

    #[test]
    fn the_time_in_which_the_process_was_stopped_does_not_count() {
        let patience = Duration::from_millis(400);
        let mut waiting = Patience::new(patience);
        // Stands for the time in which the process is stopped.
        thread::sleep(Duration::from_secs(1));
        waiting.poll();
        assert!(!waiting.is_over());
        let begun = Instant::now();
        while !waiting.is_over() {
            thread::sleep(Duration::from_millis(20));
            waiting.poll();
        }
        assert!(begun.elapsed() >= patience.mul_f64(0.74));
    }

    #[test]
    fn one_that_cannot_go_on_frees_the_others_at_once() {
        let group = Arc::new(RankGroup::new(3, LONG_TIME));
        let results = on_all(&group, |mut handle, rank| {
            let mut x = vec![1.0];
            if rank == 1 {
                return Err(handle.group.report_lost(1, "panicked"));
            }
            handle.all_reduce(&mut x, 1)
        });
        assert_eq!(results, vec![Err(RankLost("rank 1 of 3 panicked".to_owned())); 3]);
    }
}
