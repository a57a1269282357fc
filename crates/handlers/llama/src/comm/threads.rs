//! Ranks that are threads of this process.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::{Comm, Lost};

/// Duration of spinning before a rank sleeps, if each rank has a core. Ranks do about equal work,
/// so waiting for the rest is usually shorter than a wake-up.
const SPIN: Duration = Duration::from_millis(1);

/// Numbers summed at a time.
const PIECE: usize = 256;

/// Rendezvous point of a rank group.
#[derive(Debug)]
pub(crate) struct Meeting {
    /// Number of rendezvous that each rank has reached.
    come: Vec<AtomicU64>,
    /// Number of ranks in a step, without rank 0.
    at_work: AtomicUsize,
    patience: Duration,
    spin: Duration,
    /// Reason for the end of the group.
    over: OnceLock<Lost>,
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
pub(crate) struct Member<T> {
    meeting: Arc<Meeting>,
    places: Arc<[[RwLock<T>; 2]]>,
    rank: usize,
    come: u64,
}

impl Meeting {
    /// Makes a group of `ranks`, which wait for each other up to `patience`.
    pub(crate) fn new(ranks: usize, patience: Duration) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            come: (0..ranks).map(|_| AtomicU64::new(0)).collect(),
            at_work: AtomicUsize::new(0),
            patience,
            spin: if ranks > cores { Duration::ZERO } else { SPIN },
            over: OnceLock::new(),
            asleep: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Returns the handles of all ranks, in order.
    pub(crate) fn members<T: Default>(self: &Arc<Self>) -> Vec<Member<T>> {
        let ranks = self.come.len();
        let places: Arc<[_]> = (0..ranks).map(|_| <[RwLock<T>; 2]>::default()).collect();
        let member = |rank| Member { meeting: self.clone(), places: places.clone(), rank, come: 0 };
        (0..ranks).map(member).collect()
    }

    /// Reports a rank as lost and ends the group for all ranks.
    pub(crate) fn end(&self, rank: usize, what: &str) -> Lost {
        let lost = match self.ranks() {
            1 => format!("the model {what}"),
            ranks => format!("rank {rank} of {ranks} {what}"),
        };
        let lost = Lost(lost);
        let lost = self.over.get_or_init(|| lost).clone();
        self.wake_all();
        lost
    }

    /// Returns the reason as an error if the group has ended.
    pub(crate) fn is_over(&self) -> Result<(), Lost> {
        self.over.get().map_or(Ok(()), |lost| Err(lost.clone()))
    }

    pub(crate) fn ranks(&self) -> usize {
        self.come.len()
    }

    /// Returns the time limit for waiting on another rank.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Returns the number of rendezvous that a rank has reached.
    pub(crate) fn come(&self, rank: usize) -> u64 {
        self.come[rank].load(Ordering::SeqCst)
    }

    /// Runs a step of a rank other than rank 0, counted in `others_work`.
    pub(crate) fn work<R>(&self, step: impl FnOnce() -> R) -> R {
        self.at_work.fetch_add(1, Ordering::Relaxed);
        let result = step();
        self.at_work.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Returns true if a rank other than rank 0 is in a step.
    pub(crate) fn others_work(&self) -> bool {
        self.at_work.load(Ordering::Relaxed) > 0
    }

    /// Returns a rank that has not yet reached rendezvous number `come`.
    fn missing(&self, come: u64) -> Option<usize> {
        self.come.iter().position(|rank| rank.load(Ordering::SeqCst) < come)
    }

    fn wait(&self, come: u64) -> Result<(), Lost> {
        let begun = Instant::now();
        while self.missing(come).is_some() {
            self.is_over()?;
            if begun.elapsed() < self.spin {
                std::hint::spin_loop();
            } else {
                return self.sleep(come);
            }
        }
        Ok(())
    }

    fn sleep(&self, come: u64) -> Result<(), Lost> {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let waits = |_: &mut ()| self.missing(come).is_some() && self.over.get().is_none();
        let mut waiting = Waiting::new(self.patience);
        while waits(&mut ()) && !waiting.is_long() {
            let woken = self.wake.wait_timeout_while(guard, waiting.stretch(), waits);
            (guard, _) = woken.unwrap_or_else(PoisonError::into_inner);
            waiting.look();
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
        match self.missing(come) {
            None => Ok(()),
            Some(rank) => {
                let seconds = self.patience.as_secs_f64();
                Err(self.end(rank, &format!("did not answer within {seconds} s")))
            }
        }
    }

    fn wake_all(&self) {
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }
}

/// Waiting time of a polling thread, not counting time in which the process was stopped.
#[derive(Debug)]
pub(crate) struct Waiting {
    patience: Duration,
    waited: Duration,
    last: Instant,
}

impl Waiting {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, waited: Duration::ZERO, last: Instant::now() }
    }

