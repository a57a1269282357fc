//! Decisions one after another, options, and bounds on all inputs.

use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};

use super::{
    BacklogSeconds, Decision, Fixed, Observation, Options, PerWorker, Policy, Reason, Rule, replay,
};

fn backlog(change: impl FnOnce(&mut BacklogSeconds)) -> Options {
    let mut rule = BacklogSeconds {
        worker_tokens_per_s: 100.0,
        utilization: 0.5,
        target_s: 20.0,
        ..BacklogSeconds::default()
    };
    change(&mut rule);
    Options::new(10, Rule::BacklogSeconds(rule))
}

fn queue_length(target_requests: f64) -> Options {
    Options::new(10, Rule::QueueLength(PerWorker { target_requests }))
}

fn seen(at_s: f64) -> Observation {
    Observation { at_s, ..Observation::default() }
}

/// Decides on observations, and returns the numbers.
fn numbers(options: &Options, observations: &[Observation]) -> Vec<u32> {
    let mut policy = Policy::new(options.clone()).unwrap();
    observations.iter().map(|observation| policy.decide(observation).desired).collect()
}

#[test]
fn arriving_tokens_are_fed_forward_and_the_backlog_is_divided_by_the_target() {
    let mut policy = Policy::new(backlog(|_| ())).unwrap();
    policy.decide(&seen(0.0));
    // 20 requests of 300 tokens in 40 s are 150 tokens/s: three workers at half of their 100 tokens/s. Ten waiting
    // requests are 3,000 tokens: one and a half workers for 20 s.
    let loaded = Observation { arrived: 20, ready_interactive: 10, running: 3, ..seen(40.0) };
    let decision = policy.decide(&loaded);
    assert_eq!(
        decision.to_string(),
        "5 workers: 150 tokens/s arrive, 3000 tokens wait, and a worker makes 100 tokens/s"
    );
}

#[test]
fn measured_averages_take_the_place_of_the_options() {
    let loaded = Observation { ready_interactive: 10, ..seen(0.0) };
    let measured =
        Observation { tokens_per_request: Some(600.0), worker_tokens_per_s: Some(150.0), ..loaded };
    let absent = Observation {
        tokens_per_request: Some(f64::NAN),
        worker_tokens_per_s: Some(-1.0),
        ..loaded
    };
    assert_eq!(numbers(&backlog(|_| ()), std::slice::from_ref(&loaded)), [2]);
    assert_eq!(numbers(&backlog(|_| ()), &[measured]), [2]);
    assert_eq!(numbers(&backlog(|_| ()), &[absent]), [2]);
    let slower = Observation { worker_tokens_per_s: Some(50.0), ..loaded };
    assert_eq!(numbers(&backlog(|_| ()), &[slower]), [3]);
}

#[test]
fn bulk_requests_have_a_target_of_their_own() {
    // 120,000 tokens of bulk for one hour and 100 tokens/s.
    let bulk = Observation { ready_bulk: 400, ..seen(0.0) };
    assert_eq!(numbers(&backlog(|_| ()), std::slice::from_ref(&bulk)), [1]);
    assert_eq!(numbers(&backlog(|rule| rule.bulk_target_s = 300.0), &[bulk]), [4]);
}

#[test]
fn a_growing_backlog_asks_for_fewer_workers_while_others_boot() {
    let mut policy = Policy::new(backlog(|_| ())).unwrap();
    let waiting = |at_s, ready_interactive, running, pending| Observation {
        ready_interactive,
        running,
        pending,
        ..seen(at_s)
    };
    assert_eq!(policy.decide(&waiting(0.0, 30, 0, 0)).desired, 5);
    let booting = policy.decide(&waiting(15.0, 60, 0, 5));
    assert_eq!(
        booting.to_string(),
        "5 workers: the load needs 9, and 5 asked for are not ready yet"
    );
    // 36,000 tokens are six workers for the 60 s of a backlog that workers boot for.
    assert_eq!(policy.decide(&waiting(30.0, 120, 0, 5)).desired, 6);
    assert_eq!(policy.decide(&waiting(45.0, 60, 6, 0)).desired, 9);
    // Arrivals are a reason for more: 12 requests/s are 3,600 tokens/s.
    let arriving = Observation { arrived: 180, ..waiting(60.0, 0, 0, 9) };
    assert_eq!(policy.decide(&arriving).desired, 10);
}

