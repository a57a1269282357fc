//! Observations and decisions of one model.

use std::time::Instant;

use anyhow::Result;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use nsbridge_base::random;
use nsbridge_observe::Queue;
use nsbridge_protocol::topology::request_queue;
use nsbridge_protocol::{ModelName, Priority};
use nsbridge_scaling::policy::{Decision, Observation, Policy, Rule};

use crate::config::ModelConfig;
use crate::pending::Pending;
use crate::workers::Workers;

/// Decision with what it was made from.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) at: Instant,
    /// Identifier of the policy's state.
    pub(crate) run: String,
    pub(crate) observation: Observation,
    pub(crate) decision: Decision,
    /// Workers that were asked for and did not come in time.
    pub(crate) late_workers: u32,
    /// Time in which the running workers, at least one, would work off the waiting interactive requests, in
    /// seconds; `None` if no speed is known.
    pub(crate) backlog_s: Option<f64>,
}

/// Model that this process decides for.
#[derive(Debug)]
pub(crate) struct Led {
    config: ModelConfig,
    names: [String; 2],
    run: String,
    began: Instant,
    policy: Policy,
    pending: Pending,
    pub(crate) workers: Workers,
    /// Interactive requests that were published, as the broker counted them last.
    published_total: Option<u64>,
}

impl Led {
    /// Begins to decide for a model.
    pub(crate) fn new(model: &ModelName, config: &ModelConfig) -> Result<Self> {
        let queue = |priority| request_queue(model, priority);
        Ok(Self {
            config: config.clone(),
            names: [queue(Priority::Interactive), queue(Priority::Bulk)],
            run: format!("{:016x}", random::random()),
            began: Instant::now(),
            policy: Policy::new(config.policy.clone())?,
            pending: Pending::new(config.boot_limit_s),
            workers: Workers::new(model.clone(), config.worker_pages()?)?,
            published_total: None,
        })
    }

    /// Decides on the number of workers. Queues that are not listed have no requests and no workers.
    pub(crate) fn decide(&mut self, queues: &[Queue], time_zone: &TimeZone) -> Decided {
        let at_s = self.began.elapsed().as_secs_f64();
        let (observation, late_workers) = self.observation(at_s, queues, time_of_day_s(time_zone));
        let decision = self.policy.decide(&observation);
        self.pending.ask(at_s, decision.desired);
        let backlog_s = self.backlog_s(&observation);
        let (at, run) = (Instant::now(), self.run.clone());
        Decided { at, run, observation, decision, late_workers, backlog_s }
    }

    fn observation(
        &mut self,
        at_s: f64,
        queues: &[Queue],
        time_of_day_s: f64,
    ) -> (Observation, u32) {
        let of = |name: &str| queues.iter().find(|queue| queue.name == name);
        let [interactive, bulk] = self.names.each_ref().map(|name| of(name));
        let unacked = |queue: Option<&Queue>| queue.and_then(|queue| queue.unacked).unwrap_or(0);
        let running = interactive.map_or(0, |queue| queue.consumers);
        let running = u32::try_from(running).unwrap_or(u32::MAX);
        let (pending, late_workers) = self.pending.count(at_s, running);
        let averages = self.workers.averages();
        let observation = Observation {
            at_s,
            time_of_day_s,
            ready_interactive: interactive.map_or(0, |queue| queue.ready),
            ready_bulk: bulk.map_or(0, |queue| queue.ready),
            in_flight: unacked(interactive).saturating_add(unacked(bulk)),
            running,
            pending,
            arrived: self.arrived(interactive.and_then(|queue| queue.published_total)),
            tokens_per_request: averages.tokens_per_request(),
            worker_tokens_per_s: averages.worker_tokens_per_s(),
        };
        (observation, late_workers)
    }

