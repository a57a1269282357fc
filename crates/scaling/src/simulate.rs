//! Discrete-event simulation of a queue with workers, under a policy.
//!
//! [`simulate()`] replays a [`Trace`] through a [`Policy`] on a [`Cluster`]. The model:
//!
//! - One queue, first come, first served. A request goes to the worker with the fewest requests, if it has a free
//!   place.
//! - A worker computes the prompts of its requests one after another, at its prefill speed. That does not slow its
//!   replies.
//! - Replies share a worker: each of `k` gets the speed of a stream, or a `k`-th of the worker's speed if that is less.
//! - The wait of a request ends with its first token, at the end of its prefill.
//! - A worker takes requests after its boot time, and costs from the moment at which it was asked for.
//! - The first workers are on demand; those above this base are spot, if there is a spot price. A spot worker is
//!   interrupted at random: it takes no new request after the notice, and ends after the time of the notice at the latest.
//! - Scale-in removes spot workers before those on demand, then those that boot, then those with the fewest requests. A
//!   worker that is removed takes no new request, and ends when it is idle or after `hand_over_s`.
//! - Requests of a worker that ends go back to the head of the queue. They keep their tokens, as nsbridge's do.
//!   Another worker computes the prompt and those tokens as a prefill, and continues.
//!
//! Simplifications: spot workers are always available, interruptions are independent of each other, boot time is constant, and
//! the policy sees exact counts without delay. All requests are interactive ones. The measured speed that a policy
//! sees is that of a busy worker with the trace's mean lengths, as a load test before the start measures it.

mod cluster;
mod fleet;
mod outcome;
#[cfg(test)]
mod tests;
mod waiting;
mod worker;

pub use self::cluster::{Cluster, Spot, WorkerSpec};
use self::fleet::{Fleet, Returned};
pub use self::outcome::{Outcome, Step, Waits};
use self::waiting::Requests;
use crate::error::Error;
use crate::policy::{DAY_S, Observation, Options, Policy};
use crate::trace::Trace;

/// Smallest weight of a finished request in the moving average of tokens per request. The first 50 count alike.
const AVERAGE_WEIGHT: f64 = 0.02;

/// Replays a trace through a policy.
///
/// The workers of the first decision are there at the start. The simulation ends when the trace and all requests have
/// ended, or
/// `tail_s` after the last arrival.
///
/// # Errors
///
/// Returns an error with the first option that cannot be used.
pub fn simulate(trace: &Trace, cluster: &Cluster, policy: Options) -> Result<Outcome, Error> {
    cluster.check()?;
    cluster.check_decisions(trace.duration_s())?;
    let mut run = Run::new(trace, cluster, Policy::new(policy)?);
    run.start();
    let end_s = run.run_to_end();
    Ok(run.outcome(end_s))
}

/// Simulation in progress.
struct Run<'a> {
    trace: &'a Trace,
    cluster: &'a Cluster,
    policy: Policy,
    fleet: Fleet<'a>,
    requests: Requests<'a>,
    /// Number of requests of the trace that have arrived.
    arrived: usize,
    /// Number of them at the last decision.
    counted: usize,
    /// Number of requests that have ended.
    finished: u64,
    tokens_per_request: Option<f64>,
    worker_tokens_per_s: Option<f64>,
    decisions: u64,
    steps: Vec<Step>,
}

impl<'a> Run<'a> {
    fn new(trace: &'a Trace, cluster: &'a Cluster, policy: Policy) -> Self {
        let (input, output) = trace.mean_tokens();
        Self {
            trace,
            cluster,
            policy,
            fleet: Fleet::new(cluster),
            requests: Requests::new(trace.requests()),
            arrived: 0,
            counted: 0,
            finished: 0,
            tokens_per_request: None,
            worker_tokens_per_s: cluster.worker.busy_tokens_per_s(input, output),
            decisions: 0,
            steps: Vec::new(),
        }
    }

    fn start(&mut self) {
        let desired = self.decide(0.0);
        self.fleet.start_ready(desired);
    }