#[test]
fn a_larger_number_counts_at_once_and_a_smaller_one_after_the_delay() {
    let waiting = |at_s, ready_interactive| Observation {
        ready_interactive,
        in_flight: 1,
        running: 4,
        ..seen(at_s)
    };
    let queue = [
        waiting(0.0, 20),
        waiting(15.0, 40),
        waiting(30.0, 10),
        waiting(300.0, 5),
        waiting(315.0, 5),
        waiting(316.0, 5),
        waiting(331.0, 5),
    ];
    assert_eq!(numbers(&queue_length(5.0), &queue), [4, 8, 8, 8, 8, 2, 1]);
    let mut policy = Policy::new(queue_length(5.0)).unwrap();
    let said: Vec<_> = queue.iter().map(|it| policy.decide(it).to_string()).collect();
    assert_eq!(said[1], "8 workers: 40 requests wait, 5 for each worker");
    assert_eq!(said[2], "8 workers: the load needs 2, and needed more within the last 300 s");
}

#[test]
fn a_restarted_scaler_removes_no_worker_at_once() {
    let calm = |at_s| Observation { running: 6, in_flight: 1, ..seen(at_s) };
    assert_eq!(numbers(&queue_length(5.0), &[calm(0.0), calm(300.0), calm(301.0)]), [6, 6, 1]);
}

#[test]
fn any_request_gets_a_worker_and_the_last_one_goes_after_the_idle_time() {
    let options = Options { idle_s: 600.0, scale_in_delay_s: 0.0, ..queue_length(5.0) };
    let mut policy = Policy::new(options).unwrap();
    let mut check = |observation: Observation, expected: &str| {
        assert_eq!(policy.decide(&observation).to_string(), expected);
    };
    check(seen(0.0), "0 workers: 0 requests wait, 5 for each worker");
    check(
        Observation { ready_bulk: 1, ..seen(15.0) },
        "1 worker: 1 requests wait, 5 for each worker",
    );
    let running = |at_s| Observation { running: 1, ..seen(at_s) };
    check(
        Observation { in_flight: 1, ..running(30.0) },
        "1 worker: 0 requests wait, and others may run",
    );
    check(running(629.0), "1 worker: no request for 599 s, and the last worker goes after 600 s");
    check(running(630.0), "0 workers: no request for 600 s");
    check(seen(645.0), "0 workers: no request for 615 s");
}

#[test]
fn the_average_that_falls_for_ever_keeps_no_worker() {
    let arrival = Observation { arrived: 1, in_flight: 1, running: 1, ..seen(15.0) };
    let idle = |at_s| Observation { running: 1, ..seen(at_s) };
    let desired = numbers(&backlog(|_| ()), &[seen(0.0), arrival, idle(314.0), idle(315.0)]);
    assert_eq!(desired, [0, 1, 1, 0]);
}

#[test]
fn the_minimum_keeps_workers_and_the_maximum_wins() {
    let options = Options { min: 2, max: 4, ..queue_length(5.0) };
    let mut policy = Policy::new(options).unwrap();
    assert_eq!(
        policy.decide(&seen(0.0)).to_string(),
        "2 workers: the load needs 0, and this is the minimum"
    );
    let loaded = Observation { ready_interactive: 100, ..seen(15.0) };
    assert_eq!(
        policy.decide(&loaded).to_string(),
        "4 workers: the load needs 20, and this is the maximum"
    );
    let idle = Observation { running: 4, ..seen(1000.0) };
    assert_eq!(policy.decide(&idle).desired, 2);
}

#[test]
fn the_largest_floor_of_a_time_counts() {
    let floors = ["08:00-20:00 = 2", "09:00-10:00 = 5", "23:00-01:00 = 3"];
    let floors = floors.map(|floor| floor.parse().unwrap()).to_vec();
    let options = Options { floors, ..queue_length(5.0) };
    let at = |hour: f64| Observation { time_of_day_s: hour * 3600.0, ..seen(hour) };
    let times = [at(7.0), at(8.0), at(9.5), at(10.0), at(20.0), at(23.5), at(24.5)];
    assert_eq!(numbers(&options, &times), [0, 2, 5, 2, 0, 3, 3]);
    let mut policy = Policy::new(options).unwrap();
    let decision = policy.decide(&at(9.0));
    assert_eq!(
        decision.to_string(),
        "5 workers: the load needs 0, and the floor is 09:00-10:00 = 5"
    );
}

