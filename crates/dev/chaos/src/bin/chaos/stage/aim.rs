//! Selection of a fault's target.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::follow::{WaitingAlone, is_over, last_run, pieces, running, takes};

use super::{Stage, base};

impl Stage {
    /// Returns the worker that runs request `n` now, or that ran it last if the request is over.
    pub(crate) fn runner_of(&mut self, n: usize) -> Result<String> {
        let what = format!("request {n} to run");
        let run = self.follow.wait(&what, self.step_timeout, |lines| {
            running(lines, n).or_else(|| last_run(lines, n).filter(|_| is_over(lines, n)))
        })?;
        Ok(base(&run.worker).to_owned())
    }

    /// Returns the process, such as `w1.2`, that runs one of these requests whose caller has
    /// received at least `count` pieces.
    pub(crate) fn runner_in_the_middle(
        &mut self,
        asks: Range<usize>,
        count: usize,
    ) -> Result<String> {
        let what = format!("piece {count} of one of requests {asks:?} that is being run");
        let run = self.follow.wait(&what, self.step_timeout, |lines| {
            let has = |n: &usize| !is_over(lines, *n) && pieces(lines, *n) >= count;
            asks.clone().filter(has).find_map(|n| running(lines, n))
        })?;
        Ok(run.worker)
    }

    /// Returns the process that runs request `n` when its caller has received `count` pieces;
    /// `None` if the reply has ended before.
    pub(crate) fn runner_after(&mut self, n: usize, count: usize) -> Result<Option<String>> {
        let what = format!("piece {count} of request {n}, and a run of it");
        self.follow.wait(&what, self.step_timeout, |lines| match running(lines, n) {
            _ if is_over(lines, n) => Some(None),
            Some(run) if pieces(lines, n) >= count => Some(Some(run.worker)),
            _ => None,
        })
    }

    /// Returns a random worker that consumes requests now. A fault on a worker that is still
    /// starting would have no effect.
    pub(crate) fn one_that_takes(&mut self) -> Result<String> {
        let (workers, draw) = (&self.workers, self.random.between(0, usize::from(u16::MAX)));
        self.follow.wait("a worker that takes requests", self.step_timeout, |lines| {
            let taking = workers
                .iter()
                .filter(|(_, worker)| worker.pid().is_some_and(|pid| takes(lines, pid)));
            let names: Vec<&String> = taking.map(|(name, _)| name).collect();
            Some((*names.get(draw % names.len().max(1))?).clone())
        })
    }

    /// Returns a worker in which a request waits to run alone, or `None` if there is none for this
    /// long.
    pub(crate) fn one_with_waiting(&mut self, timeout: Duration) -> Result<Option<String>> {
        let (workers, began) = (&self.workers, Instant::now());
        self.follow.wait("a request that waits to run alone", self.step_timeout, |lines| {
            let mut waiting = WaitingAlone::default();
            for line in lines {
                waiting.follow(&line.what);
            }
            let found = workers
                .iter()
                .find(|(_, worker)| worker.pid().is_some_and(|pid| waiting.any_in(pid)))
                .map(|(name, _)| name.clone());
            (found.is_some() || began.elapsed() >= timeout).then_some(found)
        })
    }
}