    /// Handles events in the order of their times, and returns the time of the end.
    fn run_to_end(&mut self) -> f64 {
        let all = self.trace.requests();
        let limit_s = self.trace.duration_s() + self.cluster.tail_s;
        let mut decision = 1_u64;
        loop {
            let arrival_s = all.get(self.arrived).map_or(f64::INFINITY, |request| request.at_s);
            let decision_s = decision as f64 * self.cluster.decision_interval_s;
            let now_s = arrival_s.min(decision_s).min(self.fleet.next_event_s());
            let is_done = self.arrived == all.len() && self.requests.is_done();
            if is_done && now_s >= self.trace.duration_s() {
                return self.requests.last_end_s().max(self.trace.duration_s());
            }
            if now_s > limit_s {
                return limit_s;
            }
            self.workers_act(now_s);
            while all.get(self.arrived).is_some_and(|request| request.at_s <= now_s) {
                self.requests.arrive(self.arrived);
                self.arrived += 1;
            }
            if decision_s <= now_s {
                decision += 1;
                let desired = self.decide(now_s);
                let returned = self.fleet.set(now_s, desired);
                self.give_back(returned);
            }
            self.dispatch(now_s);
        }
    }

    fn workers_act(&mut self, now_s: f64) {
        let acted = self.fleet.act(now_s, &mut self.requests);
        for index in acted.ended {
            let tokens = f64::from(self.requests.output_tokens(index));
            self.finished += 1;
            let weight = AVERAGE_WEIGHT.max(1.0 / self.finished as f64);
            let average = self.tokens_per_request.get_or_insert(tokens);
            *average += (tokens - *average) * weight;
        }
        self.give_back(acted.returned);
    }

    fn give_back(&mut self, returned: Vec<Returned>) {
        for Returned { request, tokens_left, .. } in returned {
            self.requests.give_back(request, tokens_left);
        }
    }

    fn dispatch(&mut self, now_s: f64) {
        while let Some(next) = self.requests.next() {
            let Some(worker) = self.fleet.free_worker() else { return };
            self.requests.take();
            worker.take(now_s, next, &self.cluster.worker);
        }
    }

    fn decide(&mut self, now_s: f64) -> u32 {
        let (running, pending) = self.fleet.running_and_pending();
        let observation = Observation {
            at_s: now_s,
            time_of_day_s: (self.cluster.starts.seconds() + now_s) % DAY_S,
            ready_interactive: self.requests.waiting() as u64,
            ready_bulk: 0,
            in_flight: self.fleet.in_flight() as u64,
            running,
            pending,
            arrived: (self.arrived - self.counted) as u64,
            tokens_per_request: self.tokens_per_request,
            worker_tokens_per_s: self.worker_tokens_per_s,
        };
        self.counted = self.arrived;
        self.decisions += 1;
        let decision = self.policy.decide(&observation);
        let desired = decision.desired;
        self.steps.push(Step { observation, decision });
        desired
    }

    fn outcome(mut self, end_s: f64) -> Outcome {
        let bill = self.fleet.close(end_s);
        let cost = bill.on_demand_hours * self.cluster.on_demand_per_hour
            + bill.spot_hours * self.cluster.spot.as_ref().map_or(0.0, |spot| spot.per_hour);
        let hours = end_s / 3600.0;
        let worker_hours = bill.on_demand_hours + bill.spot_hours;
        Outcome {
            requests: self.trace.requests().len() as u64,
            unfinished: self.requests.unfinished() as u64,
            waits: self.requests.waits(end_s),
            cost,
            on_demand_hours: bill.on_demand_hours,
            spot_hours: bill.spot_hours,
            mean_workers: if hours > 0.0 { worker_hours / hours } else { 0.0 },
            interruptions: bill.interruptions,
            returned: bill.returned,
            tokens: bill.tokens,
            decisions: self.decisions,
            end_s,
            steps: self.steps,
        }
    }
}