    /// Returns the longest time between two polls.
    fn stretch(&self) -> Duration {
        // Rounded up, so that four of them reach the limit.
        (self.patience / 4).saturating_add(Duration::from_nanos(1))
    }

    /// Adds the time since the last poll, capped at the polling interval: if the process was
    /// stopped, the ranks it waits for were stopped too.
    pub(crate) fn look(&mut self) {
        let now = Instant::now();
        let since = now - std::mem::replace(&mut self.last, now);
        self.waited = self.waited.saturating_add(since.min(self.stretch()));
    }

    pub(crate) fn is_long(&self) -> bool {
        self.waited >= self.patience
    }
}

impl<T> Member<T> {
    /// Returns the number of this rank.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the reason as an error if the group has ended.
    pub(crate) fn is_over(&self) -> Result<(), Lost> {
        self.meeting.is_over()
    }

    /// Returns the time limit for waiting on another rank.
    #[cfg(feature = "nccl")]
    pub(crate) fn patience(&self) -> Duration {
        self.meeting.patience
    }

    /// Reports this rank as lost and ends the group for all ranks.
    pub(crate) fn end(&self, what: &str) -> Lost {
        self.meeting.end(self.rank, what)
    }

    /// Counts a rendezvous without waiting for other ranks.
    pub(crate) fn pass(&mut self) {
        self.come += 1;
        self.meeting.come[self.rank].store(self.come, Ordering::Relaxed);
    }

    /// Exchanges buffers: hands in `lent`, waits for all ranks, then calls `read` with the buffers
    /// of all ranks. `lent` is swapped for this rank's buffer from two rendezvous ago.
    pub(crate) fn meet<R>(
        &mut self,
        lent: &mut T,
        read: impl FnOnce(&[&T], &mut T) -> R,
    ) -> Result<R, Lost> {
        let meeting = &*self.meeting;
        meeting.is_over()?;
        let side = (self.come % 2) as usize;
        let own = &self.places[self.rank][side];
        std::mem::swap(&mut *own.write().unwrap_or_else(PoisonError::into_inner), lent);
        self.come += 1;
        meeting.come[self.rank].store(self.come, Ordering::SeqCst);
        if meeting.asleep.load(Ordering::SeqCst) > 0 {
            meeting.wake_all();
        }
        meeting.wait(self.come)?;
        let places = self.places.iter().map(|places| &places[side]);
        let guards: Vec<_> =
            places.map(|place| place.read().unwrap_or_else(PoisonError::into_inner)).collect();
        let all: Vec<&T> = guards.iter().map(|guard| &**guard).collect();
        Ok(read(&all, lent))
    }
}

impl Comm for Member<Vec<f32>> {
    fn ranks(&self) -> usize {
        self.meeting.come.len()
    }

    fn all_reduce(&mut self, numbers: &mut Vec<f32>, len: usize) -> Result<(), Lost> {
        self.meet(numbers, |all, sums| {
            sums.resize(sums.len().max(len), 0.0);
            add_up(all, &mut sums[..len]);
        })
    }