    /// Returns the growth of the broker's counter, which begins anew with a node's restart.
    fn arrived(&mut self, total: Option<u64>) -> u64 {
        let Some(total) = total else { return 0 };
        match self.published_total.replace(total) {
            Some(before) if before <= total => total - before,
            Some(_) => total,
            None => 0,
        }
    }

    fn backlog_s(&self, observation: &Observation) -> Option<f64> {
        let rule = match &self.config.policy.rule {
            Rule::BacklogSeconds(rule) => Some((rule.tokens_per_request, rule.worker_tokens_per_s)),
            _ => None,
        };
        let tokens = observation.tokens_per_request.or(rule.map(|(tokens, _)| tokens))?;
        let speed = observation.worker_tokens_per_s.or(rule.map(|(_, speed)| speed))?;
        let workers = f64::from(observation.running.max(1));
        Some(observation.ready_interactive as f64 * tokens / (speed * workers))
    }
}

/// Returns the time since midnight in a time zone, in seconds.
fn time_of_day_s(time_zone: &TimeZone) -> f64 {
    let now = Timestamp::now().to_zoned(time_zone.clone());
    let (hour, minute, second) = (now.hour(), now.minute(), now.second());
    f64::from(hour) * 3600.0 + f64::from(minute) * 60.0 + f64::from(second)
}

#[cfg(test)]
mod tests {
    //! Tests of observations, with queues as the management API lists them.

    use jiff::tz::TimeZone;
    use nsbridge_observe::Queue;
    use nsbridge_scaling::policy::{BacklogSeconds, Options, Rule};

    use super::Led;
    use crate::config::ModelConfig;

    fn queue(name: &str, ready: u64, unacked: u64, consumers: u64, published: u64) -> Queue {
        Queue {
            name: name.to_owned(),
            ready,
            consumers,
            unacked: Some(unacked),
            published_total: Some(published),
            ..Queue::default()
        }
    }

    fn led() -> Led {
        let rule = BacklogSeconds { worker_tokens_per_s: 150.0, ..BacklogSeconds::default() };
        let config = ModelConfig {
            workers: Vec::new(),
            boot_limit_s: 900.0,
            policy: Options::new(8, Rule::BacklogSeconds(rule)),
            ecs: None,
        };
        Led::new(&"tale-7m".parse().unwrap(), &config).unwrap()
    }

    #[test]
    fn an_observation_has_the_counts_of_both_queues() {
        let mut led = led();
        let queues = [
            queue("nsbridge.tale-7m", 30, 8, 2, 100),
            queue("nsbridge.tale-7m.bulk", 7, 1, 2, 50),
            queue("nsbridge.tale-7m.dead", 9, 9, 9, 9),
            queue("nsbridge.other", 9, 9, 9, 9),
        ];
        let decided = led.decide(&queues, &TimeZone::UTC);
        let seen = &decided.observation;
        assert_eq!((seen.ready_interactive, seen.ready_bulk, seen.in_flight), (30, 7, 9));
        assert_eq!((seen.running, seen.pending, seen.arrived), (2, 0, 0));
        assert_eq!(decided.backlog_s, Some(30.0));
        // 30 requests of 300 tokens in 15 s.
        assert_eq!(decided.decision.desired, 5, "{}", decided.decision);
        let queues = [queue("nsbridge.tale-7m", 30, 8, 3, 104)];
        let seen = led.decide(&queues, &TimeZone::UTC).observation;
        assert_eq!((seen.running, seen.pending, seen.arrived), (3, 2, 4));
        let queues = [queue("nsbridge.tale-7m", 30, 8, 3, 6)];
        assert_eq!(led.decide(&queues, &TimeZone::UTC).observation.arrived, 6, "a restarted node");
    }

    #[test]
    fn a_queue_that_is_not_listed_is_empty() {
        let decided = led().decide(&[], &TimeZone::UTC);
        assert_eq!((decided.decision.desired, decided.observation.waiting()), (0, 0));
        assert_eq!(decided.backlog_s, Some(0.0));
    }
}