#[test]
fn each_rule_counts_its_requests() {
    let loaded = Observation { ready_interactive: 7, ready_bulk: 4, in_flight: 9, ..seen(0.0) };
    let per_worker = Rule::RequestsPerWorker(PerWorker { target_requests: 4.0 });
    assert_eq!(numbers(&Options::new(10, per_worker), std::slice::from_ref(&loaded)), [5]);
    assert_eq!(numbers(&queue_length(4.0), std::slice::from_ref(&loaded)), [3]);
    let fixed = Options::new(10, Rule::Fixed(Fixed { workers: 7 }));
    assert_eq!(numbers(&fixed, &[loaded, seen(10_000.0)]), [7, 7]);
}

#[test]
fn a_time_that_goes_back_is_the_last_one() {
    let mut policy = Policy::new(queue_length(5.0)).unwrap();
    policy.decide(&Observation { ready_interactive: 40, ..seen(1000.0) });
    for at_s in [0.0, f64::NAN, f64::NEG_INFINITY, 1299.0] {
        let calm = Observation { in_flight: 1, running: 8, ..seen(at_s) };
        assert_eq!(policy.decide(&calm).desired, 8, "{at_s}");
    }
}

#[test]
fn options_that_cannot_be_used_are_refused_in_a_sentence() {
    let check = |options: Options, said: &str| {
        assert_eq!(Policy::new(options).unwrap_err().to_string(), said);
    };
    let positive = "at most 1e12";
    check(Options { max: 0, ..queue_length(5.0) }, "max is 0: set it to a number from 1 to 10000");
    check(
        Options { min: 11, ..queue_length(5.0) },
        "min is 11: set it to at most max, which is 10",
    );
    let floors = vec!["08:00-20:00 = 11".parse().unwrap()];
    check(
        Options { floors, ..queue_length(5.0) },
        "floors is 08:00-20:00 = 11: set it to at most max, which is 10",
    );
    check(
        Options { scale_in_delay_s: f64::NAN, ..queue_length(5.0) },
        "scale_in_delay_s is NaN: set it to a number of seconds from 0 to 1e12",
    );
    check(
        Options { idle_s: -1.0, ..queue_length(5.0) },
        "idle_s is -1: set it to a number of seconds from 0 to 1e12",
    );
    check(
        queue_length(0.0),
        &format!("rule.target_requests is 0: set it to a number of requests above 0, {positive}"),
    );
    check(
        Options::new(3, Rule::Fixed(Fixed { workers: 4 })),
        "rule.workers is 4: set it to a number from min to max, 0 to 3",
    );
    check(
        Options::new(3, Rule::BacklogSeconds(BacklogSeconds::default())),
        &format!(
            "rule.worker_tokens_per_s is 0: set it to a number of tokens/s of a busy worker above 0, \
             {positive}"
        ),
    );
    check(
        backlog(|rule| rule.utilization = 1.1),
        "rule.utilization is 1.1: set it to a share above 0, at most 1",
    );
    let infinite: [fn(&mut BacklogSeconds); 6] = [
        |rule| rule.pending_target_s = f64::INFINITY,
        |rule| rule.tokens_per_request = f64::INFINITY,
        |rule| rule.target_s = f64::INFINITY,
        |rule| rule.bulk_target_s = f64::INFINITY,
        |rule| rule.rise_s = f64::INFINITY,
        |rule| rule.fall_s = f64::INFINITY,
    ];
    for change in infinite {
        assert!(Policy::new(backlog(change)).is_err());
    }
}

