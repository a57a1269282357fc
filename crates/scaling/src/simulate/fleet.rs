//! Workers of a simulated cluster: their start, interruption and end, and what they cost.

use super::cluster::Cluster;
use super::waiting::Requests;
pub(super) use super::worker::Returned;
use super::worker::{State, Worker};
use crate::rng::Rng;

const HOUR_S: f64 = 3600.0;

/// Workers of a cluster.
#[derive(Debug)]
pub(super) struct Fleet<'a> {
    cluster: &'a Cluster,
    workers: Vec<Worker>,
    rng: Rng,
    bill: Bill,
}

/// Sums over the workers that have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bill {
    pub(super) on_demand_hours: f64,
    pub(super) spot_hours: f64,
    pub(super) interruptions: u64,
    /// Requests that went back to the queue.
    pub(super) returned: u64,
    /// Tokens of replies that workers computed, complete ones only.
    pub(super) tokens: u64,
}

/// Changes at one time.
#[derive(Debug, Default)]
pub(super) struct Acted {
    pub(super) ended: Vec<usize>,
    pub(super) returned: Vec<Returned>,
}

impl<'a> Fleet<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        let rng = Rng::new(cluster.seed);
        Self { cluster, workers: Vec::new(), rng, bill: Bill::default() }
    }

    /// Starts workers that take requests at once.
    pub(super) fn start_ready(&mut self, count: u32) {
        for _ in 0..count {
            self.start(0.0, 0.0);
        }
        for worker in &mut self.workers {
            worker.state = State::Running;
        }
    }

    pub(super) fn next_event_s(&self) -> f64 {
        self.workers.iter().map(Worker::next_event_s).fold(f64::INFINITY, f64::min)
    }

    /// Workers that take requests, and those that boot.
    pub(super) fn running_and_pending(&self) -> (u32, u32) {
        let count = |state| self.workers.iter().filter(|it| it.state == state).count() as u32;
        (count(State::Running), count(State::Booting))
    }

    pub(super) fn in_flight(&self) -> usize {
        self.workers.iter().map(Worker::requests).sum()
    }

    /// Returns the worker for the next request: of those with a free place, the one with the fewest requests.
    pub(super) fn free_worker(&mut self) -> Option<&mut Worker> {
        let places = self.cluster.worker.places as usize;
        let takes =
            |worker: &&mut Worker| worker.state == State::Running && worker.requests() < places;
        self.workers.iter_mut().filter(takes).min_by_key(|worker| worker.requests())
    }

    /// Handles the events of all workers up to this time.
    pub(super) fn act(&mut self, now_s: f64, requests: &mut Requests<'_>) -> Acted {
        let (spec, mut acted) = (&self.cluster.worker, Acted::default());
        let notice_s = self.cluster.spot.as_ref().map_or(0.0, |spot| spot.notice_s);
        let due = self.workers.iter_mut().filter(|worker| worker.next_event_s() <= now_s);
        let mut is_any_due = false;
        for worker in due {
            is_any_due = true;
            let progress = worker.compute(now_s, spec);
            for request in progress.begun {
                requests.begin(request, now_s);
            }
            for (request, tokens) in progress.ended {
                requests.end(request, now_s);
                self.bill.tokens += u64::from(tokens);
                acted.ended.push(request);
            }
            if worker.state == State::Booting && worker.ready_s <= now_s {
                worker.state = State::Running;
            }
            if worker.notice_s <= now_s {
                self.bill.interruptions += 1;
                worker.state = State::Draining;
                worker.stop_s = worker.stop_s.min(now_s + notice_s);
                worker.notice_s = f64::INFINITY;
            }
        }
        if is_any_due {
            acted.returned = self.remove_ended(now_s);
        }
        acted
    }

    /// Starts or removes workers, so that this number does not drain.
    pub(super) fn set(&mut self, now_s: f64, desired: u32) -> Vec<Returned> {
        let (running, pending) = self.running_and_pending();
        let active = running + pending;
        for _ in active..desired {
            self.start(now_s, self.cluster.boot_s);
        }
        let stop_s = now_s + self.cluster.hand_over_s;
        for _ in desired..active {
            if let Some(worker) = self.next_to_go() {
                worker.state = State::Draining;
                worker.stop_s = stop_s;
            }
        }
        if desired < active { self.remove_ended(now_s) } else { Vec::new() }
    }

    /// Ends all workers.
    pub(super) fn close(&mut self, now_s: f64) -> Bill {
        let spec = &self.cluster.worker;
        for worker in &mut self.workers {
            let tokens =
                worker.give_back(now_s, spec).iter().map(|it| u64::from(it.tokens)).sum::<u64>();
            self.bill.tokens += tokens;
            self.bill.add_hours(worker, now_s);
        }
        self.workers.clear();
        self.bill
    }

    fn start(&mut self, now_s: f64, boot_s: f64) {
        let is_base = |worker: &&Worker| !worker.is_spot && worker.state != State::Draining;
        let on_demand = self.workers.iter().filter(is_base).count();
        let spot = self.cluster.spot.as_ref();
        let spot = spot.filter(|_| on_demand >= self.cluster.on_demand_base as usize);
        let life_s = spot.map(|spot| self.rng.exponential(spot.mean_hours * HOUR_S));
        self.workers.push(Worker::new(now_s, boot_s, life_s));
    }

    /// Returns the worker that scale-in removes next: spot before on demand, those that boot before those with
    /// requests, and of equal ones the newest.
    fn next_to_go(&mut self) -> Option<&mut Worker> {
        let active = self.workers.iter_mut().filter(|worker| worker.state != State::Draining);
        active.rev().min_by_key(|worker| {
            (!worker.is_spot, worker.state != State::Booting, worker.requests())
        })
    }

    /// Removes draining workers that are idle or at the end of their time, and returns their requests.
    fn remove_ended(&mut self, now_s: f64) -> Vec<Returned> {
        let (spec, bill) = (&self.cluster.worker, &mut self.bill);
        let mut returned = Vec::new();
        self.workers.retain_mut(|worker| {
            let is_over = worker.requests() == 0 || worker.stop_s <= now_s;
            if worker.state != State::Draining || !is_over {
                return true;
            }
            returned.extend(worker.give_back(now_s, spec));
            bill.add_hours(worker, now_s);
            false
        });
        bill.returned += returned.len() as u64;
        bill.tokens += returned.iter().map(|it| u64::from(it.tokens)).sum::<u64>();
        returned
    }
}

impl Bill {
    fn add_hours(&mut self, worker: &Worker, now_s: f64) {
        let hours = (now_s - worker.asked_s) / HOUR_S;
        *if worker.is_spot { &mut self.spot_hours } else { &mut self.on_demand_hours } += hours;
    }
}
