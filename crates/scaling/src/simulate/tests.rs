//! Simulations against sums by hand, the closed form, and what must not be lost.

use proptest::prelude::{Strategy, any, prop, proptest};

use super::{Cluster, Outcome, Spot, WorkerSpec, simulate};
use crate::erlang::ErlangC;
use crate::policy::{BacklogSeconds, Fixed, Options, PerWorker, Rule, replay};
use crate::rng::Rng;
use crate::trace::{Day, Request, Trace};

/// Worker of the figures: 8 places, 160 tokens/s in all, 40 of a stream.
fn worker() -> WorkerSpec {
    WorkerSpec {
        places: 8,
        tokens_per_s: 160.0,
        stream_tokens_per_s: 40.0,
        prefill_tokens_per_s: 8000.0,
    }
}

fn cluster() -> Cluster {
    Cluster { worker: worker(), on_demand_per_hour: 10.0, ..Cluster::default() }
}

fn fixed(workers: u32) -> Options {
    Options::new(workers.max(1), Rule::Fixed(Fixed { workers }))
}

fn backlog(max: u32) -> Options {
    let rule = BacklogSeconds { worker_tokens_per_s: 160.0, ..BacklogSeconds::default() };
    Options::new(max, Rule::BacklogSeconds(rule))
}

fn request(at_s: f64, input_tokens: u32, output_tokens: u32) -> Request {
    Request { at_s, input_tokens, output_tokens }
}

fn trace(requests: Vec<Request>) -> Trace {
    Trace::new(requests, 0.0).unwrap()
}

#[track_caller]
fn close(one: f64, other: f64) {
    assert!((one - other).abs() < 1e-6, "{one} is not {other}");
}

fn output_tokens(trace: &Trace) -> u64 {
    trace.requests().iter().map(|request| u64::from(request.output_tokens)).sum()
}

#[test]
fn replies_share_a_worker_and_prompts_come_one_after_another() {
    // Two prompts of 1 s each, then replies of 400 tokens. Beside one of 40 tokens/s, a worker of 60 has 20 left, so
    // both get 30.
    let spec = WorkerSpec { tokens_per_s: 60.0, ..worker() };
    let cluster = Cluster { worker: spec, ..cluster() };
    let two = trace(vec![request(0.0, 8000, 400), request(0.0, 8000, 400)]);
    let outcome = simulate(&two, &cluster, fixed(1)).unwrap();
    close(outcome.waits.p50_s, 1.0);
    close(outcome.waits.max_s, 2.0);
    // The first has 40 tokens after one second alone. 360 remain at 30 tokens/s, and then 40 of the second at 40.
    close(outcome.end_s, 2.0 + 360.0 / 30.0 + 40.0 / 40.0);
    assert_eq!((outcome.tokens, outcome.unfinished), (800, 0));
}

#[test]
fn a_request_waits_for_a_free_place() {
    let spec = WorkerSpec { places: 1, ..worker() };
    let cluster = Cluster { worker: spec, ..cluster() };
    let three = trace(vec![request(0.0, 0, 400), request(1.0, 0, 400), request(2.0, 0, 40)]);
    let outcome = simulate(&three, &cluster, fixed(2)).unwrap();
    close(outcome.waits.max_s, 8.0);
    close(outcome.waits.p50_s, 0.0);
    close(outcome.cost, 2.0 * 11.0 / 3600.0 * 10.0);
}

#[test]
fn a_first_request_waits_for_the_decision_and_the_boot() {
    let one = Trace::new(vec![request(20.0, 0, 40)], 1000.0).unwrap();
    let outcome = simulate(&one, &cluster(), backlog(3)).unwrap();
    // The decision at 30 s, and 180 s of boot.
    close(outcome.waits.max_s, 190.0);
    // The request ends at 211 s, the last observation with it is that of 210 s, and 300 s later the worker goes.
    close(outcome.worker_hours() * 3600.0, 510.0 - 30.0);
    assert_eq!(outcome.decisions, 67);
    let arrived = outcome.steps.iter().map(|step| step.observation.arrived);
    assert_eq!(arrived.take(4).collect::<Vec<_>>(), [0, 0, 1, 0]);
}

