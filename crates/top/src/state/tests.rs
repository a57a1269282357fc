//! Figures from readings, against values that were computed by hand.

use std::time::{Duration, Instant};

use super::{State, Watched};

use crate::snapshot::{Model, Snapshot};
use crate::source::{Fault, Health, Reading, Report};
use nsbridge_observe::{Page, Queue};

const WINDOW: Duration = Duration::from_secs(10);

/// State of which each reading comes 2 s after the previous one.
struct Clock {
    state: State,
    began: Instant,
    seconds: u64,
}

impl Clock {
    /// Creates the state of a broker, of two workers and of a gateway.
    fn new() -> Self {
        let source = |name: &str, models: &[&str]| {
            let models = models.iter().map(|model| model.parse().unwrap()).collect();
            Watched::new(name.to_owned(), models, WINDOW)
        };
        let sources = vec![
            source("the broker", &["tale", "new"]),
            source("a", &[]),
            source("b", &[]),
            source("g", &[]),
        ];
        let state = State::new(Some("amqp://mq".to_owned()), sources);
        Self { state, began: Instant::now(), seconds: 0 }
    }

    fn take(&mut self, source: usize, read: Result<Reading, Fault>) {
        let at = self.began + Duration::from_secs(self.seconds);
        self.state.take(Report { source, at, read });
    }

    fn pass(&mut self) {
        self.seconds += 2;
    }

    fn snapshot(&self) -> Snapshot {
        let now = self.began + Duration::from_secs(self.seconds);
        self.state.snapshot(now, "now".to_owned())
    }
}

const READY: Health = Health {
    ready: true,
    loaded: true,
    consuming: true,
    handler_ok: true,
    calls_ok: true,
    draining: false,
};

/// Returns the reading of a page.
fn read(text: &str, health: Option<Health>) -> Reading {
    match Page::read(text).unwrap() {
        Page::Worker(worker) => Reading::Worker(Box::new(worker), health),
        Page::Gateway(gateway) => Reading::Gateway(gateway),
    }
}

/// Returns the page of a worker that has ended this many requests of 100 tokens, of which every
/// fourth failed, with times to the first token between 0.1 s and 0.25 s.
fn worker(ended: u32, in_flight: u32, more: &str) -> Reading {
    let ok = ended - ended / 4;
    let text = format!(
        "nsbridge_slots{{model=\"tale\"}} 8\nnsbridge_requests_in_flight 3\n\
         nsbridge_worker_info{{version=\"0.1.0\",fingerprint=\"f1\"}} 1\n\
         nsbridge_tokens_in_flight {in_flight}\n\
         nsbridge_token_usage_sum{{type=\"output\"}} {}\n\
         nsbridge_requests_ended_total{{outcome=\"ok\"}} {ok}\n\
         nsbridge_requests_ended_total{{outcome=\"model-failed\"}} {}\n\
         gen_ai_server_time_to_first_token_seconds_bucket{{le=\"0.1\"}} 0\n\
         gen_ai_server_time_to_first_token_seconds_bucket{{le=\"0.25\"}} {ok}\n\
         gen_ai_server_time_to_first_token_seconds_bucket{{le=\"+Inf\"}} {ok}\n\
         nsbridge_queue_messages{{queue=\"requests\"}} 6\n\
         nsbridge_queue_messages{{queue=\"dead\"}} 9\n{more}",
        ok * 100,
        ended / 4
    );
    read(&text, Some(READY))
}

fn queue(name: &str, ready: u64, consumers: u64) -> Queue {
    Queue { name: name.to_owned(), ready, consumers, ..Queue::default() }
}

#[track_caller]
fn near(found: Option<f64>, expected: f64) {
    let found = found.unwrap();
    assert!((found - expected).abs() < 1e-9, "{found} instead of {expected}");
}

#[test]
fn rates_shares_and_quantiles_are_those_of_the_window() {
    let mut clock = Clock::new();
    let drafts = |drafted, accepted, hits, misses| {
        format!(
            "nsbridge_handler_speculation_drafted_tokens_total {drafted}\n\
             nsbridge_handler_speculation_accepted_tokens_total {accepted}\n\
             nsbridge_handler_prefix_cache_hits_total {hits}\n\
             nsbridge_handler_prefix_cache_misses_total {misses}\n"
        )
    };
    clock.take(1, Ok(worker(100, 50, &drafts(1000, 500, 0, 100))));
    let before = &clock.snapshot().workers[0];
    assert_eq!((before.running, before.slots, before.tokens_per_s), (Some(3), Some(8), None));
    clock.pass();
    clock.take(1, Ok(worker(108, 90, &drafts(1100, 575, 30, 110))));
    clock.pass();
    clock.take(1, Ok(worker(116, 10, &drafts(1200, 650, 60, 120))));
    let found = &clock.snapshot().workers[0];
    assert_eq!((found.state, &*found.version), ("ready", "0.1.0"));
    // 12 of 16 requests ended well, with 100 tokens each; 40 fewer tokens are in flight.
    near(found.tokens_per_s, (1200.0 - 40.0) / 4.0);
    near(found.requests_per_s, 4.0);
    near(found.errors_per_s, 1.0);
    near(found.first_token_p50_s, 0.175);
    near(found.first_token_p95_s, 0.2425);
    near(found.drafts_accepted, 0.75);
    near(found.prefix_cache_hits, 0.75);
}

