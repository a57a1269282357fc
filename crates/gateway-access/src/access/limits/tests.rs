//! Tests of limits: what is refused for how long, and that every reservation is accounted for.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::{any, proptest};

use super::{Limit, Limiter, Limits, Refusal, print};

fn limiter(requests: Option<u64>, tokens: Option<u64>, concurrent: Option<u64>) -> Arc<Limiter> {
    Arc::new(Limiter::new(limits(requests, tokens, concurrent)))
}

fn limits(requests: Option<u64>, tokens: Option<u64>, concurrent: Option<u64>) -> Limits {
    Limits { requests_per_minute: requests, tokens_per_minute: tokens, concurrent }
}

async fn pass(seconds: f64) {
    tokio::time::advance(Duration::from_secs_f64(seconds)).await;
}

#[track_caller]
fn check_limited(limiter: &Arc<Limiter>, tokens: u64, what: Limit, seconds: u64) {
    let refusal = limiter.reserve(tokens).map(|_| ()).unwrap_err();
    let retry_after = Duration::from_secs(seconds);
    assert_eq!(refusal, Refusal::Limited { what, retry_after });
}

#[track_caller]
fn check_remaining(limiter: &Limiter, kind: &str, remaining: u64) {
    let name = format!("x-ratelimit-remaining-{kind}");
    let headers = limiter.headers();
    let value = headers.iter().find(|(header, _)| *header == name).map(|(_, value)| value.clone());
    assert_eq!(value, Some(remaining.to_string()), "{kind}");
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_minute_wait_for_the_next_one() {
    let limiter = limiter(Some(2), None, None);
    limiter.reserve(1_000_000).unwrap().settle(5);
    limiter.reserve(0).unwrap().settle(0);
    check_limited(&limiter, 0, Limit::Requests, 30);
    pass(28.5).await;
    check_limited(&limiter, 0, Limit::Requests, 2);
    pass(1.25).await;
    check_limited(&limiter, 0, Limit::Requests, 1);
    pass(0.25).await;
    limiter.reserve(0).unwrap().settle(0);
    check_limited(&limiter, 0, Limit::Requests, 30);
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_counts_as_none() {
    let limiter = limiter(Some(3), Some(100), Some(1));
    let running = limiter.reserve(60).unwrap();
    check_limited(&limiter, 0, Limit::Concurrent, 1);
    check_limited(&limiter, 100, Limit::Tokens, 36);
    check_remaining(&limiter, "requests", 2);
    check_remaining(&limiter, "tokens", 40);
    assert_eq!(limiter.running(), 1);
    drop(running);
    assert_eq!(limiter.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn settling_gives_the_difference_back_and_takes_a_debt() {
    let limiter = limiter(None, Some(600), None);
    limiter.reserve(500).unwrap().settle(200);
    check_remaining(&limiter, "tokens", 400);
    limiter.reserve(100).unwrap().settle(700);
    check_remaining(&limiter, "tokens", 0);
    // 300 tokens of debt, at 10 a second.
    check_limited(&limiter, 0, Limit::Tokens, 30);
    check_limited(&limiter, 600, Limit::Tokens, 90);
    pass(31.0).await;
    check_remaining(&limiter, "tokens", 10);
}

#[tokio::test(start_paused = true)]
async fn time_before_a_debt_does_not_pay_it() {
    let limiter = limiter(None, Some(600), None);
    let reservation = limiter.reserve(0).unwrap();
    pass(60.0).await;
    reservation.settle(300);
    check_remaining(&limiter, "tokens", 300);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_was_not_settled_gives_its_tokens_back() {
    let limiter = limiter(Some(10), Some(600), Some(1));
    let reservation = limiter.reserve(600).unwrap();
    check_remaining(&limiter, "tokens", 0);
    pass(3.0).await;
    drop(reservation);
    check_remaining(&limiter, "tokens", 600);
    limiter.reserve(600).unwrap().settle(600);
    check_remaining(&limiter, "tokens", 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_no_waiting_helps_is_refused_otherwise() {
    let limiter = limiter(None, Some(100), None);
    limiter.reserve(100).unwrap().settle(100);
    let refusal = limiter.reserve(101).map(|_| ()).unwrap_err();
    assert_eq!(refusal, Refusal::TooLarge { tokens: 101, most: 100 });
    assert!(refusal.to_string().contains("`max_tokens`"), "{refusal}");
    check_limited(&limiter, 100, Limit::Tokens, 60);
}

#[tokio::test(start_paused = true)]
async fn a_long_debt_is_told_as_two_minutes() {
    let limiter = limiter(None, Some(100), None);
    limiter.reserve(1).unwrap().settle(u64::MAX);
    check_limited(&limiter, 0, Limit::Tokens, 120);
    assert_eq!(limiter.headers().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_are_counted_until_they_end() {
    let limiter = limiter(None, None, Some(2));
    let (first, second) = (limiter.reserve(1).unwrap(), limiter.reserve(1).unwrap());
    check_limited(&limiter, 1, Limit::Concurrent, 1);
    first.settle(1);
    let third = limiter.reserve(1).unwrap();
    check_limited(&limiter, 1, Limit::Concurrent, 1);
    drop((second, third));
    assert_eq!(limiter.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn changed_limits_keep_what_was_used_in_proportion() {
    let limiter = limiter(Some(10), Some(100), Some(1));
    let running = limiter.reserve(80).unwrap();
    limiter.set(limits(Some(100), Some(1_000), Some(2)));
    check_remaining(&limiter, "requests", 90);
    check_remaining(&limiter, "tokens", 200);
    let second = limiter.reserve(200).unwrap();
    check_limited(&limiter, 0, Limit::Concurrent, 1);
    limiter.set(limits(None, Some(10), None));
    assert_eq!(limiter.headers().len(), 3);
    drop((running, second));
    check_remaining(&limiter, "tokens", 10);
    limiter.set(Limits::default());
    assert_eq!(limiter.headers(), []);
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_new_gives_nothing_back_for_earlier_requests() {
    let limiter = limiter(None, None, None);
    let earlier = limiter.reserve(1_000).unwrap();
    limiter.set(limits(None, Some(100), None));
    limiter.reserve(50).unwrap().settle(50);
    drop(earlier);
    check_remaining(&limiter, "tokens", 50);
}

#[tokio::test(start_paused = true)]
async fn headers_tell_limit_rest_and_time_to_full() {
    let limiter = limiter(Some(600), Some(60_000), None);
    limiter.reserve(1_500).unwrap().settle(1_500);
    let headers: Vec<String> =
        limiter.headers().iter().map(|(name, value)| format!("{name}: {value}")).collect();
    assert_eq!(
        headers,
        [
            "x-ratelimit-limit-requests: 600",
            "x-ratelimit-remaining-requests: 599",
            "x-ratelimit-reset-requests: 100ms",
            "x-ratelimit-limit-tokens: 60000",
            "x-ratelimit-remaining-tokens: 58500",
            "x-ratelimit-reset-tokens: 1.5s",
        ]
    );
}

#[track_caller]
fn check_printed(milliseconds: u64, text: &str) {
    assert_eq!(print(Duration::from_millis(milliseconds)), text);
}

#[test]
fn times_are_printed_as_openai_prints_them() {
    check_printed(0, "0s");
    check_printed(20, "20ms");
    check_printed(999, "999ms");
    check_printed(1_000, "1s");
    check_printed(8_640, "8.64s");
    check_printed(360_000, "6m0s");
    check_printed(61_005, "1m1.005s");
    check_printed(3_600_000, "1h0m0s");
    check_printed(90_061_001, "25h1m1.001s");
    assert_eq!(print(Duration::from_nanos(1)), "1ms");
    assert!(!print(Duration::MAX).is_empty());
}

#[track_caller]
fn check_range(limits: Limits, field: Option<&str>) {
    match (limits.check(), field) {
        (Ok(()), None) => {}
        (Err(error), Some(field)) => assert!(error.contains(field), "{error}"),
        (outcome, field) => panic!("{outcome:?} instead of {field:?}"),
    }
}

#[test]
fn a_limit_out_of_range_is_refused_by_its_field() {
    check_range(limits(None, None, None), None);
    check_range(limits(Some(1), Some(1_000_000_000_000), Some(1)), None);
    check_range(limits(Some(0), None, None), Some("`limits.requests_per_minute`"));
    check_range(limits(None, Some(1_000_000_000_001), None), Some("`limits.tokens_per_minute`"));
    check_range(limits(None, None, Some(0)), Some("`limits.concurrent`"));
}

proptest! {
    #[test]
    fn after_all_reservations_were_dropped_nothing_is_missing(
        calls in proptest::collection::vec((any::<bool>(), 0..2_000_u64), 0..60),
    ) {
        let limiter = limiter(None, Some(1_000), Some(5));
        let mut open = Vec::new();
        for (begin, tokens) in calls {
            if begin {
                open.extend(limiter.reserve(tokens).ok());
            } else {
                open.pop();
            }
            assert!(limiter.running() == open.len() as u64 && open.len() <= 5);
        }
        drop(open);
        check_remaining(&limiter, "tokens", 1_000);
    }
}