#[test]
fn a_trace_of_no_request_costs_its_minimum() {
    let none = Trace::new(Vec::new(), 7200.0).unwrap();
    let outcome = simulate(&none, &cluster(), fixed(2)).unwrap();
    close(outcome.cost, 40.0);
    close(outcome.mean_workers, 2.0);
    assert_eq!((outcome.requests, outcome.waits.max_s), (0, 0.0));
    let empty = simulate(&trace(Vec::new()), &cluster(), backlog(3)).unwrap();
    assert_eq!((empty.cost, empty.end_s, empty.mean_workers), (0.0, 0.0, 0.0));
}

#[test]
fn requests_that_never_run_have_waited_until_the_end() {
    let cluster = Cluster { tail_s: 100.0, ..cluster() };
    let outcome = simulate(&trace(vec![request(50.0, 1, 1)]), &cluster, fixed(0)).unwrap();
    assert_eq!((outcome.unfinished, outcome.tokens, outcome.decisions), (1, 0, 11));
    close(outcome.end_s, 150.0);
    close(outcome.waits.p50_s, 100.0);
}

#[test]
fn scale_in_hands_over_what_has_not_ended_in_time() {
    // 100 s of reply. One worker is enough at once, and the second has 10 s.
    let rule = Rule::QueueLength(PerWorker { target_requests: 1.0 });
    let options = Options { scale_in_delay_s: 0.0, ..Options::new(2, rule) };
    let cluster = Cluster { hand_over_s: 10.0, boot_s: 0.0, ..cluster() };
    let two = trace(vec![request(14.0, 0, 4000), request(14.0, 0, 4000)]);
    let outcome = simulate(&two, &cluster, options).unwrap();
    // Both wait 1 s, begin on one worker each, and one returns at 40 s with 1,000 tokens.
    assert_eq!((outcome.returned, outcome.tokens, outcome.unfinished), (1, 8000, 0));
    close(outcome.end_s, 40.0 + 1000.0 / 8000.0 + 3000.0 / 40.0);
    close(outcome.waits.max_s, 1.0);
    close(outcome.on_demand_hours * 3600.0, outcome.end_s - 15.0 + 25.0);
}

#[test]
fn an_interruption_loses_no_token() {
    let day = Day { duration_s: 4.0 * 3600.0, starts: "10:00".parse().unwrap(), ..Day::default() };
    let day = day.trace().unwrap();
    let spot = Spot { per_hour: 3.0, mean_hours: 0.2, notice_s: 5.0 };
    let cluster = Cluster { spot: Some(spot), on_demand_base: 1, ..cluster() };
    let outcome = simulate(&day, &cluster, backlog(12)).unwrap();
    assert!(outcome.interruptions > 20, "{}", outcome.interruptions);
    assert!(outcome.returned > 20, "{}", outcome.returned);
    assert_eq!((outcome.unfinished, outcome.tokens), (0, output_tokens(&day)));
    close(outcome.cost, 10.0 * outcome.on_demand_hours + 3.0 * outcome.spot_hours);
    assert!(outcome.on_demand_hours > 0.0 && outcome.spot_hours > outcome.on_demand_hours);
}

#[test]
fn a_base_of_workers_is_on_demand() {
    let none = Trace::new(Vec::new(), 3600.0).unwrap();
    let spot = Spot { per_hour: 3.0, mean_hours: 1e6, notice_s: 120.0 };
    let cluster = Cluster { spot: Some(spot), on_demand_base: 2, ..cluster() };
    let outcome = simulate(&none, &cluster, fixed(5)).unwrap();
    close(outcome.on_demand_hours, 2.0);
    close(outcome.spot_hours, 3.0);
    close(outcome.cost, 29.0);
}

#[test]
fn scale_in_keeps_the_base() {
    let rule = Rule::QueueLength(PerWorker { target_requests: 1.0 });
    let options = Options { min: 1, scale_in_delay_s: 0.0, ..Options::new(2, rule) };
    let spot = Spot { per_hour: 3.0, mean_hours: 1e6, notice_s: 120.0 };
    let spec = WorkerSpec { places: 1, ..worker() };
    let cluster = Cluster { worker: spec, spot: Some(spot), on_demand_base: 1, ..cluster() };
    let cluster = Cluster { boot_s: 0.0, hand_over_s: 10.0, ..cluster };
    let three = Trace::new(vec![request(14.0, 0, 400); 3], 100.0).unwrap();
    let outcome = simulate(&three, &cluster, options).unwrap();
    assert_eq!(outcome.unfinished, 0);
    close(outcome.on_demand_hours * 3600.0, outcome.end_s);
    assert!(outcome.spot_hours > 0.0);
}