    fn gather(
        &mut self,
        numbers: &mut Vec<f32>,
        len: usize,
        show: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Lost> {
        let first = self.rank == 0;
        self.meet(numbers, |all, _| {
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

    use super::{Comm, Lost, Meeting, Member, Waiting};

    const LONG: Duration = Duration::from_secs(3600);

    fn numbers(rank: usize, round: usize, len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 31 + rank * 17 + round * 7) % 1009) as f32 * 1.1e-3 - 0.5).collect()
    }

    type Numbers = Member<Vec<f32>>;

    fn on_all<T: Send>(meeting: &Arc<Meeting>, run: impl Fn(Numbers, usize) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let start = |(rank, member)| {
                let run = &run;
                scope.spawn(move || run(member, rank))
            };
            let threads: Vec<_> = meeting.members().into_iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn sums_are_those_of_the_tree_on_every_rank_however_often_they_meet() {
        for ranks in [2, 4, 8] {
            let meeting = Arc::new(Meeting::new(ranks, LONG));
            let rounds = 300;
            let sums = on_all(&meeting, |mut member, rank| {
                let mut x = Vec::new();
                let round = |round: usize| {
                    // Lengths of up to several pieces.
                    let len = 1 + round * 13 % 900;
                    let own = numbers(rank, round, len);
                    x.resize(x.len().max(len), 0.0);
                    x[..len].copy_from_slice(&own);
                    member.all_reduce(&mut x, len).unwrap();
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
        let meeting = Arc::new(Meeting::new(4, LONG));
        let seen = on_all(&meeting, |mut member, rank| {
            let mut seen = Vec::new();
            let mut x = vec![rank as f32; 3];
            member.gather(&mut x, 2, &mut |rank, x| seen.push((rank, x.to_vec()))).unwrap();
            seen
        });
        assert_eq!(seen[0], [0, 1, 2, 3].map(|rank| (rank, vec![rank as f32; 2])));
        assert!(seen[1..].iter().all(Vec::is_empty));
    }

    #[test]
    fn one_that_stays_away_is_named_and_nobody_waits_for_it_again() {
        let meeting = Arc::new(Meeting::new(4, Duration::from_millis(1500)));
        let lost = Lost::of("rank 2 of 4 did not answer within 1.5 s");
        let results = on_all(&meeting, |mut member, rank| {
            let mut x = vec![1.0];
            if rank == 2 {
                return Ok(());
            }
            assert!(member.all_reduce(&mut x, 1).is_err());
            let again = Instant::now();
            let result = member.all_reduce(&mut x, 1);
            assert!(again.elapsed() < Duration::from_millis(1000));
            result
        });
        assert_eq!(results, [Err(lost.clone()), Err(lost.clone()), Ok(()), Err(lost)]);
    }

    #[test]
    fn the_time_in_which_the_process_was_stopped_does_not_count() {
        let patience = Duration::from_millis(400);
        let mut waiting = Waiting::new(patience);
        thread::sleep(Duration::from_secs(1));
        waiting.look();
        assert!(!waiting.is_long());
        let begun = Instant::now();
        while !waiting.is_long() {
            thread::sleep(Duration::from_millis(20));
            waiting.look();
        }
        assert!(begun.elapsed() >= patience.mul_f64(0.74) && begun.elapsed() < LONG);
    }

    #[test]
    fn one_that_cannot_go_on_frees_the_others_at_once() {
        let meeting = Arc::new(Meeting::new(3, LONG));
        let results = on_all(&meeting, |mut member, rank| {
            let mut x = vec![1.0];
            if rank == 1 {
                return Err(member.meeting.end(1, "panicked"));
            }
            member.all_reduce(&mut x, 1)
        });
        assert_eq!(results, vec![Err(Lost::of("rank 1 of 3 panicked")); 3]);
    }
}