#[test]
fn a_worker_that_restarts_is_said_and_counts_from_zero() {
    let mut clock = Clock::new();
    for (ended, in_flight) in [(100, 700), (104, 700), (8, 20), (12, 0)] {
        clock.take(1, Ok(worker(ended, in_flight, "")));
        clock.pass();
    }
    let snapshot = clock.snapshot();
    let found = &snapshot.workers[0];
    // 4, then 8 and then 4 more in 6 s.
    near(found.requests_per_s, 16.0 / 6.0);
    near(found.tokens_per_s, (300.0 + 620.0 + 280.0) / 6.0);
    assert_eq!(snapshot.problems, ["worker a of tale: it was restarted within the last 6 s"]);
    // Later the restart is out of the window.
    for ended in 13..20 {
        clock.take(1, Ok(worker(ended, 0, "")));
        clock.pass();
    }
    assert_eq!(clock.snapshot().problems, [""; 0]);
}

#[test]
fn the_figures_of_the_broker_replace_those_of_workers() {
    let mut clock = Clock::new();
    clock.take(1, Ok(worker(4, 0, "")));
    clock.take(2, Ok(worker(4, 0, "")));
    let [model] = &*clock.snapshot().models else { panic!("one model") };
    let of_workers = Model {
        model: "tale".to_owned(),
        ready: Some(6),
        in_work: Some(6),
        dead: Some(9),
        dead_new: Some(0),
        ..Model::default()
    };
    assert_eq!(*model, of_workers);

    let mut queues = vec![
        queue("nsbridge.tale", 5, 2),
        queue("nsbridge.tale.bulk", 40, 0),
        queue("nsbridge.tale.retry.1s", 1, 0),
        queue("nsbridge.tale.bulk.retry.60s", 2, 0),
        queue("nsbridge.tale.dead", 10, 0),
        queue("nsbridge.reply.00000000000000000000000000000007", 99, 1),
    ];
    clock.take(0, Ok(Reading::Queues(queues.clone())));
    clock.pass();
    queues[4].ready = 13;
    queues[0].unacked = Some(7);
    queues[1].unacked = Some(1);
    queues[0].published = Some(1.5);
    queues[1].published = Some(1.0);
    clock.take(0, Ok(Reading::Queues(queues)));
    let snapshot = clock.snapshot();
    let [new, model] = &*snapshot.models else { panic!("{:?}", snapshot.models) };
    assert_eq!(*new, Model { model: "new".to_owned(), ..Model::default() });
    let of_broker = Model {
        bulk: Some(40),
        ready: Some(5),
        in_work: Some(8),
        consumers: Some(2),
        retry: Some(3),
        dead: Some(13),
        dead_new: Some(3),
        published_per_s: Some(2.5),
        ..of_workers
    };
    assert_eq!(*model, of_broker);
    assert_eq!(
        snapshot.problems,
        [
            "new has no queue: no worker ever served it",
            "3 new dead letters of tale within 2 s: see `nsbridge queue dead --model tale`",
        ]
    );
}

#[test]
fn queues_without_consumers_are_said() {
    for (ready, expected) in [
        (0, "no worker takes requests of tale"),
        (1, "1 request of tale waits and no worker takes it"),
        (7, "7 requests of tale wait and no worker takes them"),
    ] {
        let mut clock = Clock::new();
        let queues = vec![queue("nsbridge.tale", ready, 0), queue("nsbridge.new", 3, 1)];
        clock.take(0, Ok(Reading::Queues(queues)));
        assert_eq!(clock.snapshot().problems, [expected]);
    }
}

#[test]
fn a_source_that_cannot_be_read_keeps_its_row_without_figures() {
    let mut clock = Clock::new();
    clock.take(1, Ok(worker(4, 0, "")));
    clock.pass();
    clock.take(1, Ok(worker(8, 0, "")));
    clock.take(
        0,
        Ok(Reading::Queues(vec![queue("nsbridge.tale", 5, 0), queue("nsbridge.new", 0, 1)])),
    );
    clock.pass();
    let fault = |said: &str, next| {
        let next = Some(Duration::from_secs(next));
        Err(Fault { said: said.to_owned(), next })
    };
    clock.take(1, fault("cannot connect", 8));
    clock.take(0, fault("no answer within 5 s", 4));
    clock.pass();
    let snapshot = clock.snapshot();
    assert_eq!(
        snapshot.problems,
        [
            "the broker cannot be read: no answer within 5 s; next attempt in 2 s",
            "a cannot be read: cannot connect; next attempt in 6 s",
        ]
    );
    let row = &snapshot.workers[0];
    assert_eq!(
        (row.state, &*row.model, row.running, row.tokens_per_s),
        ("unreachable", "tale", None, None)
    );
    assert_eq!(snapshot.total.tokens_per_s, None);
    assert_eq!(snapshot.models, []);
    assert!(clock.state.has_faults());

    clock.take(1, Ok(worker(12, 0, "")));
    let snapshot = clock.snapshot();
    // 8 requests in 6 s.
    near(snapshot.workers[0].requests_per_s, 8.0 / 6.0);
    assert_eq!(snapshot.problems.len(), 1, "{:?}", snapshot.problems);
}