#[test]
fn an_interrupted_worker_computes_until_the_time_of_its_notice_is_over() {
    // The spot worker has its notice at once, and 60.01 s later 2,400 whole tokens. The other worker takes them as a prompt.
    let spot = Spot { per_hour: 3.0, mean_hours: 1e-9, notice_s: 60.01 };
    let cluster = Cluster { spot: Some(spot), on_demand_base: 1, ..cluster() };
    let two = trace(vec![request(0.0, 0, 4000), request(0.0, 0, 4000)]);
    let outcome = simulate(&two, &cluster, fixed(2)).unwrap();
    assert_eq!((outcome.returned, outcome.tokens), (1, 8000));
    let end_s = 60.01 + 2400.0 / 8000.0 + 1600.0 / 40.0;
    assert!((outcome.end_s - end_s).abs() < 1e-3, "{} is not {end_s}", outcome.end_s);
}

/// Poisson arrivals with exponential lengths.
fn markov_trace(requests: u32, requests_per_s: f64, mean_tokens: f64) -> Trace {
    let (mut rng, mut at_s) = (Rng::new(7), 0.0);
    let mut next = || {
        at_s += rng.exponential(1.0 / requests_per_s);
        request(at_s, 0, rng.exponential(mean_tokens).round() as u32)
    };
    trace((0..requests).map(|_| next()).collect())
}

#[test]
fn waits_are_those_of_erlang_c() {
    // Two requests/s of 300 tokens at 40 tokens/s, on 18 and 20 workers of one place. Waits of neighbors are alike,
    // so 60,000 requests leave an error of some percent: 10 % are allowed, for the mean and the percentile.
    let spec = WorkerSpec {
        places: 1,
        tokens_per_s: 40.0,
        stream_tokens_per_s: 40.0,
        prefill_tokens_per_s: 1.0,
    };
    let cluster = Cluster { worker: spec, decision_interval_s: 600.0, ..cluster() };
    let markov = markov_trace(60_000, 2.0, 300.0);
    for workers in [18, 20] {
        let outcome = simulate(&markov, &cluster, fixed(workers)).unwrap();
        let exact = ErlangC::new(2.0, 7.5, workers).unwrap();
        let exact_s = exact.wait_percentile_s(0.95).unwrap();
        let Outcome { waits, .. } = &outcome;
        let error = waits.p95_s / exact_s - 1.0;
        assert!(error.abs() < 0.1, "{workers}: {} instead of {exact_s}", waits.p95_s);
        let error = waits.mean_s / exact.mean_wait_s() - 1.0;
        assert!(
            error.abs() < 0.1,
            "{workers}: {} instead of {}",
            waits.mean_s,
            exact.mean_wait_s()
        );
    }
}

#[test]
fn seconds_of_backlog_cost_less_than_a_fixed_pool_and_boots_bound_bursts() {
    let day = Day { duration_s: 12.0 * 3600.0, requests_per_s: 0.3, ..Day::default() };
    let day = day.trace().unwrap();
    let quick = Cluster { boot_s: 10.0, ..cluster() };
    let pool = simulate(&day, &cluster(), fixed(6)).unwrap();
    let scaled = simulate(&day, &cluster(), backlog(12)).unwrap();
    let quickly = simulate(&day, &quick, backlog(12)).unwrap();
    assert!(scaled.cost < 0.7 * pool.cost, "{} and {}", scaled.cost, pool.cost);
    let (slow_s, quick_s) = (scaled.waits.max_s, quickly.waits.max_s);
    assert!(slow_s > 60.0 && quick_s < 0.5 * slow_s, "{quick_s} s and {slow_s} s");
}

#[test]
fn a_log_of_a_simulation_gives_its_decisions() {
    let day = Day { duration_s: 3600.0, bursts: 1, ..Day::default() }.trace().unwrap();
    let outcome = simulate(&day, &cluster(), backlog(12)).unwrap();
    let lines = outcome.steps.iter().map(|step| serde_json::to_string(&step.observation).unwrap());
    let log = lines.collect::<Vec<_>>().join("\n");
    let replayed = replay(log.as_bytes(), backlog(12)).unwrap();
    let live: Vec<_> = outcome.steps.iter().map(|step| step.decision.clone()).collect();
    assert_eq!(replayed.into_iter().map(|it| it.1).collect::<Vec<_>>(), live);
    assert_eq!(simulate(&day, &cluster(), backlog(12)).unwrap(), outcome);
}

