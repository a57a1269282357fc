//! Metrics of a worker, and its health pages.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nsbridge::worker::{Health, Metrics, Observability, Pages};
use nsbridge_handler::{
    Finish, Handler, Health as HandlerHealth, Job, Models, Result as HandlerResult,
};
use nsbridge_protocol::ErrorCode;
use nsbridge_protocol::topology::model_queue;
use nsbridge_queue::{Broker, MemoryBroker, Message};
use nsbridge_testkit::http::get;
use nsbridge_testkit::system::Setup;
use tokio::time::sleep;

use crate::orphans::Stage;
use crate::script::{
    Script, Scripted, Sick, ask, fresh_seed, piece, release, said, submit, system, until,
};
use crate::stories;
use crate::trouble::rest;

stories! {
    after_one_good_request_the_counts_are_right,
    a_dead_letter_counts_its_reason,
    a_model_that_fails_counts_its_retry_and_then_its_end,
    a_resume_counts_the_pieces_that_were_not_made_again,
    what_waits_in_the_queue_is_told,
}

/// Returns the value of the one series whose line starts with `name` and contains `label`.
#[track_caller]
pub(crate) fn value(metrics: &Metrics, name: &str, label: &str) -> f64 {
    let text = metrics.text();
    let is_it = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(label);
    let found: Vec<_> = text.lines().filter(is_it).collect();
    let [line] = found[..] else { panic!("not one series of {name} with {label}: {found:?}") };
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until a series has this value. A request's end is counted after its client received it.
pub(crate) async fn becomes(metrics: &Metrics, name: &str, label: &str, expected: f64) {
    let began = Instant::now();
    while value(metrics, name, label) != expected && began.elapsed() < Duration::from_secs(20) {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(value(metrics, name, label), expected, "{name} {label}");
}

/// Waits until a series without labels of its own has at least this value.
async fn becomes_at_least(metrics: &Metrics, name: &str, expected: f64) {
    until(name, async || value(metrics, name, "") >= expected).await;
}

fn series(metrics: &Metrics) -> Vec<String> {
    let text = metrics.text();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut names: Vec<_> =
        lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect();
    names.sort();
    names
}

async fn after_one_good_request_the_counts_are_right(broker: Arc<dyn Broker>) {
    let (setup, worker, client) = system(broker).await;
    let metrics = &setup.observability.metrics;
    let before = series(metrics);
    assert_eq!(value(metrics, "nsbridge_requests_ended_total", "\"ok\""), 0.0);
    let reply = submit(&client, &setup, Script::Say { pieces: 20, every_ms: 10 }).await.unwrap();
    reply.collect().await.unwrap();
    becomes(metrics, "nsbridge_requests_ended_total", "\"ok\"", 1.0).await;
    worker.stop().await.unwrap();
    let is = |name: &str, label: &str, expected: f64| {
        assert_eq!(value(metrics, name, label), expected, "{name} {label}");
    };
    is("messaging_client_consumed_messages_total", "", 1.0);
    is("messaging_process_duration_seconds_count", "error_type=\"\"", 1.0);
    is("gen_ai_server_request_duration_seconds_count", "error_type=\"\"", 1.0);
    is("gen_ai_server_time_to_first_token_seconds_count", "", 1.0);
    is("gen_ai_server_time_per_output_token_seconds_count", "", 1.0);
    is("nsbridge_queue_wait_seconds_count", "interactive", 1.0);
    is("nsbridge_attempts_opened_total", "", 1.0);
    is("nsbridge_token_usage_sum", "output", 20.0);
    is("nsbridge_requests_in_flight", "", 0.0);
    is("nsbridge_tokens_in_flight", "", 0.0);
    is("nsbridge_resumes_total", "", 0.0);
    is("nsbridge_reconnects_total", "consume", 0.0);
    is("nsbridge_reconnects_total", "publish", 0.0);
    is("nsbridge_stale_acks_total", "", 0.0);
    let frames = value(metrics, "nsbridge_frames_sent_total", "");
    assert!((3.0..=22.0).contains(&frames), "open, pieces, end: {frames}");
    is("nsbridge_confirm_latency_seconds_count", "", frames);
    let per_token = value(metrics, "gen_ai_server_time_per_output_token_seconds_sum", "");
    assert!((0.005..0.1).contains(&per_token), "{per_token}");
    assert_eq!(series(metrics), before, "every series was there before the first request");
}

async fn a_dead_letter_counts_its_reason(broker: Arc<dyn Broker>) {
    let (setup, _worker, _client) = system(broker.clone()).await;
    let metrics = &setup.observability.metrics;
    let connection = broker.connect("attacker").await.unwrap();
    let publisher = connection.publisher().await.unwrap();
    let garbage = Message::new(b"garbage".to_vec());
    let sent = publisher.publish("", &model_queue(&setup.model), garbage).await.unwrap();
    sent.await.unwrap();
    becomes(metrics, "nsbridge_dead_letters_total", "\"malformed\"", 1.0).await;
    becomes(metrics, "nsbridge_requests_ended_total", "\"malformed\"", 1.0).await;
    let others = ErrorCode::ALL.iter().filter(|code| **code != ErrorCode::Malformed);
    for code in others {
        let label = format!("\"{code}\"");
        assert_eq!(value(metrics, "nsbridge_dead_letters_total", &label), 0.0);
    }
    becomes(metrics, "messaging_process_duration_seconds_count", "_OTHER", 1.0).await;
}

async fn a_model_that_fails_counts_its_retry_and_then_its_end(broker: Arc<dyn Broker>) {
    let (setup, _worker, client) = system(broker).await;
    let metrics = &setup.observability.metrics;
    // Ten seconds allow the first retry (1 s) but not the second (10 s).
    submit(&client, &setup, Script::Fail).await.unwrap().collect().await.unwrap_err();
    becomes(metrics, "nsbridge_dead_letters_total", "\"model-failed\"", 1.0).await;
    becomes(metrics, "nsbridge_requests_ended_total", "\"model-failed\"", 1.0).await;
    assert_eq!(value(metrics, "nsbridge_requests_ended_total", "\"retried\""), 1.0);
    assert_eq!(value(metrics, "nsbridge_retries_total", "\"1s\""), 1.0);
    assert_eq!(value(metrics, "nsbridge_retries_total", "\"10s\""), 0.0);
}

async fn a_resume_counts_the_pieces_that_were_not_made_again(broker: Arc<dyn Broker>) {
    let mut setup = Setup::new().unwrap();
    setup.grace = Duration::ZERO;
    let first = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let mut say = ask(&setup, Script::Say { pieces: 300, every_ms: 5 }, 7);
    say.timeout = Duration::from_secs(60);
    let mut reply = client.submit(say).await.unwrap();
    for _ in 0..100 {
        reply.next().await.unwrap().unwrap();
    }
    first.stop().await.unwrap();
    let moved = &setup.observability.metrics;
    assert_eq!(value(moved, "nsbridge_requests_ended_total", "\"moved\""), 1.0);
    let observability = Observability::new(&setup.model);
    let next = Setup { observability: observability.clone(), ..setup.clone() };
    let _second = next.worker::<Scripted>(broker, ()).await.unwrap();
    assert_eq!(rest(reply).await, said(7, 300)[100..]);
    let metrics = &observability.metrics;
    becomes(metrics, "nsbridge_requests_ended_total", "\"ok\"", 1.0).await;
    assert_eq!(value(metrics, "nsbridge_resumes_total", ""), 1.0);
    let resumed = value(metrics, "nsbridge_resumed_pieces_total", "");
    assert!((100.0..300.0).contains(&resumed), "{resumed}");
}

async fn what_waits_in_the_queue_is_told(broker: Arc<dyn Broker>) {
    let mut setup = Setup::new().unwrap();
    setup.timing.depth_interval = Duration::from_millis(50);
    let first = broker.connect("first").await.unwrap();
    first.declare_model(&setup.model).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let mut replies = Vec::new();
    for _ in 0..5 {
        let slow = Script::Say { pieces: 1000, every_ms: 10 };
        replies.push(submit(&client, &setup, slow).await.unwrap());
    }
    let _worker = setup.worker::<Scripted>(broker, ()).await.unwrap();
    let metrics = &setup.observability.metrics;
    let began = Instant::now();
    let mut most = 0.0_f64;
    while most < 4.0 && began.elapsed() < Duration::from_secs(20) {
        most = most.max(value(metrics, "nsbridge_queue_messages", "requests"));
        sleep(Duration::from_millis(10)).await;
    }
    assert!((4.0..=5.0).contains(&most), "one runs, four wait: {most}");
    assert_eq!(value(metrics, "nsbridge_queue_messages", "dead"), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adoption_is_counted_and_so_is_the_connection_that_was_opened_again() {
    let stage = Stage::new().await;
    let _a = stage.worker::<Scripted>("a").await;
    let metrics = &stage.setup.observability.metrics;
    let (seed, mut reply) = stage.say(150, 10).await;
    reply.next().await.unwrap().unwrap();
    stage.cut_consuming("a");
    assert_eq!(rest(reply).await, said(seed, 150)[1..]);
    becomes(metrics, "nsbridge_requests_ended_total", "\"ok\"", 1.0).await;
    assert_eq!(value(metrics, "nsbridge_adoptions_total", ""), 1.0);
    // The copy may come back before the worker notices that the delivery was lost.
    let orphans = value(metrics, "nsbridge_orphans_total", "");
    assert_eq!(value(metrics, "nsbridge_orphans_ended_total", "adopted"), orphans);
    assert_eq!(value(metrics, "nsbridge_reconnects_total", "consume"), 1.0);
    assert_eq!(value(metrics, "nsbridge_attempts_opened_total", ""), 2.0);
    assert_eq!(value(metrics, "nsbridge_token_usage_sum", "output"), 150.0, "none counts twice");
    assert_eq!(value(metrics, "messaging_client_consumed_messages_total", ""), 2.0);
    assert_eq!(value(metrics, "messaging_process_duration_seconds_count", "\"\""), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphan_that_waited_in_vain_counts_as_expired() {
    let mut stage = Stage::new().await;
    stage.setup.timing.adopt_window = Duration::from_millis(100);
    let _a = stage.worker::<Scripted>("a").await;
    let observability = stage.setup.observability.clone();
    let (_, mut reply) = stage.say(900, 10).await;
    reply.next().await.unwrap().unwrap();
    let other = Setup {
        worker: "b".into(),
        observability: Observability::new(&stage.setup.model),
        ..stage.setup.clone()
    };
    let _b = other.worker::<Scripted>(Arc::new(stage.broker.clone()), ()).await.unwrap();
    stage.cut_consuming("a");
    becomes(&observability.metrics, "nsbridge_orphans_ended_total", "expired", 1.0).await;
    becomes(&observability.metrics, "nsbridge_requests_in_flight", "", 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_is_counted_and_the_broker_that_blocks_is_seen() {
    let broker = MemoryBroker::new();
    let mut setup = Setup::new().unwrap();
    setup.timing.probe_interval = Duration::from_millis(20);
    setup.timing.pulse_interval = Duration::from_millis(2);
    let _worker = setup.worker::<Scripted>(Arc::new(broker.clone()), ()).await.unwrap();
    let client = setup.client(Arc::new(broker.clone())).await.unwrap();
    let metrics = &setup.observability.metrics;
    let endless = Script::Say { pieces: 1_000_000, every_ms: 5 };
    let mut reply = submit(&client, &setup, endless).await.unwrap();
    reply.next().await.unwrap().unwrap();
    assert_eq!(value(metrics, "nsbridge_requests_in_flight", ""), 1.0);
    assert!(value(metrics, "nsbridge_tokens_in_flight", "") >= 1.0);
    reply.cancel();
    becomes(metrics, "nsbridge_requests_ended_total", "\"cancelled\"", 1.0).await;
    assert!(value(metrics, "nsbridge_cancels_total", "") >= 1.0);
    broker.block();
    becomes(metrics, "nsbridge_broker_blocked", "", 1.0).await;
    broker.unblock();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publishing_connection_that_was_opened_again_is_counted_and_no_piece_twice() {
    let broker = MemoryBroker::new();
    let (setup, _worker, client) = system(Arc::new(broker.clone())).await;
    let metrics = &setup.observability.metrics;
    let say = Script::Say { pieces: 50, every_ms: 10 };
    let mut reply = submit(&client, &setup, say).await.unwrap();
    reply.next().await.unwrap().unwrap();
    broker.cut(&format!("{} publish", setup.worker));
    assert_eq!(rest(reply).await, said(7, 50)[1..]);
    becomes(metrics, "nsbridge_requests_ended_total", "\"ok\"", 1.0).await;
    assert_eq!(value(metrics, "nsbridge_reconnects_total", "publish"), 1.0);
    assert_eq!(value(metrics, "nsbridge_reconnects_total", "consume"), 0.0);
    assert_eq!(value(metrics, "nsbridge_attempts_opened_total", ""), 2.0);
    assert_eq!(value(metrics, "nsbridge_token_usage_sum", "output"), 50.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_is_silent_for_long_has_its_heartbeats_counted() {
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::new());
    let mut setup = Setup::new().unwrap();
    setup.timing.heartbeat = Duration::from_millis(50);
    let _worker = setup.worker::<Scripted>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker).await.unwrap();
    let metrics = &setup.observability.metrics;
    let held = ask(&setup, Script::Hold, fresh_seed());
    let seed = held.seed.unwrap();
    let reply = client.submit::<String>(held).await.unwrap();
    becomes_at_least(metrics, "nsbridge_heartbeats_total", 3.0).await;
    release(seed);
    reply.collect().await.unwrap();
    becomes(metrics, "nsbridge_requests_ended_total", "\"ok\"", 1.0).await;
    // The others are the open frame, two pieces and the end.
    let frames = value(metrics, "nsbridge_frames_sent_total", "");
    assert_eq!(value(metrics, "nsbridge_heartbeats_total", ""), frames - 4.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_says_it_is_not_well_ends_its_worker() {
    let mut setup = Setup::new().unwrap();
    setup.timing.health_interval = Duration::from_millis(100);
    let worker = setup.worker::<Sick>(Arc::new(MemoryBroker::new()), ()).await.unwrap();
    let said = worker.ended().await.unwrap_err().to_string();
    assert!(said.contains("its health check failed"), "{said}");
}

/// Handler that hangs in its first call and reports itself as failed.
struct Hangs(AtomicBool);

impl Handler for Hangs {
    type Options = ();
    type Input = Script;
    type Output = String;

    fn load((): (), _: Models) -> HandlerResult<Self> {
        Ok(Self(AtomicBool::new(false)))
    }

    fn handle(&self, _: Script, job: &mut Job<String>) -> HandlerResult<Finish> {
        job.emit(piece(job.info().seed, 0))?;
        self.0.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_secs(3600));
        Ok(Finish::STOP)
    }

    fn health(&self) -> HandlerHealth {
        match self.0.load(Ordering::SeqCst) {
            false => HandlerHealth::Ok,
            true => HandlerHealth::Failed("the device hangs".to_owned()),
        }
    }
}

/// Creates the setup of a worker with a long grace period that finds its failed handler soon.
fn hanging() -> Setup {
    let mut setup = Setup { grace: Duration::from_secs(3600), ..Setup::new().unwrap() };
    setup.timing.health_interval = Duration::from_millis(300);
    setup.timing.failed_call_limit = Duration::from_millis(100);
    // Later than the deadline of the requests, so that only the failed handler ends its calls.
    setup.timing.give_up_call_after = Duration::from_secs(3600);
    setup.timing.hand_over_limit = Duration::from_secs(3600);
    setup
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_hangs_in_a_handler_that_is_not_well_goes_elsewhere_long_before_the_grace_is_over() {
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::new());
    let setup = hanging();
    let hangs = setup.worker::<Hangs>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker.clone()).await.unwrap();
    let mut asked = ask(&setup, Script::Say { pieces: 3, every_ms: 1 }, 7);
    asked.timeout = Duration::from_secs(60);
    let mut reply = client.submit::<String>(asked).await.unwrap();
    reply.next().await.unwrap().unwrap();
    let _other = setup.worker::<Scripted>(broker, ()).await.unwrap();
    // The call never returns, and the deadline comes long before the end of the grace period.
    assert_eq!(rest(reply).await, said(7, 3)[1..]);
    let why = hangs.ended().await.unwrap_err().to_string();
    assert!(why.contains("its health check failed: the device hangs"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_breaks_while_its_worker_leaves_is_no_good_end() {
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::new());
    let setup = hanging();
    let hangs = setup.worker::<Hangs>(broker.clone(), ()).await.unwrap();
    let client = setup.client(broker).await.unwrap();
    let mut reply = submit(&client, &setup, Script::Fail).await.unwrap();
    reply.next().await.unwrap().unwrap();
    hangs.drain().begin();
    let ended = tokio::time::timeout(Duration::from_secs(30), hangs.ended()).await;
    let why = ended.expect("it waits for the grace").unwrap_err().to_string();
    assert!(why.contains("the device hangs"), "{why}");
}

/// Serves the pages of a worker with this observability.
async fn pages(observability: &Observability) -> SocketAddr {
    let pages = Pages::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = pages.addr().unwrap();
    tokio::spawn(pages.serve(observability.health.clone(), observability.metrics.clone()));
    addr
}

/// Waits until a page responds with this status and returns its body.
async fn answers(addr: SocketAddr, path: &str, status: u16) -> String {
    let began = Instant::now();
    loop {
        let (found, body) = get(addr, path).await.unwrap();
        if found == status {
            return body;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{path} stays {found}: {body}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_ready_when_it_takes_requests_and_not_while_it_drains() {
    let (setup, worker, client) = system(Arc::new(MemoryBroker::new())).await;
    let addr = pages(&setup.observability).await;
    let ready = answers(addr, "/readyz", 200).await;
    assert!(ready.contains(&format!("\"model\":\"{}\"", setup.model)), "{ready}");
    assert!(ready.contains("\"fingerprint\":\"7363726970"), "{ready}");
    let slow = Script::Say { pieces: 200, every_ms: 10 };
    let mut reply = submit(&client, &setup, slow).await.unwrap();
    reply.next().await.unwrap().unwrap();
    worker.drain().by(tokio::time::Instant::now() + Duration::from_secs(20));
    let draining = answers(addr, "/readyz", 503).await;
    assert!(draining.contains("\"draining\":true"), "{draining}");
    assert_eq!(get(addr, "/livez").await.unwrap().0, 200, "draining is alive");
    reply.collect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_broker_is_gone_for_long_is_dead_until_it_is_back() {
    let broker = MemoryBroker::new();
    let mut setup = Setup::new().unwrap();
    setup.observability.health = Health::new(setup.model.clone(), Duration::from_secs(1));
    let _worker = setup.worker::<Scripted>(Arc::new(broker.clone()), ()).await.unwrap();
    let addr = pages(&setup.observability).await;
    answers(addr, "/readyz", 200).await;
    broker.refuse();
    broker.cut(&format!("{} consume", setup.worker));
    answers(addr, "/readyz", 503).await;
    assert_eq!(get(addr, "/livez").await.unwrap().0, 200, "a moment without a broker is no death");
    let dead = answers(addr, "/livez", 503).await;
    assert!(dead.contains("\"consuming\":false"), "{dead}");
    broker.accept();
    answers(addr, "/livez", 200).await;
    answers(addr, "/readyz", 200).await;
}