#[test]
fn the_state_of_a_worker_and_its_faults_are_said() {
    let check = |health: Health, more: &str, state: &str, said: &[&str]| {
        let mut clock = Clock::new();
        let Reading::Worker(worker, _) = worker(4, 0, more) else { panic!("a worker") };
        clock.take(2, Ok(Reading::Worker(worker, Some(health))));
        let snapshot = clock.snapshot();
        assert_eq!(snapshot.workers[0].state, state);
        let said: Vec<_> = said.iter().map(|said| format!("worker b of tale: {said}")).collect();
        assert_eq!(snapshot.problems, said);
    };
    check(READY, "", "ready", &[]);
    check(Health { ready: false, ..READY }, "", "not ready", &[]);
    check(Health { draining: true, consuming: false, ..READY }, "", "draining", &[]);
    check(Health { loaded: false, consuming: false, ..READY }, "", "loading", &[]);
    let ill = Health { handler_ok: false, ..READY };
    check(ill, "", "unwell", &["the handler is not well"]);
    let stuck = Health { calls_ok: false, ..READY };
    check(stuck, "", "stuck", &["its calls make no progress"]);
    let idle = Health { consuming: false, ..READY };
    check(idle, "", "not taking", &["it is loaded and takes no requests"]);
    let more = "nsbridge_broker_blocked 1\nnsbridge_publish_failing 1\nnsbridge_calls_left_over 2\n\
                nsbridge_handler_speculation_drafting 0\n";
    let said = [
        "it can publish no reply, and takes no requests",
        "the broker blocks its replies",
        "2 of its slots are lost to calls that were given up: restart it",
        "its drafter has failed, and replies are made without drafts",
    ];
    check(READY, more, "ready", &said);
}

#[test]
fn workers_of_a_model_with_several_fingerprints_are_said() {
    let mut clock = Clock::new();
    clock.take(1, Ok(worker(4, 0, "")));
    clock.take(2, Ok(worker(4, 0, "")));
    assert_eq!(clock.snapshot().problems, [""; 0]);
    let other = "nsbridge_worker_info{fingerprint=\"f2\"} 1\n";
    clock.take(2, Ok(worker(4, 0, other)));
    let said = "the workers of tale have 2 fingerprints and cannot go on with each other's replies";
    assert_eq!(clock.snapshot().problems, [said]);
}

#[test]
fn a_gateway_is_read_and_sums_are_those_of_workers() {
    let mut clock = Clock::new();
    let gateway = |requests: u32, refused: u32| {
        let text = format!(
            "http_server_request_duration_seconds_count{{status=\"200\"}} {requests}\n\
             http_server_request_duration_seconds_count{{status=\"429\"}} {refused}\n\
             nsbridge_gateway_requests_refused_total{{code=\"queue_full\"}} {refused}\n\
             nsbridge_gateway_replies_failed_total{{code=\"poison\"}} 1\n\
             nsbridge_gateway_replies_reattached_total {refused}\n\
             nsbridge_gateway_streams_open 5\nnsbridge_gateway_replies_running 6\n"
        );
        read(&text, None)
    };
    clock.take(3, Ok(gateway(10, 0)));
    clock.take(1, Ok(worker(4, 0, "")));
    clock.take(2, Ok(worker(4, 0, "")));
    clock.pass();
    clock.take(3, Ok(gateway(30, 4)));
    clock.take(1, Ok(worker(8, 0, "")));
    clock.take(2, Ok(worker(16, 0, "")));
    let snapshot = clock.snapshot();
    let row = &snapshot.gateways[0];
    assert_eq!((row.state, row.streams, row.running), ("serves", Some(5), Some(6)));
    near(row.requests_per_s, 12.0);
    near(row.refused_per_s, 2.0);
    near(row.failed_per_s, 0.0);
    near(row.reattached_per_s, 2.0);
    near(snapshot.total.requests_per_s, 8.0);
    near(snapshot.total.errors_per_s, 2.0);
    near(snapshot.total.tokens_per_s, 600.0);
    // A worker takes over the address.
    clock.pass();
    clock.take(3, Ok(worker(100, 0, "")));
    let snapshot = clock.snapshot();
    assert_eq!((snapshot.gateways.len(), snapshot.workers.len()), (0, 3));
    assert_eq!(snapshot.workers[2].requests_per_s, None);
}