#[test]
fn options_that_cannot_be_used_are_refused_in_a_sentence() {
    let check = |change: &dyn Fn(&mut Cluster), said: &str| {
        let mut cluster = cluster();
        change(&mut cluster);
        let error = simulate(&trace(Vec::new()), &cluster, fixed(1)).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}");
    };
    let spot = |change: fn(&mut Spot)| {
        let mut spot = Spot { per_hour: 1.0, mean_hours: 1.0, notice_s: 1.0 };
        change(&mut spot);
        Some(spot)
    };
    check(&|it| it.worker.places = 0, "worker.places is 0: set it to a number from 1 to 10000");
    check(&|it| it.worker.tokens_per_s = 0.0, "worker.tokens_per_s is 0: set it to");
    check(&|it| it.worker.stream_tokens_per_s = -1.0, "worker.stream_tokens_per_s is -1: set");
    check(
        &|it| it.worker.prefill_tokens_per_s = f64::NAN,
        "worker.prefill_tokens_per_s is NaN: set",
    );
    check(&|it| it.boot_s = f64::INFINITY, "boot_s is inf: set it to a number of seconds from 0");
    check(&|it| it.hand_over_s = -1.0, "hand_over_s is -1: set it to");
    check(&|it| it.decision_interval_s = 0.0, "decision_interval_s is 0: set it to");
    check(&|it| it.decision_interval_s = 0.01, "decision_interval_s is 0.01: set it to at least");
    check(&|it| it.on_demand_per_hour = -1.0, "on_demand_per_hour is -1: set it to");
    check(
        &|it| it.tail_s = 1e9,
        "tail_s is 1000000000: set it to a number of seconds from 0 to 30",
    );
    check(&|it| it.spot = spot(|spot| spot.per_hour = -1.0), "spot.per_hour is -1: set it to");
    check(&|it| it.spot = spot(|spot| spot.mean_hours = 0.0), "spot.mean_hours is 0: set it to");
    check(&|it| it.spot = spot(|spot| spot.notice_s = -1.0), "spot.notice_s is -1: set it to");
    check(
        &|it| (it.tail_s, it.decision_interval_s) = (2e6, 0.1),
        "decision_interval_s is 0.1: there may be 20000000 decisions, of at most 10000000",
    );
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let one = (0.0..2000.0_f64, 0..20_000_u32, 0..2000_u32);
    let one = one.prop_map(|(at_s, input, output)| request(at_s, input, output));
    prop::collection::vec(one, 0..40)
}

proptest! {
    #[test]
    fn each_request_ends_once_and_hours_are_the_cost(
        requests in requests(), seed in any::<u64>(), places in 1..5_u32, base in 0..3_u32,
        mean_hours in 0.01..1.0_f64, times in (0.0..300.0_f64, 0.0..300.0_f64, 0.0..300.0_f64),
    ) {
        let spec = WorkerSpec { places, ..worker() };
        let spot = Spot { per_hour: 3.0, mean_hours, notice_s: times.0 };
        let cluster = Cluster {
            worker: spec,
            boot_s: times.1,
            hand_over_s: times.2,
            spot: Some(spot),
            on_demand_base: base,
            seed,
            tail_s: 20_000.0,
            ..cluster()
        };
        let trace = trace(requests);
        let options = Options { scale_in_delay_s: 30.0, ..backlog(6) };
        let outcome = simulate(&trace, &cluster, options).unwrap();
        if base > 0 {
            // A worker on demand ends its requests whatever happens to the others.
            assert_eq!((outcome.unfinished, outcome.tokens), (0, output_tokens(&trace)));
        }
        assert!(outcome.tokens <= output_tokens(&trace));
        let cost = 10.0 * outcome.on_demand_hours + 3.0 * outcome.spot_hours;
        assert!((outcome.cost - cost).abs() < 1e-9);
        let waits = &outcome.waits;
        assert!(waits.p50_s <= waits.p95_s && waits.p99_s <= waits.max_s);
    }
}
