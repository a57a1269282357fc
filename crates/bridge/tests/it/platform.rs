//! Worker on machines that are about to be terminated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nsbridge::worker::{EcsAddresses, FleetConfig, Platform};
use nsbridge_queue::{Broker, MemoryBroker};
use nsbridge_testkit::http::{Answer, Server};

use crate::script::{Script, Scripted, ask, said, submit, system};
use crate::trouble::rest;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_protected_while_requests_run_and_released_after() {
    let agent = Server::start(|seen| {
        let enabled = seen.text().contains("true");
        Answer::new(200, &format!("{{\"protection\":{{\"ProtectionEnabled\":{enabled}}}}}"))
    })
    .await
    .unwrap();
    let (setup, worker, client) = system(Arc::new(MemoryBroker::new())).await;
    let mut config = FleetConfig::default();
    config.release_after_s = 1;
    let ecs = EcsAddresses::new(None, Some(agent.url("/api/1")));
    let platform = Platform::new(&config, ecs).unwrap();
    tokio::spawn(platform.run(worker.drain(), setup.observability.metrics.clone()));
    for _ in 0..3 {
        let say = Script::Say { pieces: 10, every_ms: 10 };
        submit(&client, &setup, say).await.unwrap().collect().await.unwrap();
    }
    agent.saw(|seen| seen.text().contains("false")).await.unwrap();
    let asked: Vec<_> = agent.seen().iter().map(|seen| seen.text().contains("true")).collect();
    assert_eq!(asked, [true, false], "once for all three");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spot_notice_drains_and_another_worker_goes_on() {
    let taken_back = Arc::new(AtomicBool::new(false));
    let notice = taken_back.clone();
    let imds = Server::start(move |seen| match seen.line.as_str() {
        "PUT /latest/api/token" => Answer::new(200, "token"),
        "GET /latest/meta-data/spot/instance-action" if notice.load(Ordering::SeqCst) => {
            // Hibernation is the one action without a notice of two minutes.
            Answer::new(200, r#"{"action":"hibernate","time":"2031-09-18T08:22:00Z"}"#)
        }
        _ => Answer::new(404, ""),
    })
    .await
    .unwrap();
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::new());
    let (setup, worker, client) = system(broker.clone()).await;
    let mut config = FleetConfig::default();
    (config.spot, config.imds) = (true, imds.url(""));
    let platform = Platform::new(&config, EcsAddresses::default()).unwrap();
    tokio::spawn(platform.run(worker.drain(), setup.observability.metrics.clone()));
    let mut say = ask(&setup, Script::Say { pieces: 900, every_ms: 10 }, 7);
    say.timeout = Duration::from_secs(60);
    let mut reply = client.submit(say).await.unwrap();
    reply.next().await.unwrap().unwrap();
    assert!(worker.drain().moment().is_none());
    taken_back.store(true, Ordering::SeqCst);
    worker.ended().await.unwrap();
    let moved = "nsbridge_requests_ended_total{model=";
    let text = setup.observability.metrics.text();
    let moved = text.lines().find(|line| line.starts_with(moved) && line.contains("\"moved\""));
    assert!(
        moved.is_some_and(|line| line.ends_with(" 1")),
        "it did not wait for the end: {moved:?}"
    );
    let _second = setup.worker::<Scripted>(broker, ()).await.unwrap();
    assert_eq!(rest(reply).await, said(7, 900)[1..]);
}
