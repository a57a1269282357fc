//! Tests of the schedule of protection requests, and of the answers that an ECS agent may give.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nsbridge_testkit::http::{Answer, Server};
use tokio::sync::watch;
use tokio::time::{Instant, advance, pause, resume};

use super::{EcsProtection, Plan, Timing};

const GRANTED: &str = r#"{"protection":{"ExpirationDate":"2031-12-20T21:57:44.837Z","ProtectionEnabled":true,"TaskArn":"arn:aws:ecs:us-west-2:111122223333:task/1234"}}"#;
const RELEASED: &str = r#"{"protection":{"ProtectionEnabled":false,"TaskArn":"arn"}}"#;
const BLOCKED: &str = r#"{"failure":{"Arn":"arn","Detail":null,"Reason":"DEPLOYMENT_BLOCKED"}}"#;
const DENIED: &str = r#"{"requestID":"12345-abc","error":{"Arn":"arn","Code":"AccessDeniedException","Message":"User is not authorized to perform: ecs:UpdateTaskProtection"}}"#;

const TIMING: Timing = Timing { linger: Duration::from_secs(15), ..super::TIMING };

const QUICK: Timing = Timing {
    expires: Duration::from_secs(1800),
    renew: Duration::from_secs(600),
    linger: Duration::from_millis(100),
    pause: Duration::from_millis(5),
};

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn an_idle_worker_asks_for_nothing() {
    assert_eq!(Plan::new(TIMING).next(false, Instant::now()), None);
}

#[test]
fn a_busy_one_is_protected_at_once_and_again_long_before_it_is_over() {
    let (mut plan, now) = (Plan::new(TIMING), Instant::now());
    assert_eq!(plan.next(true, now), Some((now, true)));
    plan.note(true, true, now);
    assert_eq!(plan.next(true, now + seconds(1)), Some((now + TIMING.renew, true)));
    assert!(TIMING.renew * 2 < TIMING.expires && seconds(25 * 60) < TIMING.expires);
}

#[test]
fn protection_lingers_so_that_the_next_request_needs_not_ask() {
    let (mut plan, now) = (Plan::new(TIMING), Instant::now());
    plan.note(true, true, now);
    let release = |idle: Instant| Some((idle + TIMING.linger, false));
    assert_eq!(plan.next(false, now + seconds(1)), release(now + seconds(1)));
    assert_eq!(plan.next(false, now + seconds(9)), release(now + seconds(1)));
    assert_eq!(plan.next(true, now + seconds(10)), Some((now + TIMING.renew, true)));
    assert_eq!(plan.next(false, now + seconds(11)), release(now + seconds(11)));
    plan.note(false, true, now + seconds(26));
    assert_eq!(plan.next(false, now + seconds(27)), None);
}

#[test]
fn failures_are_tried_again_after_growing_pauses() {
    let (mut plan, now) = (Plan::new(TIMING), Instant::now());
    let mut at = now;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        plan.note(true, false, at);
        let (next, enabled) = plan.next(true, at).unwrap();
        assert!(enabled);
        pauses.push(next - at);
        at = next;
    }
    for (pause, whole) in pauses.into_iter().zip([1, 2, 4, 8, 16, 32, 60, 60].map(seconds)) {
        assert!(whole / 2 <= pause && pause <= whole, "{pause:?} of {whole:?}");
    }
    plan.note(true, true, at);
    plan.note(true, false, at + TIMING.renew);
    let (next, _) = plan.next(true, at + TIMING.renew).unwrap();
    assert!(next - (at + TIMING.renew) <= seconds(1), "a success resets the back-off");
    // A protection that was granted before is released all the same.
    assert!(plan.next(false, at + TIMING.renew).is_some_and(|(_, enabled)| !enabled));
}

async fn agent(answers: Vec<Answer>) -> (Server, EcsProtection) {
    let n = AtomicUsize::new(0);
    let server = Server::start(move |seen| {
        assert_eq!(seen.line, "PUT /api/0123/task-protection/v1/state");
        match answers.get(n.fetch_add(1, Ordering::SeqCst)) {
            Some(answer) => answer.clone(),
            None if seen.text().contains("true") => Answer::new(200, GRANTED),
            None => Answer::new(200, RELEASED),
        }
    })
    .await
    .unwrap();
    let mut protection = EcsProtection::new(&server.url("/api/0123"), QUICK.linger);
    protection.timing = QUICK;
    (server, protection)
}

#[tokio::test]
async fn a_task_is_protected_while_it_is_busy_and_released_some_time_after() {
    let (server, protection) = agent(Vec::new()).await;
    let load = watch::Sender::new(0);
    let running = tokio::spawn(protection.run(load.subscribe()));
    // An idle worker asks for nothing, so the first request is the one of the busy worker.
    tokio::task::yield_now().await;
    pause();
    advance(QUICK.linger * 2).await;
    resume();
    load.send_replace(1);
    let taken = server.saw(|_| true).await.unwrap();
    let asked: serde_json::Value = serde_json::from_str(taken.text()).unwrap();
    assert_eq!(asked, serde_json::json!({ "ExpiresInMinutes": 30, "ProtectionEnabled": true }));
    assert_eq!(taken.header("content-type"), Some("application/json"));
    pause();
    for busy in [0, 2, 0, 1, 0, 1] {
        load.send_replace(busy);
        advance(QUICK.linger / 20).await;
    }
    resume();
    load.send_replace(0);
    server.saw(|seen| seen.text() == r#"{"ProtectionEnabled":false}"#).await.unwrap();
    assert_eq!(server.seen().len(), 2, "requests that come and go ask nothing");
    drop(load);
    running.await.unwrap();
}

async fn said(answer: Answer) -> String {
    let (_server, protection) = agent(vec![answer]).await;
    nsbridge_base::chain(&protection.put(true).await.unwrap_err())
}

#[tokio::test]
async fn each_refusal_is_one_sentence() {
    assert_eq!(said(Answer::new(200, BLOCKED)).await, "ECS refused: DEPLOYMENT_BLOCKED");
    let denied = said(Answer::new(400, DENIED)).await;
    let words = "ECS refused: AccessDeniedException: User is not authorized to perform: \
                 ecs:UpdateTaskProtection";
    assert_eq!(denied, words);
    assert!(said(Answer::new(200, RELEASED)).await.ends_with("not documented to answer"));
    assert!(said(Answer::new(200, "{}")).await.ends_with("not documented to answer"));
    assert!(said(Answer::new(200, "yes")).await.ends_with("not documented to answer"));
    assert!(said(Answer::new(503, "later")).await.ends_with("answered 503 Service Unavailable"));
    assert!(said(Answer::never()).await.ends_with("no answer within 2000 ms"));
}

#[tokio::test]
async fn no_refusal_is_the_end_of_asking() {
    let troubles = [
        Answer::new(500, ""),
        Answer::new(400, DENIED),
        Answer::new(200, BLOCKED),
        Answer::raw("garbage"),
        Answer::new(200, "{}"),
    ];
    let count = troubles.len();
    let (server, protection) = agent(troubles.to_vec()).await;
    let load = watch::Sender::new(1);
    tokio::spawn(protection.run(load.subscribe()));
    server.saw(|_| server.seen().len() > count).await.unwrap();
    load.send_replace(0);
    server.saw(|seen| seen.text().contains("false")).await.unwrap();
    assert_eq!(server.seen().len(), count + 2, "once granted, it is not asked again");
}
