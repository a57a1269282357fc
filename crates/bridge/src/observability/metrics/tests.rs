//! Tests of the exported metrics, from the first moment on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nsbridge_handler::erased::Blocking;
use nsbridge_handler::{Finish, Handler, Job, Measure, Models};
use nsbridge_protocol::topology::RETRY_TIERS;
use nsbridge_protocol::{ErrorCode, Fingerprint, Priority, Usage};
use tokio::time::{Instant, sleep};

use super::{Metrics, OrphanEnd, Outcome, Side, Waiting};

fn metrics() -> Metrics {
    Metrics::new(&"tale-7m".parse().unwrap())
}

/// Returns the value of the series whose line starts with `start` and contains `label`.
#[track_caller]
fn value(metrics: &Metrics, start: &str, label: &str) -> f64 {
    let text = metrics.text();
    let mut lines = text.lines().filter(|line| line.starts_with(start) && line.contains(label));
    let (Some(line), None) = (lines.next(), lines.next()) else {
        panic!("not one line of {start} with {label} in\n{text}");
    };
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Returns the kind of each metric by its name, from the `# TYPE` lines.
fn kinds(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    lines.filter_map(|line| line.split_once(' ')).map(|(n, k)| (n.into(), k.into())).collect()
}

#[test]
fn every_series_is_there_before_anything_happened() {
    let metrics = metrics();
    let before = metrics.text();
    everything(&metrics);
    let series = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let mut names: Vec<_> =
            lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect();
        names.sort();
        names
    };
    assert_eq!(series(&before), series(&metrics.text()));
    let zero =
        |line: &&str| !line.starts_with('#') && !line.ends_with(" 0") && !line.ends_with(" 0.0");
    let moved: Vec<_> = before.lines().filter(zero).collect();
    assert!(moved.len() == 1 && moved[0].starts_with("nsbridge_worker_info"), "{moved:?}");
    for code in ErrorCode::ALL {
        assert_eq!(value(&metrics, "nsbridge_dead_letters_total", code.as_str()), 1.0);
    }
}

/// Triggers each event once.
fn everything(metrics: &Metrics) {
    metrics.consumed();
    metrics.processed(Duration::from_secs(1), false);
    metrics.processed(Duration::from_secs(1), true);
    for priority in Priority::ALL {
        metrics.opened(priority, Duration::from_secs(1));
    }
    metrics.preempted();
    metrics.attempt_opened();
    metrics.adopted();
    OrphanEnd::ALL.into_iter().for_each(|end| metrics.orphaned().ended(end));
    ErrorCode::ALL.into_iter().for_each(|code| metrics.dead_lettered(code));
    ErrorCode::ALL.into_iter().for_each(|code| metrics.ended(Outcome::Failed(code)));
    RETRY_TIERS.into_iter().for_each(|tier| metrics.retried(tier));
    metrics.key_pause();
    metrics.keyring_reloaded(true);
    metrics.keyring_reloaded(false);
    metrics.reconnected(Side::Consume);
    metrics.reconnected(Side::Publish);
    metrics.blocked(true);
    metrics.confirmed(Duration::from_millis(1));
    metrics.stale_ack();
    metrics.frame_sent();
    metrics.heartbeat_sent();
    metrics.cancelled();
    metrics.waiting(Waiting::Requests, 3);
    metrics.waiting(Waiting::Bulk, 2);
    metrics.waiting(Waiting::Dead, 1);
    for outcome in [Outcome::Ok(Usage::default()), Outcome::Moved, Outcome::Retried] {
        let mut request = metrics.request(Instant::now());
        request.resumed(1);
        request.sent(3);
        request.ended(outcome);
    }
}

#[test]
fn every_metric_has_a_row_for_the_operator_and_every_row_a_metric() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let table = page.split_once("## Metrics").expect("docs/metrics.md has metrics").1;
    let table = table.split("\n## ").next().unwrap();
    let told: BTreeMap<String, String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .filter_map(|(name, rest)| Some((name.to_owned(), rest.split(" |").next()?.to_owned())))
        .collect();
    assert_eq!(told, kinds(&metrics().text()));
}

#[tokio::test(start_paused = true)]
async fn a_good_request_is_timed_and_its_tokens_counted() {
    let metrics = metrics();
    let mut request = metrics.request(Instant::now());
    sleep(Duration::from_millis(500)).await;
    request.sent(1);
    sleep(Duration::from_secs(2)).await;
    request.sent(5);
    // The same pieces again, under another key.
    sleep(Duration::from_secs(50)).await;
    request.sent(3);
    assert_eq!(value(&metrics, "nsbridge_tokens_in_flight", ""), 5.0);
    assert_eq!(value(&metrics, "nsbridge_requests_in_flight", ""), 1.0);
    let counts = Usage::new(7, 5);
    let usage = counts.with_cached(3);
    request.ended(Outcome::Ok(usage));
    let sum = |name: &str| value(&metrics, &format!("{name}_sum"), "");
    assert_eq!(sum("gen_ai_server_time_to_first_token_seconds"), 0.5);
    assert_eq!(sum("gen_ai_server_time_per_output_token_seconds"), 0.5);
    let tokens = |kind: &str| value(&metrics, "nsbridge_token_usage_sum", kind);
    assert_eq!((tokens("input"), tokens("output"), tokens("cached")), (7.0, 5.0, 3.0));
    let duration = "gen_ai_server_request_duration_seconds_sum";
    assert_eq!(value(&metrics, duration, "error_type=\"\""), 52.5);
    assert_eq!(value(&metrics, "nsbridge_requests_ended_total", "\"ok\""), 1.0);
    assert_eq!(value(&metrics, "nsbridge_tokens_in_flight", ""), 0.0);
    assert_eq!(value(&metrics, "nsbridge_requests_in_flight", ""), 0.0);
}