#[test]
fn options_are_read_from_text_and_other_fields_are_refused() {
    let text = r#"{"max": 8, "floors": ["08:00-20:00 = 2"],
                   "rule": {"kind": "backlog-seconds", "worker_tokens_per_s": 160}}"#;
    let options: Options = serde_json::from_str(text).unwrap();
    assert_eq!((options.min, options.idle_s, options.floors[0].workers()), (0, 300.0, 2));
    let again: Options = serde_json::from_str(&serde_json::to_string(&options).unwrap()).unwrap();
    assert_eq!(again, options);
    for text in [
        r#"{"max": 8, "more": 1, "rule": {"kind": "fixed", "workers": 1}}"#,
        r#"{"max": 8, "rule": {"kind": "fixed", "workers": 1, "more": 1}}"#,
        r#"{"max": 8, "rule": {"kind": "backlog-seconds", "target": 1}}"#,
        r#"{"rule": {"kind": "fixed", "workers": 1}}"#,
        r#"{"max": 8, "rule": {"kind": "random"}}"#,
    ] {
        assert!(serde_json::from_str::<Options>(text).is_err(), "{text}");
    }
}

#[test]
fn a_wrong_line_of_a_log_is_named() {
    let log = "{\"at_s\":0}\n\n{\"at_s\":15,\"redy\":1}\n";
    let error = replay(log.as_bytes(), queue_length(5.0)).unwrap_err().to_string();
    assert!(error.starts_with("line 3: unknown field `redy`"), "{error}");
    assert!(error.contains("; expected an observation as JSON, such as {"), "{error}");
}

fn rules() -> impl Strategy<Value = Rule> {
    let numbers = || 0.001..1000.0_f64;
    prop_oneof![
        Just(Rule::Fixed(Fixed { workers: 3 })),
        numbers().prop_map(|target_requests| Rule::QueueLength(PerWorker { target_requests })),
        numbers()
            .prop_map(|target_requests| Rule::RequestsPerWorker(PerWorker { target_requests })),
        (numbers(), numbers(), 0.01..=1.0_f64).prop_map(|(worker, target_s, utilization)| {
            Rule::BacklogSeconds(BacklogSeconds {
                worker_tokens_per_s: worker,
                target_s,
                utilization,
                ..BacklogSeconds::default()
            })
        }),
    ]
}

fn observations() -> impl Strategy<Value = Vec<Observation>> {
    let counts = (0..50_u64, 0..50_u64, 0..50_u64, 0..20_u32, 0..20_u32, 0..100_u64);
    let wild = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>());
    let counts = prop_oneof![counts, wild];
    let times = (prop_oneof![0.0..2000.0_f64, any::<f64>()], any::<f64>());
    let averages = (any::<Option<f64>>(), prop::option::of(0.0..1e4_f64));
    let one = (times, counts, averages).prop_map(|(times, counts, averages)| Observation {
        at_s: times.0,
        time_of_day_s: times.1,
        ready_interactive: counts.0,
        ready_bulk: counts.1,
        in_flight: counts.2,
        running: counts.3,
        pending: counts.4,
        arrived: counts.5,
        tokens_per_request: averages.0,
        worker_tokens_per_s: averages.1,
    });
    prop::collection::vec(one, 1..40)
}

proptest! {
    #[test]
    fn no_policy_leaves_its_bounds(
        rule in rules(), min in 0..=3_u32, above in 0..100_u32, observations in observations(),
    ) {
        let floors = vec!["06:00-18:00 = 3".parse().unwrap()];
        let options = Options { min, floors, ..Options::new(3 + above, rule) };
        let mut policy = Policy::new(options.clone()).unwrap();
        for observation in &observations {
            let Decision { desired, reason } = policy.decide(observation);
            assert!((min..=options.max).contains(&desired), "{desired}: {reason}");
            let is_zero = matches!(reason, Reason::Idle { .. });
            assert!(desired > 0 || !observation.is_busy() || is_zero, "{observation:?}: {reason}");
            assert!(!is_zero || !observation.is_busy());
        }
    }

    #[test]
    fn a_log_gives_the_decisions_that_were_made_live(
        rule in rules(), observations in observations(),
    ) {
        let options = Options::new(20, rule);
        let mut policy = Policy::new(options.clone()).unwrap();
        let live: Vec<Decision> = observations.iter().map(|it| policy.decide(it)).collect();
        let lines = observations.iter().map(|it| serde_json::to_string(it).unwrap());
        let log = lines.collect::<Vec<_>>().join("\n");
        let replayed = replay(log.as_bytes(), options).unwrap();
        assert_eq!(replayed.into_iter().map(|it| it.1).collect::<Vec<_>>(), live);
    }
}
