//! Erlang C: the waiting time of a queue with Poisson arrivals, exponential service and equal workers (M/M/c).
//!
//! Agner Krarup Erlang, 1917. A real queue of language models waits less if its lengths vary less than exponentially,
//! and more if its arrivals come in bursts. The formula checks the simulator, and answers how many workers a steady
//! load needs.

/// Steady state of a queue with `workers` servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErlangC {
    workers: u32,
    utilization: f64,
    waiting: f64,
    /// Rate at which a queue of waiting requests shrinks, in requests per second.
    surplus_per_s: f64,
}

/// Largest number of workers that is computed.
const MAX_WORKERS: u32 = 1_000_000;

impl ErlangC {
    /// Computes the steady state for a number of requests per second, each of which takes a worker `service_s`
    /// seconds on average.
    ///
    /// Returns `None` if there is no steady state, because the load is not below the capacity, or if a number is not
    /// positive and finite.
    pub fn new(requests_per_s: f64, service_s: f64, workers: u32) -> Option<Self> {
        let is_usable = |number: f64| number > 0.0 && number.is_finite();
        if !is_usable(requests_per_s) || !is_usable(service_s) || workers > MAX_WORKERS {
            return None;
        }
        let busy = requests_per_s * service_s;
        let utilization = busy / f64::from(workers);
        // Zero workers have an infinite utilization. A surplus that rounds to zero has no steady state either.
        let surplus_per_s = f64::from(workers) / service_s - requests_per_s;
        if !is_usable(utilization) || utilization >= 1.0 || !is_usable(surplus_per_s) {
            return None;
        }
        // Erlang B by its recursion, which neither overflows nor cancels.
        let blocked = (1..=workers).fold(1.0, |b, n| busy * b / (f64::from(n) + busy * b));
        let waiting = blocked / (1.0 - utilization * (1.0 - blocked));
        Some(Self { workers, utilization, waiting, surplus_per_s })
    }

    /// Computes the smallest number of workers whose waiting time at a share of the requests is at most `wait_s`
    /// seconds.
    ///
    /// Returns `None` if a number is not usable, or if more than a million workers are needed.
    pub fn smallest(requests_per_s: f64, service_s: f64, share: f64, wait_s: f64) -> Option<Self> {
        let busy = requests_per_s * service_s;
        let is_usable = busy > 0.0 && busy < f64::from(MAX_WORKERS) && wait_s >= 0.0;
        if !is_usable || !(0.0..1.0).contains(&share) {
            return None;
        }
        // By doubling and halving, as each try is a recursion over all workers.
        let try_with = |workers| {
            let state = Self::new(requests_per_s, service_s, workers)?;
            (state.wait_percentile_s(share)? <= wait_s).then_some(state)
        };
        let (mut low, mut high) = (0, (busy as u32).max(1));
        while try_with(high).is_none() {
            if high >= MAX_WORKERS {
                return None;
            }
            (low, high) = (high, high.saturating_mul(2).min(MAX_WORKERS));
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if try_with(middle).is_some() { high = middle } else { low = middle }
        }
        try_with(high)
    }

    /// Number of workers.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// Share of the time for which a worker is busy (rho), below 1.
    pub fn utilization(&self) -> f64 {
        self.utilization
    }

    /// Probability that a request waits at all.
    pub fn waiting_probability(&self) -> f64 {
        self.waiting
    }

    /// Mean waiting time of all requests in seconds, without the service.
    pub fn mean_wait_s(&self) -> f64 {
        self.waiting / self.surplus_per_s
    }

    /// Waiting time in seconds that a share of the requests does not exceed: 0.95 for the 95th percentile.
    ///
    /// Returns `None` if the share is not from 0 to below 1.
    pub fn wait_percentile_s(&self, share: f64) -> Option<f64> {
        if !(0.0..1.0).contains(&share) {
            return None;
        }
        // P(W > t) = C exp(-surplus t).
        Some(((self.waiting / (1.0 - share)).ln() / self.surplus_per_s).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    //! Known sums, and inputs without a steady state.

    use proptest::prelude::{any, proptest};

    use super::ErlangC;

    /// Two requests per second of 300 tokens, at 40 tokens/s.
    const LOAD: (f64, f64) = (2.0, 300.0 / 40.0);

    #[test]
    fn fifteen_workers_for_fifteen_busy_ones_have_no_steady_state() {
        assert_eq!(ErlangC::new(LOAD.0, LOAD.1, 15), None);
        assert_eq!(ErlangC::new(LOAD.0, LOAD.1, 0), None);
    }

    #[test]
    fn a_few_more_workers_cut_the_wait() {
        for (workers, p95_s) in [(16, 20.1), (17, 8.8), (18, 4.9), (20, 1.7)] {
            let state = ErlangC::new(LOAD.0, LOAD.1, workers).unwrap();
            let said = state.wait_percentile_s(0.95).unwrap();
            assert!((said - p95_s).abs() < 0.05, "{workers} workers: {said}");
        }
        let smallest = ErlangC::smallest(LOAD.0, LOAD.1, 0.95, 5.0).unwrap();
        assert_eq!(smallest.workers(), 18);
    }

    #[test]
    fn one_worker_is_the_queue_m_m_1() {
        let state = ErlangC::new(0.8, 1.0, 1).unwrap();
        assert!((state.waiting_probability() - 0.8).abs() < 1e-12);
        assert!((state.utilization() - 0.8).abs() < 1e-12);
        assert!((state.mean_wait_s() - 4.0).abs() < 1e-12);
        // Two of ten requests do not wait.
        assert_eq!(state.wait_percentile_s(0.2), Some(0.0));
        assert_eq!(state.wait_percentile_s(1.0), None);
        assert_eq!(state.wait_percentile_s(f64::NAN), None);
    }

    proptest! {
        #[test]
        fn every_input_has_a_sensible_state_or_none(
            rate in any::<f64>(), service in any::<f64>(), workers in 0_u32..3000,
        ) {
            if let Some(state) = ErlangC::new(rate.abs() % 100.0, service.abs() % 100.0, workers) {
                assert!((0.0..=1.0).contains(&state.waiting_probability()));
                assert!(state.mean_wait_s() >= 0.0 && state.wait_percentile_s(0.99) >= Some(0.0));
            }
            ErlangC::new(rate, service, workers);
        }

        #[test]
        fn one_worker_less_than_the_smallest_number_is_too_few(
            rate in 0.01..50.0_f64, service in 0.01..20.0_f64, wait in 0.0..100.0_f64,
        ) {
            let smallest = ErlangC::smallest(rate, service, 0.95, wait).unwrap();
            let fewer = ErlangC::new(rate, service, smallest.workers() - 1);
            assert!(fewer.is_none_or(|fewer| fewer.wait_percentile_s(0.95) > Some(wait)));
        }
    }
}