#[tokio::test(start_paused = true)]
async fn what_was_resumed_is_not_counted_as_made() {
    let metrics = metrics();
    let mut request = metrics.request(Instant::now());
    request.resumed(10);
    request.resumed(10);
    request.sent(10);
    sleep(Duration::from_secs(1)).await;
    request.sent(11);
    sleep(Duration::from_secs(1)).await;
    request.sent(13);
    request.ended(Outcome::Ok(Usage::default()));
    assert_eq!(value(&metrics, "nsbridge_resumes_total", ""), 1.0);
    assert_eq!(value(&metrics, "nsbridge_resumed_pieces_total", ""), 10.0);
    let sum = |name: &str| value(&metrics, &format!("gen_ai_server_{name}_seconds_sum"), "");
    assert_eq!((sum("time_to_first_token"), sum("time_per_output_token")), (1.0, 0.5));
    // If the handler counts no tokens, the pieces stand for them.
    assert_eq!(value(&metrics, "nsbridge_token_usage_sum", "output"), 13.0);
}

#[tokio::test(start_paused = true)]
async fn a_failed_request_counts_its_code_and_no_token_times() {
    let metrics = metrics();
    let mut request = metrics.request(Instant::now());
    request.sent(1);
    request.ended(Outcome::Failed(ErrorCode::Deadline));
    assert_eq!(value(&metrics, "nsbridge_requests_ended_total", "deadline"), 1.0);
    assert_eq!(value(&metrics, "gen_ai_server_time_to_first_token_seconds_count", ""), 0.0);
    let duration = "gen_ai_server_request_duration_seconds_count";
    assert_eq!(value(&metrics, duration, "_OTHER"), 1.0);
    assert_eq!(value(&metrics, duration, "error_type=\"\""), 0.0);
}

#[tokio::test]
async fn the_load_is_told_and_a_dropped_request_ends_it() {
    let metrics = metrics();
    let load = metrics.load();
    let (first, second) = (metrics.request(Instant::now()), metrics.request(Instant::now()));
    assert_eq!(*load.borrow(), 2);
    drop((first, second));
    assert_eq!(*load.borrow(), 0);
    assert_eq!(value(&metrics, "nsbridge_requests_in_flight", ""), 0.0);
}

#[test]
fn the_worker_says_what_it_is() {
    let metrics = metrics();
    let revision = "2026-11-21-a1b2c3".parse().unwrap();
    metrics.loaded(Some(Fingerprint([7; 16])), Some(&revision));
    let label = format!("fingerprint=\"{}\",revision=\"{revision}\"", "07".repeat(16));
    assert_eq!(value(&metrics, "nsbridge_worker_info", &label), 1.0);
    let text = metrics.text();
    assert!(text.ends_with("# EOF\n"));
    assert!(text.contains("gen_ai_request_model=\"tale-7m\""));
    assert!(text.contains("messaging_destination_name=\"nsbridge.tale-7m\""));
}

#[test]
fn what_the_handler_measures_is_shown_from_its_loading_on() {
    struct Counting(AtomicU64);

    impl Handler for Counting {
        type Options = ();
        type Input = ();
        type Output = ();

        fn load((): (), _models: Models) -> nsbridge_handler::Result<Self> {
            Ok(Self(AtomicU64::new(0)))
        }

        fn handle(&self, (): (), _job: &mut Job<()>) -> nsbridge_handler::Result<Finish> {
            Ok(Finish::STOP)
        }

        fn measures(&self) -> Vec<Measure> {
            let asked = self.0.fetch_add(1, Ordering::Relaxed) as f64;
            vec![Measure::counter("asked", "How often", asked), Measure::gauge("open", "x", 2.5)]
        }
    }

    let metrics = metrics();
    assert!(!metrics.text().contains("nsbridge_handler_"));
    metrics.measures_of(Arc::new(Blocking(Arc::new(Counting(AtomicU64::new(0))))));
    assert_eq!(value(&metrics, "nsbridge_handler_asked_total", ""), 0.0);
    assert_eq!(value(&metrics, "nsbridge_handler_asked_total", ""), 1.0);
    assert_eq!(value(&metrics, "nsbridge_handler_open", ""), 2.5);
    assert_eq!(kinds(&metrics.text())["nsbridge_handler_asked"], "counter");
    assert!(metrics.text().ends_with("# EOF\n"));
}
