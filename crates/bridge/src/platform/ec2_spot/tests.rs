//! Tests with a stand-in for the metadata service, whose answers are as AWS documents them, or are
//! not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use nsbridge_testkit::http::{Answer, Seen, Server};
use tokio::time::{Instant, timeout};

use super::{Action, Ec2Spot, time_left};
use crate::clock::from_rfc3339;

const NOTICE: &str = r#"{"action": "terminate", "time": "2031-09-18T08:22:00Z"}"#;

/// Serves numbered tokens and passes other requests to `page`, with the token and the number of
/// earlier page requests.
async fn imds(page: impl Fn(&str, &str, usize) -> Answer + Send + Sync + 'static) -> Server {
    let (tokens, pages) = (AtomicUsize::new(0), AtomicUsize::new(0));
    Server::start(move |seen: &Seen| {
        if seen.line == "PUT /latest/api/token" {
            assert_eq!(seen.header("x-aws-ec2-metadata-token-ttl-seconds"), Some("21600"));
            return Answer::new(200, &format!("token-{}", tokens.fetch_add(1, Ordering::SeqCst)));
        }
        let Some(token) = seen.header("x-aws-ec2-metadata-token") else {
            return Answer::new(401, "");
        };
        if seen.line.ends_with("/rebalance") {
            return Answer::new(404, "");
        }
        page(&seen.line, token, pages.fetch_add(1, Ordering::SeqCst))
    })
    .await
    .unwrap()
}

fn spot(server: &Server) -> Ec2Spot {
    let mut spot = Ec2Spot::new(&server.url("/"));
    spot.poll = Duration::from_millis(5);
    spot
}

async fn notice(spot: &mut Ec2Spot) -> Duration {
    let by = timeout(Duration::from_secs(20), spot.notice()).await.expect("no notice was seen");
    by - Instant::now()
}

#[tokio::test]
async fn a_notice_is_seen_when_it_comes_and_one_token_serves_until_then() {
    let server = imds(|line, token, n| {
        assert_eq!((line, token), ("GET /latest/meta-data/spot/instance-action", "token-0"));
        if n < 5 { Answer::new(404, "<html>Not Found</html>") } else { Answer::new(200, NOTICE) }
    })
    .await;
    let left = notice(&mut spot(&server)).await;
    assert!(left > Duration::from_secs(109) && left <= Duration::from_secs(110), "{left:?}");
}

#[tokio::test]
async fn a_token_that_is_over_is_asked_for_again() {
    let server = imds(|_, token, _| match token {
        "token-0" => Answer::new(401, "Unauthorized"),
        _ => Answer::new(200, NOTICE),
    })
    .await;
    notice(&mut spot(&server)).await;
    assert_eq!(server.seen().iter().filter(|seen| seen.line.starts_with("PUT")).count(), 2);
}

#[tokio::test]
async fn no_trouble_of_the_service_is_a_notice_or_the_end_of_asking() {
    let troubles = [
        Answer::new(500, "no"),
        Answer::new(401, "never any token is right"),
        Answer::new(401, "the second one too"),
        Answer::new(200, "this is not JSON"),
        Answer::new(200, "{}"),
        Answer::new(200, ""),
        Answer::raw("garbage\r\n\r\n"),
        Answer::raw(""),
        Answer::never(),
    ];
    let count = troubles.len();
    let asked = Arc::new(AtomicUsize::new(0));
    let log = asked.clone();
    let server = imds(move |_, _, n| {
        log.store(n, Ordering::SeqCst);
        troubles.get(n).cloned().unwrap_or_else(|| Answer::new(200, NOTICE))
    })
    .await;
    notice(&mut spot(&server)).await;
    assert_eq!(asked.load(Ordering::SeqCst), count, "every trouble came, then the notice");
}

#[tokio::test]
async fn a_recommendation_to_rebalance_is_no_reason_to_leave() {
    let server = Server::start(|seen: &Seen| match seen.line.as_str() {
        "PUT /latest/api/token" => Answer::new(200, "token"),
        line if line.ends_with("/rebalance") => {
            Answer::new(200, r#"{"noticeTime": "2031-09-18T08:22:00Z"}"#)
        }
        _ => Answer::new(404, ""),
    })
    .await
    .unwrap();
    let mut spot = spot(&server);
    let left = timeout(Duration::from_millis(500), spot.notice()).await;
    assert!(left.is_err(), "it left");
    assert!(spot.told);
    let asked = server.seen().iter().filter(|seen| seen.line.ends_with("/rebalance")).count();
    assert_eq!(asked, 1, "what was told once is not asked again");
}

#[track_caller]
fn check(action: &str, time: &str, expected: u64) {
    let notice = Action { action: action.into(), time: time.into() };
    let now = from_rfc3339("2026-02-28T23:59:00Z").unwrap();
    assert_eq!(time_left(&notice, now), Duration::from_secs(expected), "{action} {time}");
}

#[test]
fn ten_seconds_before_the_machine_goes_all_is_handed_over() {
    check("terminate", "2026-03-01T00:01:00Z", 110);
    check("stop", "2026-03-01T00:00:30Z", 80);
    check("terminate", "2026-02-28T23:59:08Z", 0);
    check("terminate", "2026-02-28T23:00:00Z", 0);
    // A clock that is behind.
    check("terminate", "2026-03-01T01:00:00Z", 110);
    check("terminate", "soon", 105);
    check("terminate", "", 105);
    check("hibernate", "2026-03-01T00:01:00Z", 0);
    assert!(from_rfc3339("2026-02-28T23:59:00Z").unwrap() > SystemTime::UNIX_EPOCH);
}
